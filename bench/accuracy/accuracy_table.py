"""accuracy_table.py: accuracy.csv and accuracy-ends.csv from the runs of bench/accuracy/accuracy.sh.
Usage: accuracy_table.py FOLDER_OF_RUNS ROWS RESULTS LOAD"""

import json
import math
import os
import re
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tables

TRAINERS = [("gpt-adamw", 300), ("gpt-momentum0.9", 300), ("fashion-momentum0.5", 200), ("fashion-momentum0.9", 200)]
LINKS = ["100mbit,50us", "1gbit,50us", "none"]
SEEDS = (1, 2, 3)
WINDOW = 50 # steps over which a loss is averaged


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
    """The smallest of the rounds' medians, as what disturbs a run only makes it longer. An optimizer, momentum and
    warm-up take next to nothing: rows that differ only in these share the times."""
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


def percent(value):
    return "%+.1f" % value if value < 1000 else "diverged" # not a number, too


def bits(spec):
    """The bits an element of a payload of 2^20 elements, as the codec states them; "" if it does not."""
    command = os.path.join(os.environ.get("BUILD", "build"), "bin", "espresso")
    spec = spec.replace("=M", "=0.9").replace("=W", "=50")
    said = subprocess.run([command, "plugins", spec], capture_output=True, text=True).stdout
    found = re.search(r"payload: +([0-9.e+-]+) bits", said)
    return found.group(1) if found else ""


def kept(path, new, rows):
    """The lines for `path`: new ones, and older ones of trainers and rows that did not run now, in the usual order.
    The last three columns are times: if they were not measured now, they stay."""
    names = [r["name"] for r in rows]
    order = [t for t, _ in TRAINERS]
    at, step = (1, 6) if path.endswith("accuracy.csv") else (2, 1)
    old = [list(row.values())[:len(new[0])] for row in tables.Table(path).rows] if os.path.exists(path) else []
    times = {(line[0], line[at], int(line[step])): line[-3:] for line in old}
    ran = {(line[0], line[at]) for line in new}
    for line in new:
        if not any(line[-3:]):
            line[-3:] = times.get((line[0], line[at], line[step]), line[-3:])
    lines = new + [line for line in old if (line[0], line[at]) not in ran and line[at] in names]
    return sorted(lines, key=lambda line: (order.index(line[0]), names.index(line[at]))) # steps stay in order


def main():
    folder, rows_path, results, load = sys.argv[1:]
    rows = read_rows(rows_path)
    curves, ends = [], []
    for trainer, steps in TRAINERS:
        base = {s: run_of(folder, trainer, s, "fp32") for s in SEEDS}
        for row in rows:
            runs = {s: run_of(folder, trainer, s, row["name"]) for s in SEEDS}
            runs = {s: r for s, r in runs.items() if r and base[s]}
            if not runs:
                continue
            ms = [step_ms(folder, rows, trainer, link, row["name"]) for link in LINKS]
            each = {s: 100 * (r[1] / base[s][1] - 1) for s, r in runs.items()}
            ends.append(
                [trainer, steps, row["name"], percent(sum(each.values()) / len(each))] +
                [percent(each[s]) if s in runs else ""
                 for s in SEEDS] + [len(runs)] + ["%.3f" % runs[s][1] if s in runs else ""
                                                  for s in SEEDS] + ["%.1f" % m if m else "" for m in ms])
            for end in range(25, steps + 1, 25):
                loss = sum(sum(r[0][max(0, end - WINDOW):end]) / min(end, WINDOW) for r in runs.values()) / len(runs)
                curves.append([
                    trainer, row["name"], row["codec"], row["momentum"], row["tensors"],
                    len(runs), end,
                    "%.4f" % loss
                ] + ["%.2f" % (end * m / 1e3) if m else "" for m in ms])
    ends = kept(os.path.join(results, "accuracy-ends.csv"), ends, rows)
    sent = {r["name"]: bits(r["codec"]) for r in rows}
    ends = [line + [sent[line[2]]] for line in ends]
    machine = f"{tables.machine()}; load when it began: {load}; rows that did not run then are of earlier runs"
    tables.write(
        os.path.join(results, "accuracy.csv"),
        tables.csv_lines([
            "bench/accuracy/accuracy.sh: training loss by steps; seconds: steps x the median step on each link", machine
        ], [
            "trainer", "row", "codec", "momentum", "tensors", "seeds", "step", "loss", "seconds_100mbit",
            "seconds_1gbit", "seconds_unshaped"
        ], kept(os.path.join(results, "accuracy.csv"), curves, rows)))
    tables.write(
        os.path.join(results, "accuracy-ends.csv"),
        tables.csv_lines([
            "bench/accuracy/accuracy.sh: what codecs cost in accuracy; 2 machines x 2 ranks; "
            "bench/accuracy/accuracy.rows defines a row",
            machine,
            "to fp32: the loss at the end (gpt: held-out text; fashion: mean of rank 0's last 50 steps) against "
            "fp32's with the same seed",
            "step_ms: from short runs of their own on an emulated link, the smallest of their medians. Learning "
            "rates are fp32's. bits: of an element, as the codec states them for 2^20 elements"
        ], [
            "trainer", "steps", "row", "to_fp32_percent", *(f"seed{s}_percent" for s in SEEDS), "seeds",
            *(f"loss_seed{s}" for s in SEEDS), "step_ms_100mbit", "step_ms_1gbit", "step_ms_unshaped", "bits"
        ], ends))


main()
