"""advise.py STEPS TRACE WIDTH WAY...: one rank of bench/validate/advise.sh: trains a copy of a model in each way with
DistributedDataParallel, and prints each way's median step time in ms. WAY is torch, espresso+CODEC or auto+CODEC+...
The ways take turns, 15 steps each, so that other load slows all of them alike. Records torch's steps as TRACE.
"""

import os
import sys
import time

import espresso
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BLOCK = 15
steps, trace, width, ways = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
images, labels = torch.rand(32, 784), torch.randint(0, 10, (32,))


class Way:
    def __init__(self, way):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        self.name, self.times = way, []
        self.model = DistributedDataParallel(net, bucket_cap_mb=1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        if way != "torch":
            kind, *codecs = way.split("+")
            state = espresso.DDP(self.model, codecs, "auto" if kind == "auto" else "layerwise", self.optimizer)
            self.model.register_comm_hook(state, espresso.hook)
        for _ in range(80 if way.startswith("auto") else 3):  # auto has chosen by then
            self.step()

    def step(self):
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()
        return time.perf_counter() - begin

    def block(self):
        for _ in range(4):  # the caches are those of another way
            self.step()
        self.times += [self.step() for _ in range(BLOCK)]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    all_ways = [Way(way) for way in ways]
    for _ in range(steps // BLOCK):
        for way in all_ways:
            way.block()
    if dist.get_rank() == 0:
        for way in all_ways:
            print(way.name, f"{sorted(way.times)[len(way.times) // 2] * 1e3:.2f}", flush=True)
    dist.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as p:
        for _ in range(12):
            all_ways[0].step()
    p.export_chrome_trace(f"{trace}{dist.get_rank()}.json")
    dist.barrier()
    os._exit(0)


main()
