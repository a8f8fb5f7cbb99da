#!/usr/bin/env python3
"""Writes the model files beside it from the architectures (architectures.py): names, shapes and elements in backward order, and
times estimated from the operations and bytes of a stated device. Standard library only; the same bytes on every machine.

    generate.py [--device V100] [--batch N] [--out DIR] [MODEL ...]      all models, V100, the batch of each architecture
    generate.py --check                                                  writes nothing: exit 1 if a file would change
"""
import argparse
import os
import sys

sys.dont_write_bytecode = True  # no folder of compiled files beside the models
import architectures

# operations per second of dense kernels (65% of the peak), bytes per second of streaming kernels (8/9 of the peak)
DEVICES = {
    "V100": ("V100, fp32 at 65% of 15.7 TFLOPS, memory at 8/9 of 900 GB/s, 5 us a kernel", 0.65 * 15.7e12, 800e9),
    "A100": ("A100, TF32 at 65% of 156 TFLOPS, memory at 8/9 of 2039 GB/s, 5 us a kernel", 0.65 * 156e12, 1812e9),
    "H100": ("H100, TF32 at 65% of 495 TFLOPS, memory at 8/9 of 3350 GB/s, 5 us a kernel", 0.65 * 495e12, 2978e9),
}
KERNEL_US = 5.0


class Tensor:
    """One parameter. us, flops: backward's time and operations from the moment the previous one is ready until this one is."""

    def __init__(self, step, us, flops):
        self.name, self.shape, self.elements = step.name, step.shape, architectures.elements(step.shape)
        self.us, self.flops = us, flops


def time_us(device, work):
    """A kernel takes the time of its operations or of its bytes, whichever is longer."""
    _, flops_a_second, bytes_a_second = DEVICES[device]
    return KERNEL_US + 1e6 * max(work.flops / flops_a_second, work.bytes / bytes_a_second)


def backward_of(net, device):
    """The parameters of a net's operations in the order in which their gradients are complete."""
    tensors, us, flops = [], 0.0, 0
    for step in net.backward():
        us += time_us(device, step.work)
        flops += step.work.flops
        if step.name:
            tensors.append(Tensor(step, us, flops))
            us, flops = 0.0, 0
    if tensors:  # backward work after the last gradient counts for it
        tensors[-1].us += us
        tensors[-1].flops += flops
    return tensors


def number(us):
    return ("%.1f" % us).rstrip("0").rstrip(".")


def model_text(arch, device, batch):
    net = arch.build(batch or arch.batch)
    tensors = backward_of(net, device)
    total = sum(t.elements for t in tensors)
    names = {t.name for t in tensors}
    assert len(names) == len(tensors), arch.name + ": a name twice"
    assert total == arch.parameters, "%s: %d parameters, published are %d" % (arch.name, total, arch.parameters)
    forward = sum(time_us(device, w) for w in net.forward())
    update = KERNEL_US + 1e6 * total * arch.update_bytes / DEVICES[device][2]
    lines = ['{', '  "espresso": 1,', '  "model": "%s",' % arch.name,
             '  "source": "%s; derived by planner/models/generate.py",' % arch.source,
             '  "device": "%s",' % DEVICES[device][0], '  "batch": %d,' % (batch or arch.batch),
             '  "parameters": %d,' % total, '  "forward_us": %s,' % number(forward),
             '  "forward_is": "estimate: operations and bytes, as backward",', '  "update_us": %s,' % number(update),
             '  "dtype": "f32",', '  "tensors": [']
    rows = ['    {"name": "%s", "elements": %d, "compute_us": %s, "flops": %d, "shape": [%s]}' %
            (t.name, t.elements, number(t.us), t.flops, ", ".join(str(n) for n in t.shape)) for t in tensors]
    return "\n".join(lines) + "\n" + ",\n".join(rows) + "\n  ]\n}\n"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="V100", choices=sorted(DEVICES))
    parser.add_argument("--batch", type=int, default=0, help="samples a step and rank; 0: each architecture's own")
    parser.add_argument("--out", default=here)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    args = parser.parse_args()
    known = {a.name: a for a in architectures.ALL}
    for name in args.models:
        if name not in known:
            sys.exit("no model '%s'; there are: %s" % (name, ", ".join(known)))
    if args.batch < 0:
        sys.exit("--batch %d: expected at least 1" % args.batch)
    # the LSTM's source states 66M parameters, with the words of PTB and without tied embeddings
    assert round(architectures.word_lstm(10000, False)(1).parameters(), -6) == 66000000
    stale = 0
    for name in args.models or known:
        path = os.path.join(args.out, name + ".json")
        text = model_text(known[name], args.device, args.batch)
        if args.check:
            there = open(path, encoding="ascii").read() if os.path.exists(path) else ""
            if there != text:
                print("%s: would change" % path)
                stale = 1
            continue
        with open(path + ".new", "w", encoding="ascii", newline="\n") as f:
            f.write(text)
        os.replace(path + ".new", path)
    sys.exit(stale)


if __name__ == "__main__":
    main()
