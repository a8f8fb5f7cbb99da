"""check_outer.py STORE PART ...: the tests of test_outer.sh, one function a part, as one rank of a job."""

import os
import sys

import espresso
import torch
import torch.distributed as dist
from expect import raises

RANK, SIZE = int(os.environ["ESPRESSO_RANK"]), int(os.environ["ESPRESSO_SIZE"])


def model_of(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.Tanh(), torch.nn.Linear(50, 4))
    model[0].bias.requires_grad_(False)  # stays each rank's own
    return model


def flat(model):
    return torch.cat([p.detach().flatten().clone() for p in model.parameters() if p.requires_grad])


def backward(model, rank, step):
    torch.manual_seed(1000 * step + rank)
    x = torch.randn(16, 30)
    model.zero_grad()
    model(x).square().mean().backward()


HOOKS = hasattr(torch.optim.Optimizer, "register_step_post_hook")  # torch 2


def train(model, optimizer, steps, outer=None):
    for step in steps:
        backward(model, RANK, step)
        optimizer.step()
        if outer and not HOOKS:
            outer.step()


def everywhere(x):
    parts = [torch.empty_like(x) for _ in range(SIZE)]
    dist.all_gather(parts, x)
    return parts


def part_average():
    """With one averaging a step and SGD, this is data-parallel training."""
    model, plain = model_of(RANK), model_of(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with espresso.Outer(model, optimizer if HOOKS else None, every=1) as outer:
        assert torch.equal(flat(model), flat(plain)), "all ranks begin with the parameters of rank 0"
        plain[0].bias.data.copy_(model[0].bias.data)
        train(model, optimizer, range(5), outer)
        assert outer.context.stats()["outer_rounds"] == 5
    for step in range(5):
        backward(plain, RANK, step)
        for p in plain.parameters():
            if p.requires_grad:
                p.data -= 0.1 * sum(everywhere(p.grad)) / SIZE
    assert torch.allclose(flat(model), flat(plain), atol=1e-6)
    assert all(torch.equal(x, flat(model)) for x in everywhere(flat(model)))
    alone = flat(model)
    train(model, optimizer, range(5, 6))
    assert not torch.equal(everywhere(flat(model))[0], everywhere(flat(model))[1]), (
        "closed: the optimizer goes on alone"
    )
    assert not torch.equal(alone, flat(model))


def part_diloco():
    """Against torch's own SGD with Nesterov's momentum as the outer optimizer."""
    model = model_of(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    anchor = torch.nn.Parameter(flat(model))
    outside = torch.optim.SGD([anchor], lr=0.7, momentum=0.9, nesterov=True)
    with espresso.Outer(model, method="diloco", every=4) as outer:
        for round_ in range(3):
            for step in range(4):
                train(model, optimizer, [4 * round_ + step])
                before = flat(model)
                outer.step()
            anchor.grad = anchor.data - sum(everywhere(before)) / SIZE
            outside.step()
            assert torch.allclose(flat(model), anchor.data, atol=1e-5)
    hooked = optimizer if HOOKS else None
    with espresso.Outer(model, hooked, 4, "topk:ratio=0.1", method="diloco", min_compress_elements=1) as outer:
        train(model, optimizer, range(10), outer)
        outer.sync()
        assert all(torch.equal(x, flat(model)) for x in everywhere(flat(model)))


def part_resume():
    def run(steps, state=None, params=None):
        model = model_of(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        settings = {"method": "streaming:every=6,fragments=2,delay=2", "min_compress_elements": 1}
        with espresso.Outer(model, optimizer if HOOKS else None, codecs="topk:ratio=0.1", **settings) as outer:
            if state:
                outer.load_state_dict(state)
                torch.nn.utils.vector_to_parameters(params, [p for p in model.parameters() if p.requires_grad])
                train(model, optimizer, steps, outer)
                return flat(model)
            train(model, optimizer, steps, outer)
            saved, params = outer.state_dict(), flat(model)
            train(model, optimizer, range(steps.stop, steps.stop + 7), outer)
            return saved, params, flat(model)

    for at in (7, 8, 10):
        saved, params, expected = run(range(at))
        assert torch.equal(run(range(at, at + 7), saved, params), expected), at


def part_wrong():
    model = model_of(0)
    raises(espresso.ArgumentError, "every is not set", espresso.Outer, model)
    raises(espresso.ArgumentError, "'dilco' is no method", espresso.Outer, model, method="dilco")
    raises(espresso.ArgumentError, "delay is 9", espresso.Outer, model, every=4, delay=9)
    raises(TypeError, "no setting 'evry'", espresso.Outer, model, evry=4)
    raises(ValueError, "dtype float64", espresso.Outer, model_of(0).double(), every=4)
    if not HOOKS:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        raises(ValueError, "call step()", espresso.Outer, model, optimizer, every=4)
    raises(ValueError, "no parameter", espresso.Outer, torch.nn.Tanh(), every=4)


if __name__ == "__main__":
    store = dist.FileStore(sys.argv[1], SIZE)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE)
    for part in sys.argv[2:]:
        globals()["part_" + part]()
    dist.destroy_process_group()
