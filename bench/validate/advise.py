"""advise.py WAY STEPS [TRACE]: one rank of bench/validate/advise.sh: trains with DistributedDataParallel, and prints
the median step time in ms. WAY is torch, espresso+CODEC or auto+CODEC+CODEC... With TRACE, records six more steps there.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    way, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if way != "torch":
        import espresso

        kind, *codecs = way.split("+")
        state = espresso.DDP(model, codecs, "auto" if kind == "auto" else "layerwise", optimizer)
        model.register_comm_hook(state, espresso.hook)
    images, labels = torch.rand(32, 784), torch.randint(0, 10, (32,))
    times = []

    def step():
        begin = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)

    for _ in range(steps):
        step()
    late = sorted(times[steps // 2 :])  # auto has chosen by then
    if dist.get_rank() == 0:
        print(f"{late[len(late) // 2] * 1e3:.2f}", flush=True)
    if len(sys.argv) > 3:
        dist.barrier()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as p:
            for _ in range(6):
                step()
        p.export_chrome_trace(f"{sys.argv[3]}{dist.get_rank()}.json")
    dist.barrier()
    os._exit(0)


main()
