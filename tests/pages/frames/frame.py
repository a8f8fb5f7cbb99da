"""frame.py: what the blocks of Python in the pages take for granted: ranks of torch, a model, and its training."""

import os

import torch
import torch.distributed as dist
from torch import nn

RANK, SIZE = os.environ["ESPRESSO_RANK"], os.environ["ESPRESSO_SIZE"]


def addresses():
    """As torchrun does; ranks meet at a file, because a port may be taken."""
    os.environ.update(RANK=RANK, WORLD_SIZE=SIZE)
    meet_at_a_file = dist.init_process_group

    def init_process_group(backend):
        meet_at_a_file(backend, f"file://{os.environ['STORE']}", rank=int(RANK), world_size=int(SIZE))

    dist.init_process_group = init_process_group


def meet():
    dist.init_process_group("gloo", f"file://{os.environ['STORE']}", rank=int(RANK), world_size=int(SIZE))


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def ddp():
    meet()
    return nn.parallel.DistributedDataParallel(net())


def train(model, optimizer=None, steps=20, leave=True):
    """Some steps. At their end the loss is lower than at their begin, and `leave` ends the process group."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(int(RANK))
    x = torch.randn(32, 64)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert steps == 1 or losses[-1] < losses[0], losses
    if leave:
        dist.barrier()
        dist.destroy_process_group()
