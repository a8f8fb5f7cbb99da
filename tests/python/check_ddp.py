"""check_ddp.py STORE PART ...: the tests of test_ddp.sh, one function a part, as one rank of a job.

`all` is all but dies and hosts. STORE is a new file, at which torch's ranks meet.
"""

import contextlib
import copy
import io
import os
import sys
import time

import espresso
import torch
import torch.distributed as dist
from expect import raises
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK, SIZE = int(os.environ["ESPRESSO_RANK"]), int(os.environ["ESPRESSO_SIZE"])
TOPK = "topk:ratio=0.02"


class Net(nn.Module):
    """Its parameters are not in the order in which forward uses them, so that DDP rebuilds its buckets."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.last = nn.Linear(96, 10)
        self.first = nn.Linear(64, 96)
        self.middle = nn.Linear(96, 96)
        self.branch = nn.Linear(96, 96)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.to(dtype)

    def forward(self, x, branch=False):
        x = torch.relu(self.first(x))
        x = torch.relu(self.branch(x) if branch else self.middle(x))
        return self.last(x)


def batches(n, seed=0, rank=RANK):
    g = torch.Generator().manual_seed(1000 * seed + rank)
    for _ in range(n):
        x = torch.randn(16, 64, generator=g)
        yield x, x[:, :10].argmax(1)


class Job:
    """A model, its optimizer, and unless `hook` is False the hook with these settings."""

    def __init__(self, hook=True, net=None, ddp=None, lr=0.05, **settings):
        torch.manual_seed(3)
        self.net = net or Net()
        ddp = dict({"bucket_cap_mb": 0.002}, **(ddp or {}))
        unused = ddp.pop("unused", False)
        if not (unused or ddp.get("find_unused_parameters") or ddp.get("static_graph") or net):
            self.net.branch.requires_grad_(False)
        self.ddp = DistributedDataParallel(self.net, **ddp)
        trained = [p for p in self.net.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=lr, momentum=0.9)
        self.state = None
        if hook:
            self.state = espresso.DDP(self.ddp, optimizer=self.optimizer, **settings)
            self.ddp.register_comm_hook(self.state, espresso.hook)

    def backward(self, x, y, **kw):
        out = self.ddp(x.to(next(self.net.parameters()).dtype), **kw).float()
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        return loss.item()

    def step(self, x, y, **kw):
        self.optimizer.zero_grad()
        loss = self.backward(x, y, **kw)
        self.optimizer.step()
        return loss

    def train(self, steps, seed=0, **kw):
        return [self.step(x, y, **kw) for x, y in batches(steps, seed)]

    def parameters(self):
        return torch.cat([p.detach().float().flatten() for p in self.net.parameters()])

    def close(self):
        """Checks that all ranks have the same bits, closes, and returns the parameters."""
        mine = self.parameters()
        theirs = mine.clone()
        dist.broadcast(theirs, 0)
        assert torch.equal(mine, theirs), "ranks must have the same bits"
        if self.state:
            self.state.close()
        return mine


def near(a, b, tolerance=1e-6):
    apart = (a - b).abs().max().item()
    assert apart <= tolerance, f"{apart} apart, expected at most {tolerance}"


def part_equal():
    """With codec none, DDP with the hook is plain DDP."""
    for ddp in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 25}):
        plain, ours = Job(hook=False, ddp=ddp), Job(ddp=ddp)
        plain.train(50), ours.train(50)
        assert ours.state.context.stats()["steps"] == 50
        near(plain.close(), ours.close())


def part_powersgd():
    """torch's expectation of its PowerSGD hook: equal gradients pass a rank-1 codec unchanged."""

    class Task(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.p = nn.Parameter(torch.ones(n, n))

        def forward(self, x):
            return self.p + x

    for feedback in ("residual", "none"):
        for start in ("warm", "cold"):
            for n in (2, 16):
                spec = f"powersgd:rank=1,start={start},feedback={feedback}"
                job = Job(net=Task(n), codecs=spec, min_compress_elements=1, log_level=1)
                assert ("powersgd" in job.state.context.strategy) == (n > 2)  # a factor of 2 x 2 would be as large
                for _ in range(3):
                    job.net.zero_grad()
                    job.ddp(torch.full((n, n), float(RANK))).mean().backward()
                    near(job.net.p.grad, torch.ones(n, n) / n**2)
                job.close()


def part_buckets():
    """Feedback belongs to parameters: other buckets, and rebuilt ones, do not change a bit."""
    results, counts = [], []
    for cap in (0.002, 0.02, 25):
        job = Job(ddp={"bucket_cap_mb": cap}, codecs=TOPK)
        push, steps = job.state._push, []

        def spy(bucket, push=push, steps=steps):
            steps[-1].append([tuple(p.shape) for p in bucket.parameters()])
            return push(bucket)

        job.state._push = spy
        for x, y in batches(6):
            steps.append([])
            job.step(x, y)
        assert steps[0] != steps[5] and steps[4] == steps[5], f"DDP must rebuild its buckets: {steps}"
        counts.append(len(steps[5]))
        results.append(job.close())
    assert len(set(counts)) > 1, f"the jobs must have different buckets: {counts}"
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    fresh = Job(codecs=TOPK)
    for x, y in batches(6):
        fresh.step(x, y)
        fresh.state.context.feedback_clear()
    assert not torch.equal(fresh.close(), results[0]), "feedback must matter"


class Scaler:
    """What torch's GradScaler does, for releases whose own works on GPUs only."""

    def __init__(self, init_scale, growth_interval):
        self._scale, self._interval, self._good, self._inf = init_scale, growth_interval, 0, False

    def is_enabled(self):
        return True

    def get_scale(self):
        return self._scale

    def scale(self, loss):
        return loss * self._scale

    def unscale_(self, optimizer):
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        for g in grads:
            g.mul_(1 / self._scale)
        self._inf = not all(torch.isfinite(g).all() for g in grads)

    def step(self, optimizer):
        if not self._inf:
            optimizer.step()

    def update(self):
        self._good = 0 if self._inf else self._good + 1
        self._scale *= 0.5 if self._inf else 2.0 if self._good % self._interval == 0 else 1.0


def part_scaler():
    """A step that the loss scaler skips leaves no trace, and feedback follows the scale."""
    try:
        kind = torch.amp.GradScaler
        make = lambda: kind("cpu", init_scale=2.0**10, growth_interval=3)  # noqa: E731
    except AttributeError:
        make = lambda: Scaler(2.0**10, 3)  # noqa: E731
    results = {}
    for way in ("never", "taken back", "kept"):
        scaler = None if way == "never" else make()
        job = Job(codecs=TOPK, scaler=scaler if way == "taken back" else None)
        for i, (x, y) in enumerate(batches(9)):
            if i == 4 and way == "never":
                continue
            if i == 4 and RANK == 2:
                x = x * float("inf")
            job.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(job.ddp(x), y)
            if scaler is None:
                loss.backward()
                job.optimizer.step()
                continue
            scaler.scale(loss).backward()
            scaler.unscale_(job.optimizer)
            scaler.step(job.optimizer)
            scaler.update()
        assert scaler is None or scaler.get_scale() == 2.0**11, scaler.get_scale()
        assert job.state.skipped == (way == "taken back")
        results[way] = job.close()
    assert torch.equal(results["never"], results["taken back"])
    assert not torch.equal(results["never"], results["kept"]), "the skipped step must matter"


def accumulate(job, steps=8):
    data = list(batches(2 * steps))
    for i in range(steps):
        job.optimizer.zero_grad()
        with job.ddp.no_sync():
            job.backward(*data[2 * i])
        job.backward(*data[2 * i + 1])
        job.optimizer.step()
    return job


def part_accumulation():
    ours = accumulate(Job())
    assert ours.state.context.stats()["steps"] == 8
    near(accumulate(Job(hook=False)).close(), ours.close())


def part_unused():
    """Branches that differ between steps, and between ranks; parameters that no rank uses."""
    ddp = {"find_unused_parameters": True}
    plain, ours = Job(hook=False, ddp=ddp), Job(ddp=ddp)
    for i, (x, y) in enumerate(batches(12)):
        branch = RANK % 2 == 1 if i % 3 else i % 2 == 1
        plain.step(x, y, branch=branch), ours.step(x, y, branch=branch)
    near(plain.close(), ours.close())
    lossy = Job(ddp=ddp, codecs=TOPK)
    lossy.train(5)
    lossy.close()


def part_static():
    ddp = {"static_graph": True}
    plain, ours = Job(hook=False, ddp=ddp), Job(ddp=ddp)
    plain.train(10), ours.train(10)
    near(plain.close(), ours.close())


def part_join():
    """Ranks with fewer batches join: they push zeros."""
    results = []
    for hook in (False, True):
        job = Job(hook=hook)
        with job.ddp.join(divide_by_initial_world_size=True):
            for x, y in batches(4 + 2 * RANK):
                job.step(x, y)
        if hook:
            assert job.state.context.stats()["steps"] == 4 + 2 * (SIZE - 1)
        results.append(job.close())
    near(*results)


def part_clipping():
    jobs = [Job(hook=False), Job(), Job(codecs=TOPK)]
    for x, y in batches(10):
        norms = []
        for job in jobs:
            job.optimizer.zero_grad()
            job.backward(x, y)
            norms.append(nn.utils.clip_grad_norm_(job.ddp.parameters(), 0.3).item())
            job.optimizer.step()
        near(torch.tensor(norms[0]), torch.tensor(norms[1]))
    results = [job.close() for job in jobs]
    near(results[0], results[1])


def part_state():
    """A job that loads what another saved computes the same bits."""
    job = Job(codecs=TOPK)
    job.train(5)
    file = io.BytesIO()
    saved = {"net": job.net.state_dict(), "optimizer": job.optimizer.state_dict(), "espresso": job.state.state_dict()}
    torch.save(saved, file)
    job.train(5, seed=1)
    expected = job.close()
    results = []
    for feedback in (True, False):
        file.seek(0)
        saved = torch.load(file)
        job = Job(codecs=TOPK)
        job.net.load_state_dict(saved["net"])
        job.optimizer.load_state_dict(saved["optimizer"])
        if feedback:
            job.state.load_state_dict(saved["espresso"])
        job.train(5, seed=1)
        results.append(job.close())
    assert torch.equal(results[0], expected)
    assert not torch.equal(results[1], expected), "feedback must matter"
    job = Job(codecs=TOPK)
    raises(ValueError, "the state has size 3", job.state.load_state_dict, dict(saved["espresso"], size=3))
    raises(TypeError, "save state_dict()", copy.copy, job.state)
    job.close()


def part_dtypes():
    """bf16 gradients, fp16 ones where torch computes with them, and a model of both."""
    for dtype in (torch.bfloat16, torch.float16):
        try:
            nn.Linear(2, 2).to(dtype)(torch.ones(2, 2, dtype=dtype)).sum().backward()
            dist.broadcast(torch.ones(2, dtype=dtype), 0)
        except RuntimeError as why:  # torch 1.13 has no fp16 on CPUs, and its gloo no bf16
            assert torch.__version__ < "2.3", why
            continue
        plain = Job(hook=False, net=Net(dtype), ddp={"find_unused_parameters": True})
        ours = Job(net=copy.deepcopy(plain.net), ddp={"find_unused_parameters": True}, codecs="int8")
        exact = Job(net=copy.deepcopy(plain.net), ddp={"find_unused_parameters": True})
        assert "int8" in ours.state.context.strategy
        plain.train(20), exact.train(20), ours.train(20)
        expected = plain.close()
        near(expected, exact.close(), 0.02), near(expected, ours.close(), 0.02)


def part_layout():
    """Parameters in another memory format, and a scalar."""

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last)
            self.scale = nn.Parameter(torch.tensor(1.0))
            self.out = nn.Linear(16, 10)

        def forward(self, x):
            return self.out(self.conv(x.view(16, 8, 8, 1).expand(16, 8, 8, 8)).mean((2, 3)) * self.scale)

    for codecs, tolerance in ((None, 1e-6), ("powersgd:rank=9", 1e-4)):
        torch.manual_seed(5)
        net = Conv()
        plain, ours = Job(hook=False, net=copy.deepcopy(net)), Job(net=net, codecs=codecs, min_compress_elements=200)
        assert codecs is None or "conv.weight 1152 powersgd" in ours.state.context.strategy
        plain.train(3), ours.train(3)
        near(plain.close(), ours.close(), tolerance)


