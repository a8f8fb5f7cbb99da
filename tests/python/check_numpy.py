"""check_numpy.py PART: the tests of test_numpy.sh, one function a part, as one rank of a job."""

import os
import sys

import espresso
import numpy as np
from expect import raises


def gradients(rank, step, shape=(40, 300)):
    return np.random.default_rng(100 * step + rank).standard_normal(shape).astype(np.float32)


def part_alone():
    x = gradients(0, 0)
    for spec in ("none", "fp16", "int8", "topk:ratio=0.1", "powersgd:rank=2"):
        y = espresso.decompress(spec, espresso.compress(spec, x), np.full_like(x, 7))
        assert np.abs(y - x).max() <= (0 if spec == "none" else np.abs(x).max()), spec
    assert len(espresso.compress("powersgd:rank=2", x)) < 4 * 2 * (40 + 300) + 200, "a 2-d array must be a matrix"
    with espresso.Codec("topk:ratio=0.1", x.size) as codec:
        payload, left, y = codec.compress(x), np.empty_like(x), np.zeros_like(x)
        codec.residual(left)
        codec.decompress(payload, y)
        codec.decompress(payload, y, add=True)
        assert np.array_equal(y / 2 + left, x) and np.count_nonzero(y) == 1200
        raises(ValueError, "4 elements", codec.residual, np.empty(4, np.float32))
    raises(ValueError, "float64: use float32", espresso.compress, "fp16", x.astype(np.float64))
    raises(espresso.EspressoError, 'no codec "nonsense"', espresso.compress, "nonsense", x)
    raises(TypeError, "not list", espresso.compress, "fp16", [1.0])
    raises(TypeError, "no setting 'codec'", espresso.Context, codec="fp16")
    raises(ValueError, "optimizer 'lion'", espresso.Context, optimizer="lion")
    with espresso.Context() as ctx:
        ctx.add("w", x)
        raises(espresso.EspressoError, "w", ctx.add, "w", x)
        raises(ValueError, "dtype int32", ctx.add, "i", x.astype(np.int32))
        ctx.start()
        raises(espresso.StateError, "", ctx.add, "late", x)
        raises(ValueError, "not contiguous", ctx.push, "w", np.zeros((40, 600), np.float32)[:, ::2])
        raises(ValueError, "added with 12000 elements", ctx.push, "w", np.zeros(3, np.float32))
        raises(ValueError, "read-only", ctx.push, "w", np.broadcast_to(np.float32(1), (1,)))
        raises(ValueError, "no tensor 'v'", ctx.push, "v", x)
        ctx.push("w", np.asfortranarray(x))
        ctx.wait_all()
        assert ctx.stats()["steps"] == 1
    raises(espresso.StateError, "closed", ctx.barrier)


def part_plan():
    made = espresso.plan("lstm", ["fp16", "topk:ratio=0.01"], "one-box", max_error=0.5, keep="decoder*=fp32")
    assert made.strategy.startswith("espresso-strategy 1\n") and made.report["tensors"] == 10
    assert "tensor decoder.bias 33278 none" in made.strategy
    tensors = [{"name": f"t{i}", "elements": 10**6, "compute_us": 1000} for i in range(3)]
    model = {"espresso": 1, "model": "mine", "forward_us": 10, "update_us": 10, "tensors": tensors}
    page = os.path.join(os.environ["TMPDIR"], "page.html")
    made = espresso.plan(model, "fp16", "commodity-10g", timeline=page)
    assert made.report["iteration_us"] <= made.report["fp32_us"]
    with open(page) as file:
        assert "<html" in file.read()
    with espresso.Context(strategy="fp32") as ctx:
        for i in range(3):
            ctx.add(f"t{i}", count=10**6)
        ctx.start()
        raises(espresso.EspressoError, "t0", setattr, ctx, "strategy", "espresso-strategy 1\ntensor t0 5 none flat\n")
    raises(espresso.ArgumentError, "no-such", espresso.plan, "no-such", "fp16", "one-box")


