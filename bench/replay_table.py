#!/usr/bin/env python3
"""replay_table.py: sums up what bench/replay.sh ran in replay.txt, and lists every case in replay.csv (standard library only).

    python3 bench/replay_table.py FOLDER_OF_CASES FOLDER_OF_RESULTS
"""
import csv
import json
import os
import re
import sys

MODELS = ["vgg16", "resnet101", "ugatit", "bert-base", "gpt2", "lstm"]
COLUMNS = ["model", "n", "machines", "inter", "ratio_asked", "ratio", "elements_scale", "time_scale", "cores",
           "stolen_percent", "load_percent", "strategy", "outcome", "predicted_us", "measured_us", "p10_us", "p90_us",
           "error_percent", "intra_bytes", "inter_bytes", "exposed_communication_us", "exposed_compression_us",
           "fastest", "chosen", "chosen_within_spread"]
TARGETS = {4: (10, 10), 8: (10, 20)}


class Case:
    """One model, number of ranks and ratio: what was measured, and what was refused, with the reason."""

    def __init__(self, folder, name):
        self.name = name
        self.model, ranks, self.ratio = re.match(r"(.+)-(\d+)-([\d.]+)$", name).groups()
        self.n = int(ranks)
        self.result, self.refused, self.failed = None, [], ""
        at = os.path.join(folder, name)
        if os.path.exists(at + ".json"):
            with open(at + ".json") as f:
                self.result = json.load(f)
        if os.path.exists(at + ".refused"):
            with open(at + ".refused") as f:
                lines = [line.strip() for line in f if line.strip()]
            self.refused = [tuple(line.split(": ", 1)) if ": " in line else ("case", line) for line in lines]
        if os.path.exists(at + ".failed"):
            with open(at + ".failed") as f:
                self.failed = f.read().strip() or "no reason given"

    @property
    def strategies(self):
        return self.result["strategies"] if self.result else []

    def key(self):
        order = MODELS.index(self.model) if self.model in MODELS else len(MODELS)
        return (self.n, float(self.ratio), order, self.model)

    def title(self):
        return f"{self.model}, {self.n} ranks, ratio {self.ratio}"

    def outcome(self, s):
        if s["noisy"]:
            return "noisy"
        return "ok" if s["error_percent"] is not None else "not run"


def read_cases(folder):
    names = {re.sub(r"\.(json|refused|failed)$", "", f) for f in os.listdir(folder)
             if re.match(r".+-\d+-[\d.]+\.(json|refused|failed)$", f)}
    cases = [Case(folder, name) for name in names]
    return sorted((c for c in cases if c.result or c.refused or c.failed), key=Case.key)


def write_csv(cases, path):
    with open(path + ".tmp", "w", newline="") as f:
        out = csv.DictWriter(f, COLUMNS, restval="", lineterminator="\n")
        out.writeheader()
        for c in cases:
            shared = {"model": c.model, "n": c.n, "ratio_asked": c.ratio}
            if c.result:
                for key in ("machines", "inter", "ratio", "elements_scale", "time_scale", "cores", "stolen_percent",
                            "load_percent"):
                    value = c.result[key]
                    shared[key] = f"{value:.6g}" if isinstance(value, float) else value
            for s in c.strategies:
                us = {"predicted_us": s["predicted_us"], "measured_us": s["measured_us"]["median"],
                      "p10_us": s["measured_us"]["p10"], "p90_us": s["measured_us"]["p90"],
                      "exposed_communication_us": s["exposed_communication_us"],
                      "exposed_compression_us": s["exposed_compression_us"]}
                row = {k: "" if v is None else f"{v:.3f}" for k, v in us.items()}
                error = s["error_percent"]
                out.writerow({**shared, **row, "strategy": s["name"], "outcome": c.outcome(s),
                              "error_percent": "" if error is None else f"{error:.3f}",
                              "intra_bytes": s["bytes"]["intra"], "inter_bytes": s["bytes"]["inter"],
                              "fastest": int(s["name"] == c.result["fastest"]),
                              "chosen": int(s["name"] == c.result["chosen"]),
                              "chosen_within_spread": {True: 1, False: 0, None: ""}[c.result["chosen_within_spread"]]})
            for name, _ in c.refused:
                out.writerow({**shared, "strategy": name, "outcome": "refused"})
            if c.failed:
                out.writerow({**shared, "strategy": "case", "outcome": "failed"})
    os.replace(path + ".tmp", path)


def quantile(sorted_values, share):
    """Between neighbours in proportion."""
    at = share * (len(sorted_values) - 1)
    low = int(at)
    high = min(low + 1, len(sorted_values) - 1)
    return sorted_values[low] + (at - low) * (sorted_values[high] - sorted_values[low])


def pair(c):
    """Measured times of the planner's choice and of the fastest strategy."""
    times = {s["name"]: s["measured_us"] for s in c.strategies}
    return times[c.result["chosen"]], times[c.result["fastest"]]


def overlaps(c):
    chosen, fastest = pair(c)
    return chosen["p10"] <= fastest["p90"]


def loss(c):
    chosen, fastest = pair(c)
    return chosen["median"] / fastest["median"] - 1