def part_groups():
    """A model over a group of ranks, another over all, in one process."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = Job(ddp={"process_group": groups[RANK % 2]}, codecs=TOPK)
    everyone = Job()
    assert mine.state.context.size == 2 and everyone.state.context.size == 4
    data = zip(batches(5), batches(5, seed=2))
    for a, b in data:
        mine.step(*a), everyone.step(*b)
    mine.state.close()
    near(Job(hook=False).close(), Job().close())
    everyone.close()


def part_auto():
    """Strategy auto decides while training goes on; the loss falls."""
    job = Job(codecs=["int4", TOPK], strategy="auto:steps=4", log_level=1)
    losses = []
    for x, y in batches(60):
        losses.append(job.step(x, y))
        job.state.report_loss(losses[-1])
    assert losses[-1] < losses[0]
    job.close()


class Random(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        return torch.full((64,), float(i)) / 48, i % 10


def part_loader():
    """Data loaders that fork do not disturb the ranks."""
    if not os.path.isdir("/dev/shm"):  # of their locks; test_ddp.sh reports it
        return
    job = Job(codecs=TOPK)
    loader = torch.utils.data.DataLoader(Random(), batch_size=16, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for x, y in loader:
            job.step(x, y)
    job.close()


def part_errors():
    raises(ValueError, "has dtype float64: use", Job, net=Net(torch.float64), ddp={"find_unused_parameters": True})
    raises(espresso.EspressoError, "no codec", Job, codecs="nonsense")
    job = Job()
    job.train(2)
    job.state.close()
    with contextlib.suppress(RuntimeError):
        job.train(1)
        raise AssertionError("a closed hook must raise")


def part_hosts():
    plain, ours = Job(hook=False), Job(codecs="none")
    assert ours.state.context.machines == 2 and "inter." in ours.state.context.strategy
    plain.train(5), ours.train(5)
    near(plain.close(), ours.close())


def part_dies():
    job = Job(codecs=TOPK, timeout_ms=20000)
    job.train(2)
    if RANK == 3:
        os._exit(1)
    try:
        job.train(2)
    finally:
        assert isinstance(job.state.error, espresso.PeerError)


def main():
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4096  # so that small models have several buckets
    backend = os.environ.get("TORCH_BACKEND", "gloo")
    if "espresso" in backend:
        espresso.register()
    dist.init_process_group(backend, init_method=f"file://{sys.argv[1]}", rank=RANK, world_size=SIZE)
    parts = [name for name in globals() if name.startswith("part_") and name not in ("part_dies", "part_hosts")]
    if sys.argv[2] != "all":
        parts = ["part_" + name for name in sys.argv[2:]]
    for name in parts:
        start = time.time()
        globals()[name]()
        if not RANK:
            print(f"{name[5:]}: ok ({time.time() - start:.1f} s)", flush=True)
    open_at_exit = Job(codecs=TOPK)
    open_at_exit.train(2)
    if not RANK:
        print(f"torch {torch.__version__}: {len(parts)} parts passed")


main()
