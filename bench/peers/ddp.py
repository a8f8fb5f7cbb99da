"""ddp.py WAY SECONDS: one rank of bench/peers/ddp.sh: trains a network with DistributedDataParallel for SECONDS, with
plain all-reduce, one of torch's hooks, or espresso's; or with FSDP2, whose gradients torch or espresso averages. Rank 0
prints lines "TIME STEP LOSS" and at the end the step time.
"""

import gzip
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

DATA = "/usr/share/datasets/fashion-mnist/"


def read(name, head):
    with gzip.open(DATA + name) as file:
        return torch.frombuffer(bytearray(file.read()[head:]), dtype=torch.uint8)


def sent_by_host():
    with open("/sys/class/net/eth0/statistics/tx_bytes") as file:
        return int(file.read())


def shard(way, net):
    """Shards the network's layers over all ranks; returns espresso's state."""
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    if way == "fsdp":
        return None
    import espresso

    return espresso.FSDP(net, way.split("+")[1:] or None)


def prepare(way, model, optimizer):
    """Registers the hook of `way`; returns espresso's state."""
    if way == "torch-fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif way == "torch-powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=10)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif way != "torch":
        import espresso

        codecs = way.split("+")[1:]
        strategy = "auto" if way.startswith("auto") else "layerwise" if codecs else "fp32"
        state = espresso.DDP(model, codecs or None, strategy, optimizer)
        model.register_comm_hook(state, espresso.hook)
        return state
    return None


def main():
    way, seconds = sys.argv[1], float(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    if way == "torch-powersgd":  # with more than one bucket over gloo, it hangs: ranks order its collectives differently
        dist._DEFAULT_FIRST_BUCKET_BYTES = 2**24
    if way.startswith("fsdp"):
        model, espresso_state = net, shard(way, net)
    else:
        model = DistributedDataParallel(net, bucket_cap_mb=16 if way == "torch-powersgd" else 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if model is not net:
        espresso_state = prepare(way, model, optimizer)
    images = read("train-images-idx3-ubyte.gz", 16).view(-1, 784).float() / 255
    labels = read("train-labels-idx1-ubyte.gz", 8).long()
    test = read("t10k-images-idx3-ubyte.gz", 16).view(-1, 784)[:2000].float() / 255
    expected = read("t10k-labels-idx1-ubyte.gz", 8)[:2000].long()
    g = torch.Generator().manual_seed(dist.get_rank())
    spent, step, report, more = 0.0, 0, 0.0, torch.ones(2)
    times, sent = [], sent_by_host()
    while more[0].item():
        begin = time.perf_counter()
        pick = torch.randint(len(images), (32,), generator=g)
        loss = nn.functional.cross_entropy(model(images[pick]), labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if espresso_state and model is not net:
            espresso_state.report_loss(loss.item())
        times.append(time.perf_counter() - begin)
        spent, step = spent + times[-1], step + 1
        more[0], more[1] = spent < seconds, spent >= report
        dist.broadcast(more, 0)
        if more[1].item():
            before = sent_by_host()
            with torch.no_grad():
                loss = nn.functional.cross_entropy(net(test), expected).item()
            if dist.get_rank() == 0:
                print(f"{spent:.3f} {step} {loss:.5f}", flush=True)
            report += seconds / 20
            sent += sent_by_host() - before  # FSDP sends parameters
    late = sorted(times[len(times) // 2 :])
    median, sent = late[len(late) // 2], sent_by_host() - sent
    with torch.no_grad():
        out = net(test)
        loss, right = nn.functional.cross_entropy(out, expected), (out.argmax(1) == expected).float().mean()
    if dist.get_rank() == 0:
        print(
            f"end {step} {median * 1e3:.2f} {sent / step / 1e6:.3f} {loss.item():.5f} {right.item() * 100:.2f}",
            flush=True,
        )
        if espresso_state:
            lines = espresso_state.context.strategy.splitlines()
            print("strategy", sorted({line.split()[3] for line in lines if line.startswith("tensor")}), file=sys.stderr)
    dist.barrier()
    if espresso_state:
        espresso_state.close()
    os._exit(0)


main()
