"""accuracy_table.py: accuracy.csv and accuracy-ends.csv from the runs of bench/accuracy/accuracy.sh.
Usage: accuracy_table.py FOLDER_OF_RUNS ROWS RESULTS LOAD"""

import glob
import json
import math
import os
import re
import statistics
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tables

TRAINERS = [("gpt-adamw", 300), ("gpt-momentum0.9", 300), ("lstm-momentum0.5", 300), ("fashion-momentum0.5", 200),
            ("fashion-momentum0.9", 200)]
LINKS = {"100mbit": 100e6, "1gbit": 1e9} # bits a second
SEEDS = (1, 2, 3)
WINDOW = 50 # steps over which a loss is averaged
MACHINES = 2
COMMAND = os.path.join(os.environ.get("BUILD", "build"), "bin", "espresso")


def read_rows(path):
    lines = [line.strip() for line in open(path) if line.strip() and line[0] != "#"]
    return [dict(zip(["name", "codec", "momentum", "tensors"], line.split(";"))) for line in lines]


def stem(folder, kind, name):
    return os.path.join(folder, kind + "." + re.sub(r"[^A-Za-z0-9.]", "_", name))


def read_json(path):
    return json.loads(re.sub(r"-?\bnan\b|-?\binf\b", "NaN", open(path + ".json").read()))


def curve(path):
    return [[float(x) for x in line.split(",")] for line in open(path + ".csv")]


def run_of(folder, trainer, seed, name):
    """Losses of all steps, and the loss at the end: held out (gpt, lstm) or of the last steps; None: no such run."""
    path = stem(folder, f"{trainer}.{seed}", name)
    if not os.path.exists(path + ".json"):
        return None
    losses = [row[2] for row in curve(path)]
    bits = read_json(path).get("bits_per_character")
    return losses, bits * math.log(2) if bits is not None else sum(losses[-WINDOW:]) / WINDOW


def model(trainer):
    return trainer.split("-")[0]


def bytes_of(folder, trainer, name):
    """Bytes that a machine sends a step; None: no run of this model and row. What is sent does not depend on the
    optimizer."""
    for kind in [f"{t}.{s}" for t, _ in TRAINERS for s in SEEDS] + [f"size.{t}" for t, _ in TRAINERS]:
        path = stem(folder, kind, name)
        if model(trainer) in kind and os.path.exists(path + ".json"):
            return read_json(path)["inter_bytes_per_step"] / MACHINES
    return None


def shortest_ms(paths):
    """The shortest step of some runs but their first: what disturbs a run only makes steps longer."""
    steps = [[row[1] for row in curve(path[:-5])] for path in paths]
    return min((b - a for at in steps for a, b in zip(at, at[1:])), default=0) * 1e3


def codec_ms(spec, elements):
    """Of a rank's core, as the codec states its times for 2^20 elements: a rank compresses its half of the elements,
    and decompresses the halves of both machines."""
    said = subprocess.run([COMMAND, "plugins", spec], capture_output=True, text=True, check=False).stdout
    unit = {"ns": 1e-6, "us": 1e-3, "ms": 1}
    times = [float(n) * unit[u] for n, u in re.findall(r"(?:compress|decompress) ([0-9.]+) ([a-z]+)", said)]
    return (times[0] / 2 + times[1]) * elements / 2**20 if times and spec != "none" else 0.0


def percent(value):
    return "%+.1f" % value if value < 1000 else "diverged" # not a number, too


def bits(spec):
    """The bits an element of a payload of 2^20 elements, as the codec states them; "" if it does not."""
    said = subprocess.run([COMMAND, "plugins", spec], capture_output=True, text=True, check=False).stdout
    found = re.search(r"payload: +([0-9.e+-]+) bits", said)
    return found.group(1) if found else ""


def plain(spec):
    """The codec without placeholders and warm-up, which `espresso plugins` describes."""
    spec = re.sub(r"^warmup:steps=W,of=\((.*)\)$", r"\1", spec)
    return re.sub(r",warmup=W", "", spec).replace("=M", "=0.9")


