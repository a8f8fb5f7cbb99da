"""check_join.py STORE: two ranks of a job in an outer loop, without torch's process group. A third rank joins, and
rank 1 dies. After each round, all ranks must have the parameters that torch's own SGD has as the outer optimizer."""

import os
import signal
import subprocess
import sys
import time

import espresso
import torch
from check_outer import backward, flat, model_of

EVERY, JOINS_AFTER, DIES_AFTER, ROUNDS = 3, 2, 5, 8
ME = 2 if "join" in sys.argv else int(os.environ["ESPRESSO_RANK"])
# round by round, which ranks take part
MEMBERS = [[0, 1] if k < JOINS_AFTER else [0, 1, 2] if k < DIES_AFTER else [0, 2] for k in range(ROUNDS)]


def inner(model, optimizer, rank, number, after=lambda: None):
    for step in range(EVERY):
        backward(model, rank, EVERY * number + step)
        optimizer.step()
        after()


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def expected():
    """The parameters after each round. Inner optimizers have no state, so one model stands for all ranks."""
    model = model_of(0)
    optimizer = optimizer_of(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    anchor = torch.nn.Parameter(flat(model))
    outside = torch.optim.SGD([anchor], lr=0.7, momentum=0.9, nesterov=True)
    for number, ranks in enumerate(MEMBERS):
        moved = torch.zeros_like(anchor)
        for rank in ranks:
            torch.nn.utils.vector_to_parameters(anchor.data.clone(), parameters)
            inner(model, optimizer, rank, number)
            moved += (anchor.data - flat(model)) / len(ranks)
        anchor.grad = moved
        outside.step()
        yield anchor.data.clone()


def agreed(outer, number):
    """Rank 0's number."""
    x = torch.tensor([number], dtype=torch.int32)
    outer.context.broadcast(x)
    return int(x)


def die_or_go_on():
    """Rank 1 dies when the others have ended the round."""
    open(f"{sys.argv[1]}.{ME}", "w").close()
    while ME == 1:
        if all(os.path.exists(f"{sys.argv[1]}.{rank}") for rank in (0, 2)):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)


def await_rank(outer):
    while outer.context.size < 3:
        outer.context.reconfigure()
    assert outer.context.stats()["ranks_joined"] == (ME != 2)


def main():
    model = model_of(7 if ME == 2 else ME)
    optimizer = optimizer_of(model)
    model[0].bias.data.copy_(model_of(0)[0].bias.data)  # requires no gradient, so it stays each rank's own
    right, other = list(expected()), None
    with espresso.Outer(model, method="diloco", every=EVERY, join=ME == 2, timeout_ms=60000) as outer:
        begin = outer.context.stats()["outer_rounds"]
        assert begin == (JOINS_AFTER if ME == 2 else 0)
        assert torch.equal(flat(model), flat(model_of(0))) or torch.allclose(flat(model), right[begin - 1], atol=1e-5)
        number = begin
        while number < ROUNDS:
            if number == JOINS_AFTER and ME == 0:
                other = subprocess.Popen([sys.executable, *sys.argv, "join"])
            if number == JOINS_AFTER and ME != 2:
                await_rank(outer)
            if number == DIES_AFTER:
                die_or_go_on()
            before = flat(model)
            try:
                inner(model, optimizer, ME, number, outer.step)
            except espresso.PeerError:
                assert number == DIES_AFTER and outer.context.size == 3
                outer.context.reconfigure()
                assert outer.context.size == 2 and outer.context.stats()["ranks_lost"] == 1
                torch.nn.utils.vector_to_parameters(before, [p for p in model.parameters() if p.requires_grad])
                continue
            number += 1
            assert torch.allclose(flat(model), right[number - 1], atol=1e-5), f"rank {ME}, round {number}"
            theirs = flat(model)
            outer.context.broadcast(theirs)
            assert torch.equal(theirs, flat(model))
        assert number == agreed(outer, number)
    if other:
        assert other.wait() == 0
    print(f"rank {ME}: {number} rounds")


main()
