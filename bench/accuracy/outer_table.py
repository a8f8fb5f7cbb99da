"""outer_table.py: outer.csv from the runs of bench/accuracy/outer.sh, whose rows are the standard input.
Usage: outer_table.py FOLDER_OF_RUNS RESULT STEPS LOAD"""

import glob
import json
import os
import re
import statistics
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tables

LINKS = {"10mbit,40ms": "10mbit", "100mbit,50us": "100mbit", "1gbit,50us": "1gbit"}
POINTS, RANKS = 20, 4


def stem(name):
    return name.replace(" ", "_")


def run(work, model, seed, name):
    return os.path.join(work, f"{model}.{seed}.{stem(name)}.json")


def curve(path):
    return [[float(x) for x in line.split(",")] for line in open(path + ".csv")]


def members(outer):
    return {key: int(value) for key, value in re.findall(r"(every|fragments|delay)=(\d+)", outer)}


def turns(outer):
    """The steps of a round, from 1, in which a fragment is pushed; every step without an outer loop."""
    steps = members(outer)
    every, parts = steps.get("every", 1), steps.get("fragments", 1)
    return [(f + 1) * every // parts for f in range(parts)]


def shortest(work, model, link, rows):
    """Milliseconds of the shortest step without communication, and by (codec, fragments, in every step or not) of the
    shortest steps with it, a number for each fragment. What disturbs a run only makes steps longer."""
    alone, with_link = 1e9, {}
    for name, codec, outer, _ in rows:
        every, own = members(outer).get("every", 1), turns(outer)
        for path in glob.glob(os.path.join(work, f"time.{model}.*.{link}.{stem(name)}.json")):
            at = [0] + [row[1] * 1e3 for row in curve(path[:-5])]
            steps = list(enumerate(b - a for a, b in zip(at, at[1:])))[0 if outer else 2:]
            alone = min([alone] + [ms for k, ms in steps if k % every + 1 not in own])
            waits = [min(ms for k, ms in steps if k % every + 1 == turn) for turn in own]
            before = with_link.setdefault((codec, len(own), not outer), waits)
            with_link[codec, len(own), not outer] = [min(x) for x in zip(before, waits)]
    return alone, with_link


def mean_step(alone, with_link, codec, outer):
    """A delay hides some of each fragment's time. The runs that measured it had none."""
    waits, steps = with_link[codec, len(turns(outer)), not outer], members(outer)
    if not outer:
        return waits[0]
    return alone + sum(max(0, ms - alone - steps.get("delay", 0) * alone) for ms in waits) / steps["every"]


def loss_at(losses, steps):
    """Training loss around a step, from the means of each `every` steps."""
    every = len(losses) // POINTS
    k = int(min(max(steps, every), len(losses))) // every
    return statistics.mean(losses[(k - 1) * every:k * every])


def main():
    work, result, steps, load = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    rows = [line.strip().split(";") for line in sys.stdin if line.strip()]
    lines = []
    for model in ("gpt", "lstm"):
        bits, losses, moved, step_ms = {}, {}, {}, {}
        whole = [seed for seed in range(1, 10) if all(os.path.exists(run(work, model, seed, r[0])) for r in rows)]
        for name, _, _, _ in rows:
            paths = [run(work, model, seed, name) for seed in whole]
            ends = [json.load(open(path)) for path in paths]
            bits[name] = [end["bits_per_character"] for end in ends]
            moved[name] = statistics.mean(end["inter_bytes_per_step"] for end in ends) / RANKS
            losses[name] = [statistics.mean(x) for x in zip(*([r[2] for r in curve(p[:-5])] for p in paths))]
        found = {link: shortest(work, model, link, rows) for link in LINKS}
        alone = min(f[0] for f in found.values())
        for name, codec, outer, _ in rows:
            for link in LINKS:
                step_ms[name, link] = mean_step(alone, found[link][1], codec, outer)
        fp32 = statistics.mean(bits["fp32"])
        for name, codec, outer, _ in rows:
            to_fp32 = [100 * (b / a - 1) for a, b in zip(bits["fp32"], bits[name])]
            mean = statistics.mean(bits[name])
            line = [model, len(whole), name, codec, outer, f"{moved[name]:.0f}", f"{moved['fp32'] / moved[name]:.1f}"]
            line += [f"{mean:.4f}", f"{100 * (mean / fp32 - 1):+.2f}", f"{min(to_fp32):+.2f}"]
            line += [f"{max(to_fp32):+.2f}", f"{alone:.2f}"]
            for link in LINKS:
                until = steps * min(step_ms[other, link] for other, _, _, _ in rows)
                done = min(steps, until / step_ms[name, link])
                busy = 100 * min(1, alone / step_ms[name, link])
                line += [f"{step_ms[name, link]:.2f}", f"{busy:.1f}", f"{done:.0f}"]
                line += [f"{loss_at(losses[name], done):.4f}"]
            line += [f"{loss_at(losses[name], steps * (k + 1) // POINTS):.4f}" for k in range(POINTS)]
            lines.append(line)
    columns = ["model", "seeds", "method", "codec", "outer", "bytes_per_step", "times_fewer", "held_out_bits"]
    columns += ["to_fp32_percent", "to_fp32_least", "to_fp32_most", "alone_ms"]
    for name in LINKS.values():
        columns += [f"step_ms_{name}", f"busy_percent_{name}", f"steps_{name}", f"loss_{name}"]
    columns += [f"loss_step_{steps * (k + 1) // POINTS}" for k in range(POINTS)]
    machine = tables.machine().replace("load before: ", f"load before: {load}, after: ")
    head = [
        f"bench/accuracy/outer.sh: outer loops against averaging in every step; {RANKS} workers on {RANKS} machines, "
        f"{steps} steps", machine,
        "bytes_per_step: received by a rank; held_out_bits: a character, after all steps; alone_ms: a step without "
        "communication; step_ms: the mean of a round's steps, of the shortest of each kind; busy_percent: alone_ms / "
        "step_ms",
        "steps_LINK, loss_LINK: steps done when the method that is fastest on this link has done all, and training "
        "loss of rank 0 there", "loss_step_N: training loss of rank 0, mean of the steps since the column before and "
        "of the seeds"
    ]
    tables.write(result, tables.csv_lines(head, columns, lines))


if __name__ == "__main__":
    main()
