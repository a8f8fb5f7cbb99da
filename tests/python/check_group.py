"""check_group.py STORE PART ...: backend espresso of torch.distributed, as one rank of four; test_group.sh runs it.

`all` is all but dies.
"""

import functools
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import espresso  # isort: skip  # after torch, so that it registers the backend
from espresso._group import Group
from expect import raises

RANK, SIZE = int(os.environ["ESPRESSO_RANK"]), int(os.environ["ESPRESSO_SIZE"])
called = set()


def numbers(rank, dtype=torch.float32, shape=(3, 5)):
    """Other numbers for each rank, of which small sums and products are exact in all types."""
    x = torch.arange(15).reshape(shape) + rank
    return (x % 3 == 0) if dtype is torch.bool else (x % 3 + 1).to(dtype)


def every(dtype=torch.float32):
    return [numbers(r, dtype) for r in range(SIZE)]


def same(found, expected):
    assert torch.equal(found, expected), f"{found}, expected {expected}"


def part_reductions():
    operations = {
        "SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
        "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
    }  # fmt: skip
    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    for dtype in (*floats, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool):
        for name, function in operations.items():
            if name.startswith("B") and dtype.is_floating_point:
                continue
            op, expected = getattr(dist.ReduceOp, name), functools.reduce(function, every(dtype))
            x = numbers(RANK, dtype)
            dist.all_reduce(x, op)
            same(x, expected)
            x = numbers(RANK, dtype).t()  # not contiguous
            dist.reduce(x, SIZE - 1, op)
            assert RANK != SIZE - 1 or torch.equal(x, expected.t())
    for op, factor in ((dist.ReduceOp.AVG, 1 / SIZE), (dist._make_nccl_premul_sum(0.25), 0.25)):
        x = numbers(RANK)
        dist.all_reduce(x, op)
        same(x, sum(every()) * factor)
    x = torch.full((2,), complex(RANK, 1))
    dist.all_reduce(x)
    same(x, torch.full((2,), complex(sum(range(SIZE)), SIZE)))
    pair = [numbers(RANK), numbers(RANK + 1)]
    dist.all_reduce_coalesced(pair)
    same(pair[1], sum(numbers(r + 1) for r in range(SIZE)))
    with torch.inference_mode():
        x = numbers(RANK)
        dist.all_reduce(x)
        same(x, sum(every()))


def part_gathers():
    for dtype in (torch.float32, torch.uint8, torch.bool, torch.complex64):
        for x in (numbers(RANK, dtype), numbers(RANK, dtype).t()):
            of = [y if x.shape == y.shape else y.t() for y in every(dtype)]
            y = x.clone() if RANK == 1 else torch.zeros_like(x)
            dist.broadcast(y, 1)
            same(y, of[1])
            parts = [torch.empty_like(x) for _ in of]
            dist.all_gather(parts, x)
            [same(a, b) for a, b in zip(parts, of)]
            dist.gather(x, [p.zero_() for p in parts] if RANK == 2 else None, 2)
            assert RANK != 2 or all(map(torch.equal, parts, of))
            whole = torch.empty(SIZE * x.shape[0], x.shape[1], dtype=dtype)
            dist.all_gather_into_tensor(whole, x.contiguous())
            same(whole, torch.cat(of))
            y = torch.empty_like(x)
            dist.scatter(y, [z.contiguous() for z in of] if RANK == 3 else None, 3)
            same(y, of[RANK])
    rows = [[torch.empty(3, 5), torch.empty(2)] for _ in range(SIZE)]
    dist.all_gather_coalesced(rows, [numbers(RANK), torch.full((2,), float(RANK))])
    [same(row[0], numbers(r)) or same(row[1], torch.full((2,), float(r))) for r, row in enumerate(rows)]
    pg = dist.group.WORLD
    outs = [torch.empty(SIZE * 2), torch.empty(SIZE * 3)]
    pg.all_gather_single_coalesced(outs, [torch.full((n,), float(RANK)) for n in (2, 3)]).wait()
    same(outs[1], torch.arange(float(SIZE)).repeat_interleave(3))
    found = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK, "text": "x" * RANK})
    assert [x["rank"] for x in found] == list(range(SIZE))
    found = [RANK, "from 0"] if RANK == 0 else [None, None]
    dist.broadcast_object_list(found)
    assert found == [0, "from 0"]