def part_means():
    with espresso.Context(codecs="topk:ratio=0.1") as ctx:
        for name, dtype in (("w", "float32"), ("h", "float16")):
            ctx.add(name, gradients(0, 0).astype(dtype))
        ctx.add("exact", count=5, raw=True)
        ctx.add("sum", count=5, sum=True)
        ctx.start()
        assert "topk" in ctx.strategy and ctx.size == 2
        for step in range(3):
            w, h = gradients(ctx.rank, step), gradients(ctx.rank, step).astype(np.float16)
            exact, total = np.full(5, ctx.rank, np.float32), np.full(5, ctx.rank + 1, np.float32)
            ctx.push("w", w), ctx.push("h", h), ctx.push("sum", total)
            if ctx.rank:
                ctx.push("exact", exact)
            else:
                ctx.push_zero("exact", exact)
            ctx.wait("w")
            assert ctx.test("w")
            ctx.wait_all()
            assert exact.tolist() == [0.5] * 5 and total.tolist() == [3.0] * 5
            assert 0 < np.count_nonzero(w) < 5000 and h.any()
            mine = np.concatenate([w.ravel(), h.ravel().astype(np.float32)])
            theirs = mine.copy()
            ctx.broadcast(theirs, root=1)
            assert np.array_equal(mine, theirs), "ranks must have the same bits"
        most = np.array([ctx.rank, -ctx.rank], np.int64)
        ctx.allreduce(most, "max")
        assert most.tolist() == [1, 0]
        assert ctx.tensor_stats("w").pushes == 3
        before = ctx.strategy
        ctx.strategy = "fp32"
        assert ctx.strategy != before and "topk" not in ctx.strategy
        ctx.report_loss(1.0), ctx.feedback_scale(0.5), ctx.feedback_clear(), ctx.weight(2.0)
    raises(espresso.StateError, "discard", _skip_without_discardable)


def _skip_without_discardable():
    with espresso.Context() as ctx:
        ctx.add("w", count=3)
        ctx.start()
        ctx.push("w", np.zeros(3, np.float32))
        ctx.wait_all()
        ctx.discard_step()


def train(ctx, steps):
    results = []
    for step in steps:
        w = gradients(ctx.rank, step)
        ctx.push("w", w)
        ctx.wait_all()
        results.append(w)
    return np.stack(results)


def opened(**kw):
    ctx = espresso.Context(codecs="topk:ratio=0.01", **kw)
    ctx.add("w", gradients(0, 0))
    ctx.start()
    return ctx


def part_state():
    with opened() as ctx:
        train(ctx, range(3))
        state = ctx.state()
        expected = train(ctx, range(3, 6))
    with opened() as ctx:
        assert not np.array_equal(train(ctx, range(3, 6)), expected), "feedback must matter"
    with opened() as ctx:
        ctx.load_state(state)
        assert np.array_equal(train(ctx, range(3, 6)), expected)
        raises(espresso.EspressoError, "", ctx.load_state, state[:-9])
    with opened(discardable=True) as ctx:
        train(ctx, [9])
        before = train(ctx, [0, 1])
        ctx.load_state(state)
        after = train(ctx, [0])
        train(ctx, [5])
        ctx.discard_step()
        again = train(ctx, [1])
        ctx.load_state(state)
        assert np.array_equal(train(ctx, [0, 1]), np.concatenate([after, again])), "a skipped step must leave no trace"
        assert not np.array_equal(before[1], again[0])


def part_fork():
    with opened() as ctx:
        train(ctx, [0])
        child = os.fork()
        if not child:
            raises(espresso.EspressoError, "", ctx.barrier)
            ctx.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        child = os.fork()
        if not child:
            sys.exit(8)  # ends as an interpreter does
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
        train(ctx, [1])


def part_exit():
    train(opened(), [0])  # still open at exit, also if nothing refers to it


def part_dies():
    ctx = opened()
    train(ctx, [0])
    if ctx.rank == 1:
        os._exit(0)
    train(ctx, [1])


def part_groups():
    """Two contexts of one process: over all ranks, and over the even or the odd ones, which meet by an allgather."""
    everyone = opened()

    def of_group(ranks):
        def gather(mine):
            parts = np.zeros((everyone.size, len(mine)), np.int32)
            parts[everyone.rank] = np.frombuffer(mine, np.uint8)
            everyone.allreduce(parts)
            return [parts[r].astype(np.uint8).tobytes() for r in ranks]

        return gather

    ranks = list(range(everyone.rank % 2, everyone.size, 2))
    group = espresso.Context(
        rank=ranks.index(everyone.rank), size=len(ranks), allgather=of_group(ranks) if len(ranks) > 1 else None
    )
    group.add("g", count=4)
    group.start()
    g, w = np.full(4, everyone.rank, np.float32), gradients(everyone.rank, 0)
    group.push("g", g), everyone.push("w", w)
    group.wait_all(), everyone.wait_all()
    assert g.tolist() == [sum(ranks) / len(ranks)] * 4
    group.close(), everyone.close()

    def broken(_mine):
        raise KeyError("no store")

    try:
        espresso.Context(rank=0, size=2, allgather=broken)
    except espresso.EspressoError as error:
        assert isinstance(error.__cause__, KeyError)
    else:
        raise AssertionError("an allgather that raises must fail")


globals()["part_" + sys.argv[1]]()
