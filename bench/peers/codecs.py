#!/usr/bin/env python3
"""codecs.py: speed of codecs against the same methods composed of numpy's or PyTorch's operations, as GRACE does.

Compress with error feedback unless @none follows, which for numpy and PyTorch means: add the residual, compress,
decompress, subtract. One thread; CPU time; the best of REPEATS, interleaved; GB/s of f32 input. Numbers as in
bench/micro/codec.c. Without PyTorch, its columns are empty.
    python3 bench/peers/codecs.py [LOG] [REPEATS] >bench/results/peers/codecs.csv    (make bench first)
"""
import csv
import subprocess
import sys
import time

import numpy as np

try:
    import torch

    torch.set_num_threads(1)
except ImportError:
    torch = None

LOG, REPEATS = [int(a) for a in sys.argv[1:] + ["22", "3"][len(sys.argv) - 1 :]]


class Numpy:
    name, at, random = "numpy", np, np.random.default_rng(1)

    def cast(self, x, kind):
        return x.astype(kind)

    def bits(self, x):
        return x.view(np.int32)

    def floats(self, x):
        return x.view(np.float32)

    def rand(self, x):
        return self.random.random(x.shape, dtype=np.float32)

    def largest(self, x, k):
        return np.argpartition(np.abs(x), -k)[-k:]

    def some(self, n, k):
        return self.random.permutation(n)[:k]


class Torch:
    name, at = "torch", torch

    def cast(self, x, kind):
        return x.to(getattr(torch, kind))

    def bits(self, x):
        return x.view(torch.int32)

    def floats(self, x):
        return x.view(torch.float32)

    def rand(self, x):
        return torch.rand_like(x)

    def largest(self, x, k):
        return torch.topk(x.abs(), k, sorted=False)[1]

    def some(self, n, k):
        return torch.randperm(n)[:k]


# Each function returns what is sent, and a function that decompresses it.
def fp16(p, x):
    sent = p.cast(x, "float16")
    return sent, lambda: p.cast(sent, "float32")


def signsgd(p, x):
    sent = p.cast(x >= 0, "uint8")
    return sent, lambda: p.cast(sent, "float32") * 2 - 1


def efsignsgd(p, x):
    sent, mean = p.cast(x >= 0, "uint8"), p.at.abs(x).mean()
    return sent, lambda: (p.cast(sent, "float32") * 2 - 1) * mean


def onebit(p, x):
    low = x < 0
    means = x[low].mean(), x[~low].mean()
    sent = p.cast(low, "uint8")
    return sent, lambda: p.at.where(p.cast(sent, "bool"), means[0], means[1])


def dynamic8(p, x, tables={}):
    if p.name not in tables:
        value = [0.0]
        for i in range(7):
            value += [10.0 ** (i - 7) * (1 + 9 * (j + 0.5) / 2**i) for j in range(2**i)]
        value = np.array(value, dtype=np.float32)
        edge = (value[1:] + value[:-1]) / 2
        tables[p.name] = (value, edge) if p.name == "numpy" else (torch.from_numpy(value), torch.from_numpy(edge))
    value, edge = tables[p.name]
    size = p.at.abs(x)
    top = size.max()
    code, low = p.cast(p.at.searchsorted(edge, size / top), "uint8"), x < 0
    sent = code + p.cast(low, "uint8") * 128
    return sent, lambda: value[p.cast(sent & 127, "int64")] * top * (1 - 2 * p.cast(sent >> 7, "float32"))


def natural(p, x):
    bits = p.bits(x)
    noise = p.cast(p.rand(x) * 8388608, "int32")
    sent = p.cast(p.at.clip(((bits & 0x7FFFFFFF) + noise >> 23) - 18, 0, 127) + p.cast(x < 0, "int32") * 128, "uint8")

    def back():
        wide = p.cast(sent, "int32")
        return p.floats((wide & 127) + 18 << 23) * (1 - 2 * p.cast(wide >> 7, "float32"))

    return sent, back


