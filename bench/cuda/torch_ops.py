"""torch_ops.py: the codecs' methods composed from PyTorch operators, as a trainer without this library would write
them, for comparison with bench/cuda/codecs.c: same sizes, normal gradients of 128 MiB or more that take turns, with
error feedback, times by CUDA events.
Prints CSV with the same columns.

    python3 bench/cuda/torch_ops.py
"""
import itertools
import sys

try:
    import torch
except ImportError:
    print("skipped: this python3 has no PyTorch")
    sys.exit(77)

WARM, RUNS = 5, 21
ROTATED_BYTES = 1 << 27


def topk(g, e, ratio=0.01):
    phi = g + e
    k = max(1, int(ratio * phi.numel() + 0.999999))
    index = torch.topk(phi.abs(), k, sorted=False).indices
    values = phi[index]
    e.copy_(phi)
    e[index] = 0
    return values, index


def efsignsgd(g, e):
    phi = g + e
    scale = phi.abs().mean()
    sign = phi >= 0
    e.copy_(phi - torch.where(sign, scale, -scale))
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=g.device)
    return (sign.view(-1, 8).to(torch.uint8) * weights).sum(1, dtype=torch.uint8), scale


def int8(g, e, block=128):
    phi = (g + e).view(-1, block)
    unit = phi.abs().amax(1, keepdim=True) / 127
    level = torch.round(phi / unit.clamp_min(1e-30)).to(torch.int8)
    e.copy_((phi - level * unit).view(-1))
    return level, unit


def fp16(g, e):
    phi = g + e
    half = phi.to(torch.float16)
    e.copy_(phi - half.float())
    return half


def chunktopk(g, e, chunk=4096, k=64):
    phi = (0.95 * e + g).view(-1, chunk)
    index = torch.topk(phi.abs(), k, dim=1, sorted=False).indices
    values = phi.gather(1, index)
    e.copy_(phi.reshape(-1))
    e.view(-1, chunk).scatter_(1, index, 0)
    return values, index


def clone(g, e):
    return g.clone()


METHODS = {"copy": clone, "topk": topk, "efsignsgd": efsignsgd, "int8": int8, "fp16": fp16, "chunktopk": chunktopk}


def measure(run):
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    for _ in range(WARM):
        run()
    times = []
    for _ in range(RUNS):
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    begin.record()
    for _ in range(RUNS):
        run()
    end.record()
    end.synchronize()
    return sorted(times)[RUNS // 2], begin.elapsed_time(end) * 1e3 / RUNS


def main():
    print("codec,elements,call,feedback,payloads,us,us_in_a_row,input_GBps,of_copy")
    for log in range(14, 27, 4):
        n = 1 << log
        many = [torch.randn(n, device="cuda") * 0.6 for _ in range(max(1, ROTATED_BYTES // (4 * n)))]
        copied = 0.0
        for name, method in METHODS.items():
            turns = itertools.cycle([(g, torch.zeros_like(g)) for g in many])
            us, row = measure(lambda: method(*next(turns)))
            copied = copied or row
            print(f'"torch {name}",{n},compress,1,1,{us:.2f},{row:.2f},{4e-3 * n / row:.1f},{copied / row:.3f}',
                  flush=True)


main()
