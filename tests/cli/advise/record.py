"""record.py FOLDER: one rank of a DDP job over gloo that records traces for the tests of `espresso advise`, cut to the
events and arguments that it reads. Start one process per rank, with MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK. The
files here are of torch 2.15: two hosts of tests/jobs/hosts with one rank each, links of 100 Mbit/s; fast*.json of
bench/validate/advise.py, 1 Gbit/s.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

KEPT = ("AccumulateGrad", "c10d::allreduce_", "gloo:all_reduce", "DistributedData", "Optimizer.step", "aten::mul_", "aten::copy_")
ARGUMENTS = ("Input Dims", "Input type")


def cut(path):
    """Leaves out other events, other arguments, and blanks."""
    with open(path) as file:
        trace = json.load(file)
    trace["traceEvents"] = [
        {**{k: e[k] for k in ("ph", "cat", "name", "ts", "dur", "tid")},
         "args": {k: v for k, v in e["args"].items() if k in ARGUMENTS}}
        for e in trace["traceEvents"]
        if e["ph"] == "X" and (any(k in e["name"] for k in KEPT) or e["name"].startswith("autograd::engine"))
    ]
    trace["host_name"] = "host" + os.environ["RANK"]
    with open(path, "w") as file:
        json.dump(trace, file, separators=(",", ":"))


def record(name, net, inputs, optimizer):
    """Trains for some steps, and records the last three."""
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    optimizer = optimizer(model.parameters())
    images = torch.randn(64, *inputs)
    labels = torch.randint(0, 10, (64,))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    for _ in range(5):
        step()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
        for _ in range(4):
            step()
    path = os.path.join(sys.argv[1], f"{name}{dist.get_rank()}.json")
    p.export_chrome_trace(path)
    cut(path)


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
mlp = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
record("mlp", mlp, (256,), lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))
layers = nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.AvgPool2d(28), nn.Flatten()
conv = nn.Sequential(*layers, nn.Linear(32, 10))
record("conv", conv, (3, 32, 32), torch.optim.AdamW)
dist.barrier()
os._exit(0)