def terngrad(p, x):
    limit = 2.5 * x.std()
    x = p.at.clip(x, -limit, limit)
    size = p.at.abs(x)
    top = size.max()
    sent = p.cast(p.at.sign(x) * (p.rand(x) * top < size), "int8")
    return sent, lambda: p.cast(sent, "float32") * top


def qsgd(p, x):
    norm = p.at.linalg.norm(x)
    level = p.at.abs(x) * (127 / norm)
    low = p.at.floor(level)
    sent = p.cast((low + (p.rand(x) < level - low)) * p.at.sign(x), "int8")
    return sent, lambda: p.cast(sent, "float32") * (norm / 127)


def maxmin(p, x):
    low, high = x.min(), x.max()
    step = (high - low) / 15
    sent = p.cast((x - low) / step + 0.5, "uint8")
    return sent, lambda: p.cast(sent, "float32") * step + low


def sparse(p, x, at):
    sent, n = x[at], x.shape[0]

    def back():
        out = p.at.zeros(n, dtype=p.at.float32)
        out[at] = sent
        return out

    return sent, back


def topk(p, x):
    return sparse(p, x, p.largest(x, x.shape[0] // 100))


def randomk(p, x):
    return sparse(p, x, p.some(x.shape[0], x.shape[0] // 100))


def threshold(p, x):
    return sparse(p, x, p.at.where(p.at.abs(x) > 1)[0])


METHODS = {
    "fp16": fp16, "signsgd@none": signsgd, "onebit": onebit, "efsignsgd": efsignsgd, "dynamic8": dynamic8,
    "maxmin": maxmin, "natural@none": natural, "terngrad@none": terngrad, "qsgd@none": qsgd,
    "threshold:value=1": threshold, "topk": topk, "randomk": randomk,
}  # fmt: skip


def seconds(p, x, e, method, feedback):
    start = time.thread_time()
    phi = x + e if feedback else x
    sent, back = method(p, phi)
    left = phi - back() if feedback else e
    return time.thread_time() - start, left, sent


def main():
    print("# bench/peers/codecs.py %d %d: compress, GB/s of f32 input, one thread, CPU time, best" % (LOG, REPEATS))
    print(subprocess.check_output(["sh", "bench/head.sh"], text=True), end="")
    x = np.random.default_rng(1).uniform(-0.5, 0.5, (4, 2**LOG)).sum(axis=0).astype(np.float32)
    libraries = [(Numpy(), x)] + ([(Torch(), torch.from_numpy(x))] if torch else [])
    best = {}
    for _ in range(REPEATS):
        ours = subprocess.check_output(["build/bench/codec", "-n", "1", "-l", str(LOG), *METHODS], text=True)
        for row in csv.DictReader(line for line in ours.splitlines() if line[0] != "#"):
            key = "espresso", row["codec"]
            best[key] = min(best.get(key, 1e9), 1e-6 * float(row["compress_us"]))
        for p, like in libraries:
            for name, method in METHODS.items():
                e = like * 0
                for _ in range(2):  # the first one fills the residual
                    taken, e, _ = seconds(p, like, e, method, not name.endswith("@none"))
                best[p.name, name] = min(best.get((p.name, name), 1e9), taken)
    print("# numpy %s, torch %s" % (np.__version__, torch.__version__ if torch else "-"))
    print("elements,codec,espresso_gbps,numpy_gbps,torch_gbps,to_numpy,to_torch")
    for name in METHODS:
        took = [best.get((who, name)) for who in ("espresso", "numpy", "torch")]
        rates = ["%.2f" % (4e-9 * 2**LOG / t) if t else "" for t in took]
        ratios = ["%.1f" % (t / took[0]) if t else "" for t in took[1:]]
        print(",".join([str(2**LOG), name, *rates, *ratios]))


if __name__ == "__main__":
    main()