def summary_line(label, cases, target=None):
    errors = sorted(abs(s["error_percent"]) for c in cases for s in c.strategies if c.outcome(s) == "ok")
    noisy = sum(c.outcome(s) == "noisy" for c in cases for s in c.strategies)
    refused = sum(len(c.refused) for c in cases)
    verdicts = [c.result["chosen_within_spread"] for c in cases if c.result]
    known = [v for v in verdicts if v is not None]
    line = f"{label:24}{len(cases):6}{sum(bool(c.result) for c in cases):5}{len(errors):9}{noisy:7}{refused:9}"
    if errors:
        line += f"{quantile(errors, 0.5):9.2f}%{quantile(errors, 0.9):9.2f}%{errors[-1]:9.2f}%"
    else:
        line += f"{'-':>10}{'-':>10}{'-':>10}"
    line += f"{f'{sum(known)} of {len(known)}':>12}" + (f"{100 * sum(known) / len(known):6.0f}%" if known else f"{'-':>7}")
    for holds in (overlaps, lambda c: loss(c) <= 0.01):
        yes = [holds(c) for c in cases if c.result and c.result["chosen_within_spread"] is not None]
        line += f"{100 * sum(yes) / len(yes):8.0f}%" if yes else f"{'-':>9}"
    if target and errors:
        met = quantile(errors, 0.5) <= target[0] and quantile(errors, 0.9) <= target[1]
        line += f"   {target[0]}%, {target[1]}%: {'met' if met else 'missed'}"
    return line


def summary(cases, out):
    out += ["", "Summary: |predicted - measured| / measured over all strategies of all cases; choice: the planner's choice is the fastest "
            "measured, or", "its median is within the fastest one's spread (10% to 90%); overlap: the spreads of the two overlap; 1%: it takes at most 1% "
            "longer; noisy:", "that spread is over a quarter of the median, no number counts",
            f"{'':24}{'cases':>6}{'run':>5}{'numbers':>9}{'noisy':>7}{'refused':>9}{'median':>10}{'90%':>10}{'most':>10}"
            f"{'choice':>12}{'':7}{'overlap':>9}{'1%':>9}   target: median, 90%"]
    for n in sorted({c.n for c in cases}):
        out.append(summary_line(f"{n} ranks", [c for c in cases if c.n == n], TARGETS.get(n)))
    for what in ("model", "ratio"):
        values = sorted({getattr(c, what) for c in cases},
                        key=lambda v: (MODELS.index(v) if v in MODELS else 99, v) if what == "model" else float(v))
        for value in values if len(values) > 1 else []:
            out.append(summary_line(value if what == "model" else "ratio " + value, [c for c in cases if getattr(c, what) == value]))
    wrong = [c for c in cases if c.result and c.result["chosen_within_spread"] is False]
    for c in wrong:
        by_name = {s["name"]: s["measured_us"]["median"] for s in c.strategies}
        r = c.result
        out.append(f"not the fastest: {c.title()}: {r['chosen']} takes "
                   f"{100 * (by_name[r['chosen']] / by_name[r['fastest']] - 1):.1f}% longer than {r['fastest']}")
    named = [("noisy", f"{c.title()}: {', '.join(names)}") for c in cases
             if (names := [s["name"] for s in c.strategies if s["noisy"]])]
    named += [("refused", f"{c.title()}: {name}: {why}") for c in cases for name, why in c.refused]
    named += [("failed", f"{c.title()}: {c.failed}") for c in cases if c.failed]
    named += [("warning", f"{c.title()}: {c.result['warning']}") for c in cases if c.result and c.result.get("warning")]
    out += [f"{kind}: {text}" for kind, text in named]


def worst_ops(cases, out):
    """Where the model is wrong: ops by lane and name, summed over all cases and strategies with so many ranks."""
    out += ["", "Ops of all strategies, summed by lane and name: predicted over measured time, and what the difference is of all measured "
            "steps (computing, noisy", "strategies and what is below 0.05% of the steps are left out)"]
    for n in sorted({c.n for c in cases}):
        ops, steps = {}, 0.0
        for c in cases:
            for s in c.strategies if c.n == n else []:
                if c.outcome(s) != "ok":
                    continue
                steps += s["measured_us"]["median"]
                for op in s.get("ops", []):
                    if op["op"] != "backward":
                        total = ops.setdefault((op["lane"], op["op"]), [0, 0.0, 0.0])
                        total[0] += op["n"]
                        total[1] += op["predicted_us"]
                        total[2] += op["measured_us"]
        for (lane, name), (count, predicted, measured) in sorted(ops.items(), key=lambda o: -abs(o[1][1] - o[1][2])):
            if abs(predicted - measured) >= 0.0005 * steps and measured > 0:
                out.append(f"{f'{n} ranks':17}{lane:13}{name:24}{count:8} ops{100 * (predicted / measured - 1):+9.1f}%"
                           f"{100 * (predicted - measured) / steps:+9.2f}% of the steps")


def main():
    folder, results = sys.argv[1], sys.argv[2]
    cases = read_cases(folder)
    if not cases:
        sys.exit(f"replay_table.py: no case in {folder}")
    out = []
    machine = os.path.join(folder, "machine.txt")
    if os.path.exists(machine):
        with open(machine) as f:
            out += f.read().splitlines()
    worst_ops(cases, out)
    summary(cases, out)
    path = os.path.join(results, "replay.txt")
    with open(path + ".tmp", "w") as f:
        f.write("\n".join(line.rstrip() for line in out) + "\n")
    os.replace(path + ".tmp", path)
    write_csv(cases, os.path.join(results, "replay.csv"))
    print(path)


if __name__ == "__main__":
    main()
