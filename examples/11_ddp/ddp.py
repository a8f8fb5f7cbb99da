"""PyTorch: DistributedDataParallel with the library's hook. Run: torchrun --nproc-per-node 2 ddp.py, or espresso run."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import espresso


def main() -> None:
    if "MASTER_ADDR" in os.environ:  # torchrun, srun
        dist.init_process_group("gloo")
    else:
        rank, size = (int(os.environ[f"ESPRESSO_{name}"]) for name in ("RANK", "SIZE"))
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=size)
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    state = espresso.DDP(model, codecs="int8", optimizer=optimizer)  # these two lines are all
    model.register_comm_hook(state, espresso.hook)

    first = loss = 0.0
    for step in range(100):
        inputs = torch.randn(32, 64)  # each rank has samples of its own
        error = (model(inputs) - inputs.roll(1, 1)).pow(2).mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        loss = error.item()
        first = first or loss
    total = sum(p.double().abs().sum().item() for p in model.parameters())
    totals = [0.0] * dist.get_world_size()
    dist.all_gather_object(totals, total)
    if dist.get_rank() == 0:
        same = "equal" if len(set(totals)) == 1 else "different"
        print(f"the loss fell: {loss < first}; the ranks' parameters are {same}")
    state.close()
    dist.destroy_process_group()


main()
