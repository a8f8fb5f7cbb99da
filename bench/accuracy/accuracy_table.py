"""accuracy_table.py: bench/results/accuracy/accuracy.csv and accuracy.txt from the runs of bench/accuracy/accuracy.sh.
Usage: accuracy_table.py FOLDER_OF_RUNS ROWS RESULTS LOAD"""

import json
import math
import os
import platform
import re
import sys

TRAINERS = [("gpt-adamw", 300), ("gpt-momentum0.9", 300), ("fashion-momentum0.5", 200), ("fashion-momentum0.9", 200)]
LINKS = ["100mbit,50us", "1gbit,50us", "none"]
WINDOW = 50  # steps over which a loss is averaged


def read_rows(path):
    lines = [line.strip() for line in open(path) if line.strip() and line[0] != "#"]
    return [dict(zip(["name", "codec", "momentum", "tensors"], line.split(";"))) for line in lines]


def stem(folder, kind, name):
    return os.path.join(folder, kind + "." + re.sub(r"[^A-Za-z0-9.]", "_", name))


def run_of(folder, trainer, seed, name):
    """Losses of all steps, and the loss at the end: held out (gpt) or of the last steps; None: there is no such run."""
    path = stem(folder, f"{trainer}.{seed}", name)
    if not os.path.exists(path + ".json"):
        return None
    losses = [float(line.split(",")[2]) for line in open(path + ".csv")]
    text = re.sub(r"-?\bnan\b|-?\binf\b", "NaN", open(path + ".json").read())
    bits = json.loads(text).get("bits_per_character")
    return losses, bits * math.log(2) if bits is not None else sum(losses[-WINDOW:]) / WINDOW


def step_ms(folder, rows, trainer, link, name):
    """The smallest of the rounds' medians, as what disturbs a run only makes it longer. An optimizer, momentum and warm-up take next
    to nothing: rows that differ only in these share the times."""
    kind = "gpt-adamw" if trainer.startswith("gpt") else "fashion-momentum0.5"
    for other in [name] + [r["name"] for r in rows if r["name"].split(",")[0] == name.split(",")[0]]:
        times = []
        for k in range(1, 10):
            path = stem(folder, f"time.{kind}.{k}.{link}", other) + ".json"
            if os.path.exists(path):
                times.append(json.loads(re.sub(r"-?\bnan\b|-?\binf\b", "NaN", open(path).read()))["settled_step_ms"])
        if times:
            return min(times)
    return None


def main():
    folder, rows_path, results, load = sys.argv[1:]
    rows = read_rows(rows_path)
    csv = ["trainer,row,codec,momentum,tensors,seeds,step,loss,seconds_100mbit,seconds_1gbit,seconds_unshaped"]
    txt = []
    for trainer, steps in TRAINERS:
        base = {s: run_of(folder, trainer, s, "fp32") for s in (1, 2, 3)}
        txt.append(f"{trainer}: {steps} steps; fp32 ends at a loss of " + ", ".join("%.3f" % b[1] for b in base.values() if b))
        txt.append("%-36s %9s %20s %6s %26s" % ("", "to fp32", "each seed", "seeds", "ms a step at 100M, 1G, -"))
        for row in rows:
            runs = {s: run_of(folder, trainer, s, row["name"]) for s in (1, 2, 3)}
            runs = {s: r for s, r in runs.items() if r and base[s]}
            if not runs:
                continue
            ms = [step_ms(folder, rows, trainer, link, row["name"]) for link in LINKS]
            each = [100 * (r[1] / base[s][1] - 1) for s, r in runs.items()]
            text = ["%+.1f" % e if e < 1000 else "diverged" for e in [x if x == x else 1e9 for x in each]]
            mean = sum(each) / len(each)
            txt.append("%-36s %9s %20s %6d %26s" % (row["name"], "%+.1f %%" % mean if mean < 1000 else "diverged", " ".join(text),
                                                   len(runs), " ".join("%.1f" % m if m else "-" for m in ms)))
            for end in range(25, steps + 1, 25):
                loss = sum(sum(r[0][max(0, end - WINDOW):end]) / min(end, WINDOW) for r in runs.values()) / len(runs)
                seconds = ["%.2f" % (end * m / 1e3) if m else "" for m in ms]
                csv.append(",".join([trainer, '"%s"' % row["name"], '"%s"' % row["codec"], row["momentum"], row["tensors"],
                                     str(len(runs)), str(end), "%.4f" % loss] + seconds))
        txt.append("")
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown CPU")
    head = ["What codecs cost in accuracy: bench/accuracy/accuracy.sh; 2 machines x 2 ranks, bench/accuracy/accuracy.rows says what a row is",
            f"machine: {os.cpu_count()} cores, {cpu}, {platform.system()} {platform.release()}; {load}",
            "to fp32: the loss at the end (gpt: held-out text; fashion: mean of rank 0's last 50 steps) against fp32's with the same seed,",
            "which has the same data and start; fashion's differ by up to 3% where numbers are only rounded.",
            "Learning rates are fp32's. ms a step: from short runs of their own on an emulated link, the smaller of two medians; the machine",
            "was busy with other work, so that only large differences mean anything. Time to a step = steps x that.",
            ""]
    open(os.path.join(results, "accuracy.txt"), "w").write("\n".join(head + txt).rstrip("\n") + "\n")
    open(os.path.join(results, "accuracy.csv"), "w").write("\n".join(csv) + "\n")


main()