def at_step(points, step):
    """The loss after a number of steps, between the curve's points."""
    for (a, x), (b, y) in zip(points, points[1:]):
        if step <= b:
            return x + (y - x) * max(0.0, step - a) / (b - a)
    return points[-1][1]


class Result:
    """A row of a trainer: of runs that are there, and of the earlier CSV for other seeds. A seed always gives the same
    losses."""
    def __init__(self, trainer, row, old):
        self.trainer, self.row, self.loss = trainer, row, {}
        self.percent = {s: old["percent"][s] for s in SEEDS if s in old.get("percent", {})}
        self.points = dict(old.get("points", {}))
        self.bytes = old.get("bytes")

    def add(self, runs, base, steps):
        new = {s: r for s, r in runs.items() if s not in self.percent}
        n, more = len(self.percent), len(new)
        whole = set(runs) >= set(self.percent)
        for end in range(25, steps + 1, 25) if runs and (whole or new) else ():
            of = [sum(r[0][max(0, end - WINDOW):end]) / min(end, WINDOW) for r in (runs if whole else new).values()]
            self.points[end] = statistics.mean(of) if whole else (self.points[end] * n + sum(of)) / (n + more)
        for s, r in runs.items():
            self.percent[s] = 100 * (r[1] / base[s] - 1)
        self.loss = {s: base[s] * (1 + p / 100) for s, p in self.percent.items()}


def read_old(results):
    """What the CSV files have, by trainer and row."""
    old = {}
    path = os.path.join(results, "accuracy-ends.csv")
    for r in tables.Table(path).rows if os.path.exists(path) else []:
        percents = {s: r[f"seed{s}_percent"] for s in SEEDS if r[f"seed{s}_percent"]}
        percents = {s: math.nan if p == "diverged" else float(p) for s, p in percents.items()}
        sent = float(r["bytes"]) if r.get("bytes") else None
        computing = float(r["step_ms_1gbit"]) - sent * 8e3 / LINKS["1gbit"] if sent else math.inf
        old[r["trainer"], r["row"]] = {"percent": percents, "points": {}, "bytes": sent, "computing": computing}
    path = os.path.join(results, "accuracy.csv")
    for r in tables.Table(path).rows if os.path.exists(path) else []:
        if (r["trainer"], r["row"]) in old:
            old[r["trainer"], r["row"]]["points"][int(r["step"])] = float(r["loss"])
    return old


def links_of(of, elements, computing):
    """Adds each result's step times, and the loss at the time when the fastest has done all its steps."""
    for r in of:
        codec = codec_ms(plain(r.row["codec"]), elements)
        r.step_ms = {link: computing + codec + r.bytes * 8e3 / rate for link, rate in LINKS.items()}
    for r in of:
        total = max(r.points)
        until = {link: total * min(o.step_ms[link] for o in of) for link in LINKS}
        points = sorted(r.points.items())
        r.at = {link: at_step(points, until[link] / r.step_ms[link]) for link in LINKS}


def checked(folder, results, computing):
    """How step times measured with emulated links compare with the computed ones, and whether the link dominates."""
    ratios = []
    for r in results:
        for link in LINKS:
            paths = glob.glob(stem(folder, f"time.{r.trainer}.[0-9].{link},50us", "") + "*.json")
            want = os.path.basename(stem("", "", r.row["name"]))[1:] + ".json"
            paths = [p for p in paths if p.split("50us.", 1)[1] == want]
            if paths:
                ratios.append((shortest_ms(paths) / r.step_ms[link], r.step_ms[link] > 4 * computing))
    return ratios


