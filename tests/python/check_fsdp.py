"""check_fsdp.py STORE: the tests of test_fsdp.sh, as one rank of four on two machines."""

import copy
import os
import sys

import espresso
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

RANK = int(os.environ["ESPRESSO_RANK"])


class Job:
    """A model, sharded over all ranks, or inside each machine if `mesh` has two dimensions; by torch if native."""

    def __init__(self, mesh, native=False, **settings):
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(64, 95), nn.ReLU(), nn.Linear(95, 95), nn.ReLU(), nn.Linear(95, 10))
        over = mesh if native or mesh.ndim == 1 else mesh["shard"]
        for layer in self.net[2:]:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=over)
        fully_shard(self.net, mesh=over)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.state, self.losses = None, []
        if not native:
            group = mesh["replicate"].get_group() if mesh.ndim == 2 else None
            self.state = espresso.FSDP(self.net, optimizer=self.optimizer, group=group, **settings)

    def train(self, steps, seed=0):
        g = torch.Generator().manual_seed(10 * seed + RANK)
        for _ in range(steps):
            x = torch.randn(16, 64, generator=g)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.net(x), x[:, :10].argmax(1))
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
        return self

    def parameters(self):
        return torch.cat([p.full_tensor().detach().flatten() for p in self.net.parameters()])


def check(mesh, size):
    native = Job(mesh, native=True).train(20)
    expected = native.parameters()
    exact = Job(mesh).train(20)
    assert (exact.parameters() - expected).abs().max() <= 1e-6
    assert max(abs(a - b) for a, b in zip(exact.losses, native.losses)) <= 1e-6
    assert exact.state.context.size == size and exact.state.context.stats()["steps"] == 19
    assert sorted(exact.state.context.names) == ["2", "4", "root"]
    exact_bytes = exact.state.context.stats()["inter_bytes"]
    for codec, tolerance, share in (("int8", 0.03, 0.4), ("topk:ratio=0.01", 1.0, 0.2)):
        job = Job(mesh, codecs=codec, min_compress_elements=1000).train(20)
        assert 0 < (job.parameters() - expected).abs().max() <= tolerance, codec
        assert job.state.context.stats()["inter_bytes"] <= share * exact_bytes, codec
        if not codec.startswith("topk"):
            continue
        saved = [{k: v.clone() for k, v in job.net.state_dict().items()}, job.state.state_dict()]
        momenta = copy.deepcopy(job.optimizer.state_dict())
        again = Job(mesh, codecs=codec, min_compress_elements=1000)
        again.net.load_state_dict(saved[0])
        again.optimizer.load_state_dict(momenta)
        again.state.load_state_dict(saved[1])
        assert torch.equal(job.train(5, seed=1).parameters(), again.train(5, seed=1).parameters())


def main():
    torch.set_num_threads(1)
    backend = os.environ.get("TORCH_BACKEND", "gloo")
    if "espresso" in backend:
        espresso.register()
    dist.init_process_group(backend, init_method=f"file://{sys.argv[1]}", rank=RANK, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    check(mesh, 2)
    if hasattr(FSDPModule, "set_custom_reduce_scatter"):
        check(init_device_mesh("cpu", (4,)), 4)
    try:
        espresso.FSDP(nn.Linear(1, 1), strategy="auto", group=mesh["replicate"].get_group())
    except ValueError as error:
        assert "layerwise" in str(error)
    else:
        raise AssertionError("strategy auto must be refused")
    print("ok")


main()