def part_scatters():
    for dtype in (torch.float32, torch.int64):
        mine, total = torch.empty(3, 5, dtype=dtype), sum(every(dtype))
        dist.reduce_scatter(mine, [numbers(RANK, dtype) + r for r in range(SIZE)])
        same(mine, total + SIZE * RANK)
        whole = torch.cat([numbers(RANK, dtype) + r for r in range(SIZE)])
        dist.reduce_scatter_tensor(mine, whole)
        same(mine, total + SIZE * RANK)
        same(whole, torch.cat([numbers(RANK, dtype) + r for r in range(SIZE)]))  # as before
        dist.group.WORLD.reduce_scatter_single_coalesced([mine.zero_()], [whole]).wait()
        same(mine, total + SIZE * RANK)
    out = torch.empty(SIZE * 2)
    dist.all_to_all_single(out, torch.arange(SIZE * 2.0) + 100 * RANK)
    same(out, torch.cat([torch.arange(2.0) + 2 * RANK + 100 * r for r in range(SIZE)]))
    counts = [r + 1 for r in range(SIZE)]  # of rows for rank r
    out = torch.empty(SIZE * (RANK + 1), 2)
    dist.all_to_all_single(out, torch.full((sum(counts), 2), float(RANK)), [RANK + 1] * SIZE, counts)
    same(out[:, 0], torch.arange(float(SIZE)).repeat_interleave(RANK + 1))
    outs = [torch.empty(r + RANK) for r in range(SIZE)]
    dist.all_to_all(outs, [torch.full((RANK + r,), float(RANK)) for r in range(SIZE)])
    [same(x, torch.full((r + RANK,), float(r))) for r, x in enumerate(outs)]


def part_messages():
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    for n in range(3):
        a, b = torch.empty(4), torch.empty(4, dtype=torch.bfloat16)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.irecv, a, left), dist.P2POp(dist.irecv, b, right),
            dist.P2POp(dist.isend, torch.full((4,), RANK + 10.0 * n), right),
            dist.P2POp(dist.isend, torch.full((4,), RANK, dtype=torch.bfloat16), left),
        ])  # fmt: skip
        [work.wait() for work in works]
        same(a, torch.full((4,), left + 10.0 * n)), same(b, torch.full((4,), right, dtype=torch.bfloat16))
    if RANK == 0:  # a message that is awaited does not hold up collectives
        x = torch.empty(1)
        work = dist.irecv(x, 1)
    dist.barrier()
    if RANK == 1:
        dist.send(torch.ones(1), 0)
    if RANK == 0:
        work.wait()
        same(x, torch.ones(1))


def part_async():
    """Operations run in the order of their calls; futures have values, and callbacks may call operations."""
    xs = [torch.full((1000,), float(RANK + i)) for i in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for i, (x, work) in enumerate(zip(xs, works)):
        assert work.wait() and x[0] == sum(r + i for r in range(SIZE))
    assert works[0].get_future().value()[0] is xs[0] or torch.equal(works[0].get_future().value()[0], xs[0])
    x, y = torch.ones(3), torch.ones(3)
    gate = torch.ones(10**6)
    dist.all_reduce(gate, async_op=True)  # so that the callback is there before the result

    def again(future):
        dist.all_reduce(y)
        return future.value()[0] + y

    same(dist.all_reduce(x, async_op=True).get_future().then(again).wait(), torch.full((3,), 2.0 * SIZE))


def part_groups():
    """Groups of some ranks, in one job, used in different orders by their ranks."""
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    last = dist.new_group([2, 3])
    x, y = torch.ones(2), torch.full((2,), float(RANK))
    if RANK == 2:
        dist.all_reduce(y, group=last)
    dist.all_reduce(x, group=pairs[RANK % 2])
    if RANK == 3:
        dist.all_reduce(y, group=last)
    same(x, torch.full((2,), 2.0))
    assert RANK < 2 or y[0] == 5
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    dist.all_reduce(x, group=mesh["b"].get_group())
    same(x, torch.full((2,), 4.0))
    dist.destroy_process_group(last)
    dist.barrier()


def part_errors():
    for f, kind, text in (
        (lambda: dist.broadcast(torch.ones(4 + RANK % 2), 0), espresso.MismatchError, "rank"),
        (lambda: dist.all_gather([torch.ones(2)] * SIZE, torch.ones(2 + RANK % 2)), espresso.MismatchError, "rank"),
    ):
        raises(kind, text, f)
    dist.all_reduce(torch.ones(2))  # the group can go on
    alone = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    if RANK == 0:
        raises(TimeoutError, "timeout of 0:00:02", dist.barrier, alone)
    dist.barrier()


def part_dies():
    dist.all_reduce(torch.ones(2))
    if RANK == 3:
        os._exit(1)
    dist.all_reduce(torch.ones(2))


def watch():
    """Notes which of the backend's methods c10d calls."""
    for name, f in list(vars(Group).items()):
        if callable(f) and not name.startswith("__"):

            def noted(self, *arguments, name=name, f=f):
                called.add(name)
                return f(self, *arguments)

            setattr(Group, name, noted)


def main():
    watch()
    torch.set_num_threads(1)
    dist.init_process_group("cpu:espresso", init_method=f"file://{sys.argv[1]}", rank=RANK, world_size=SIZE)
    parts = [name for name in globals() if name.startswith("part_") and name != "part_dies"]
    if sys.argv[2] != "all":
        parts = ["part_" + name for name in sys.argv[2:]]
    for name in parts:
        globals()[name]()
    dist.destroy_process_group()
    if sys.argv[2] == "all":
        of_c10d = {name for name in vars(Group) if name in dir(Group.__mro__[1]) and callable(getattr(Group, name))}
        missed = {n for n in of_c10d if not n.startswith("_")} - called
        assert not missed, f"not called: {missed}"
    print(f"{len(parts)} parts, ok")


main()