def main():
    folder, rows_path, results, load = sys.argv[1:]
    rows, old, every, ratios = read_rows(rows_path), read_old(results), [], []
    for trainer, steps in TRAINERS:
        base = {s: run_of(folder, trainer, s, "fp32") for s in SEEDS}
        if not all(base.values()):
            sys.exit(f"accuracy_table.py: {trainer} needs runs of fp32 with all seeds")
        base, of = {s: b[1] for s, b in base.items()}, []
        for row in rows:
            r = Result(trainer, row, old.get((trainer, row["name"]), {}))
            runs = {s: run_of(folder, trainer, s, row["name"]) for s in SEEDS}
            r.add({s: x for s, x in runs.items() if x}, base, steps)
            r.bytes = bytes_of(folder, trainer, row["name"]) or r.bytes
            if r.points and r.bytes:
                of.append(r)
        fp32 = next(r for r in of if r.row["name"] == "fp32")
        runs = glob.glob(os.path.join(folder, model(trainer) + "-*.json"))
        computing = min(shortest_ms(runs), old.get((trainer, "fp32"), {}).get("computing", math.inf))
        links_of(of, fp32.bytes / 4, computing)
        ratios += checked(folder, of, computing)
        every += of
    curves, ends = [], []
    for r in every:
        total = max(r.points)
        ends.append([r.trainer, total, r.row["name"], percent(statistics.mean(r.percent.values()))] +
                    [percent(r.percent[s]) if s in r.percent else "" for s in SEEDS] +
                    [len(r.percent), "%.3f" % statistics.mean(r.loss.values()), "%.0f" % r.bytes] +
                    ["%.1f" % r.step_ms[link] for link in LINKS] + ["%.3f" % r.at[link] for link in LINKS] +
                    [bits(plain(r.row["codec"]))])
        for end, loss in sorted(r.points.items()):
            curves.append([r.trainer] + [r.row[k] for k in ("name", "codec", "momentum", "tensors")] +
                          [len(r.percent), end, "%.4f" % loss] +
                          ["%.2f" % (end * r.step_ms[link] / 1e3) for link in LINKS])
    machine = tables.machine().replace("load before: ", f"load before: {load}, after: ")
    all_ratios, linked = [x for x, _ in ratios], [x for x, dominates in ratios if dominates]
    checks = "" if not linked else (
        f"; the shortest steps of {len(ratios)} of them, measured with emulated links under load, four ranks on two "
        f"cores, are {min(linked):.2f} to {max(linked):.2f} times as long where the link takes over three quarters "
        f"({len(linked)}), else up to {max(all_ratios):.2f}")
    path = os.path.join(results, "accuracy-ends.csv")
    before = re.search(r"; the shortest steps of .*", open(path).read()) if os.path.exists(path) else None
    checks = checks or (before.group(0) if before else "")
    step_ms = ("step times are computed, as a loaded machine measures none: the shortest step of all runs of the model "
               "without a link, plus the codec's time as it states it for a core, plus bytes / the link's rate; no "
               "sending while computing, no latency" + checks)
    tables.write(
        os.path.join(results, "accuracy.csv"),
        tables.csv_lines(["bench/accuracy/accuracy.sh: training loss by steps; seconds: steps x the step time on each "
                          "link", machine, step_ms],
                         ["trainer", "row", "codec", "momentum", "tensors", "seeds", "step", "loss"] +
                         [f"seconds_{link}" for link in LINKS], curves))
    tables.write(
        os.path.join(results, "accuracy-ends.csv"),
        tables.csv_lines([
            "bench/accuracy/accuracy.sh: what codecs cost in accuracy; 2 machines x 2 ranks; "
            "bench/accuracy/accuracy.rows defines a row", machine,
            "to_fp32: the loss at the end against fp32's with the same seed; loss: the mean of the seeds (gpt, lstm: "
            "nats a character of held-out text; fashion: of rank 0's last 50 steps). Learning rates are fp32's",
            "bytes: a machine sends a step; bits: of an element, as the codec states them for 2^20 elements; " +
            step_ms,
            "loss_LINK: training loss of rank 0 at the time when the row that is fastest on this link has done all "
            "steps"
        ], ["trainer", "steps", "row", "to_fp32_percent"] + [f"seed{s}_percent" for s in SEEDS] +
                         ["seeds", "loss", "bytes"] + [f"step_ms_{link}" for link in LINKS] +
                         [f"loss_{link}" for link in LINKS] + ["bits"], ends))


main()
