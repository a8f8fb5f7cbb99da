#!/usr/bin/env python3
"""plan_doc.py: puts the results of bench/plan into the marked parts of docs/plan/planner-results.md, so that its numbers are the measured ones.

    python3 bench/planner/plan_doc.py        reads bench/results/planner/plan-speed.txt and plan-quality.txt
"""
import os
import re

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
MODELS = ("vgg16", "resnet101", "ugatit", "bert-base", "gpt2", "lstm", "bert-large", "ncf", "resnet50")


def read(name):
    with open(os.path.join(ROOT, name)) as f:
        return f.read()


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] +
                     ["| " + " | ".join(r) + " |" for r in rows])


def pruning(speed):
    rows = []
    number = r"([\d.]+)"
    for model in ("bert-base", "resnet101"):
        for devices, words in ((1, "one device"), (2, "two devices")):
            m = re.search(rf"^{model}\s+{devices}:\s+(\d+) options, all timed\s+{number} us a size; pruned by loads: {number} left, "
                          rf"{number} us; loads and ends \(used\): {number} left, {number} us; exact: {number} left, {number} us",
                          speed, re.M)
            options, timed, loads, _, ends, ends_us, exact, exact_us = m.groups()
            rows.append([f"{words}, {model}", options] +
                        [f"{float(x):.0f}" for x in (exact, ends, loads, timed, ends_us, exact_us)])
    return "Options left by each rule, and microseconds for one size:\n\n" + table(
        ["", "options", "exact", "loads and ends", "loads", "no pruning, us", "loads and ends, us", "exact, us"], rows)


def parts(speed, one, two):
    rows = []
    for model in MODELS[:6]:
        m = re.search(rf"^{model}\s+\d+ ops: ready order\s+([\d.]+) ns an op, fixed sequence\s+([\d.]+); a trial\s+(\d+) ns, against\s+"
                      rf"(\d+) in ready order \(.*?\) and\s+(\d+) replayed \(.*?\); (\d+) of (\d+) units", speed, re.M)
        generate, replay, trial, generated, replayed, passed, units = m.groups()
        without = [re.search(rf"^{model}\s+{d}: step .*?\(([-+\d.]+)%\)", speed, re.M).group(1) for d in (1, 2)]
        naive = ["".join(re.search(rf"^{model}\s.*\|\s+(~?)\s*[\d.]+\s+(\d+x)", x, re.M).groups()) for x in (one, two)]
        rows.append([model, f"{generate} / {replay}", f"{int(generated) / 1000:.1f} / {int(replayed) / 1000:.1f} / {int(trial) / 1000:.2f}",
                     f"{passed} of {units}", f"{without[0]}% / {without[1]}%", f"{naive[0]} / {naive[1]}"])
    return table(["model", "ready order / fixed order, ns an op", "one evaluation in ready order / fixed order / incrementally, us",
                  "units skipped", "step without the bound's prices, one / two devices", "naive over ours, one / two devices"], rows)


def times(speed, one, two):
    def row(part, model):
        m = re.search(rf"^{model}\s+(\d+)\s+\d+ \|\s+([\d.]+)\s+[\d.]+\s+(\d+) \|[^|]*\|\s+([\d.]+)", part, re.M)
        return m.group(1), f"{m.group(2)} ({m.group(4)}; {m.group(3)})"

    published = {m.group(1): m.groups() for m in
                 re.finditer(r"^(\S+)\s+(\d+) \|\s+([\d.]+)\s+([\d.]+)x \|\s+([\d.]+)\s+([\d.]+)x$", speed, re.M)}
    rows = []
    for model in MODELS:
        tensors, first = row(one, model)
        p = published.get(model)
        rows.append([model, tensors, first, row(two, model)[1], p[1] if p else "-", f"{p[3]}x / {p[5]}x" if p else "-"])
    late = re.findall(r"above the target: (\d+) of the models, (\d+) in their slowest case", speed)
    large = re.findall(r"^\s*2000 tensors,\s+(\d+) sizes \|\s+([\d.]+) ms.*?\|\s+([\d.]+) ms", speed, re.M)
    machine = re.search(r"^machine: (.*?)(; one thread)?$", speed, re.M).group(1)
    return "\n".join([
        f"Planning time, everything included, one thread ({machine}):", "",
        table(["model", "tensors", "one device, ms (worst case; target)", "two devices, ms (worst case; target)",
               "published planner, ms", "ratio, everything / search only"], rows), "",
        f"Worst case: the slowest of 3 codecs x 2 testbeds at 64 GPUs. Above the targets: {late[0][0]} of 9 models with one device "
        f"({late[0][1]} in their worst case), {late[1][0]} with two ({late[1][1]}).",
        "2,000 synthetic tensors: " + "; ".join(f"{n} sizes: {a} ms with one device, {b} with two" for n, a, b in large) +
        " (targets 100 and 500). To 5,000 tensors: `plan-speed.txt`."])


def summary(quality):
    lines = re.search(r"^usual    espresso\+ slower.*?(?=\n\n)", quality, re.M | re.S).group(0).split("\n")
    return "\n".join("    " + line for line in lines)


def paper(quality):
    text = quality[quality.index("Beside the paper's"):]
    rows = []
    for line in re.search(r"^model\s+net\s+codec.*?\n(.*?)\n\n", text, re.M | re.S).group(1).split("\n"):
        cells = [re.sub(r"\s+", " ", c.strip()) for c in line.split("|")]
        rows.append([", ".join(cells[0].split())] + cells[1:])
    return table(["model, testbed, codec", "over fp32", "over BytePS-Compress", "over HiTopKComm", "over HiPress", "fp32 scaling",
                  "above the Upper Bound"], rows)


def main():
    speed, quality = read("bench/results/planner/plan-speed.txt"), read("bench/results/planner/plan-quality.txt")
    one, two = speed.split("Two devices")[0], speed.split("Two devices")[1].split("Beside")[0]
    filled = {"pruning": pruning(speed), "parts": parts(speed, one, two), "speed": times(speed, one, two), "quality": summary(quality),
              "paper": paper(quality)}
    path = os.path.join(ROOT, "docs/plan/planner-results.md")
    text = read("docs/plan/planner-results.md")
    for name, block in filled.items():
        start, end = f"<!-- measured: {name} -->\n", f"<!-- /{name} -->"
        a, b = text.index(start) + len(start), text.index(end)
        text = text[:a] + "\n" + block + "\n\n" + text[b:]
    with open(path + ".tmp", "w") as f:
        f.write(text)
    os.replace(path + ".tmp", path)
    print("docs/plan/planner-results.md")


if __name__ == "__main__":
    main()
