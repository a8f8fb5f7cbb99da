#!/usr/bin/env python3
"""case_tables.py: every case of bench/plan as text, from its CSV: plan-cases.txt (standard library only).

    python3 bench/planner/case_tables.py [FROM [TO]]        default: bench/results, build/results
"""
import csv
import os
import sys

from plan_plot import folders

SHOWN = ("fp32", "ddp", "mergecomp", "hipress", "hitopkcomm", "byteps-compress", "espresso")


def over(value, bound):
    """How far value is above bound, in %."""
    return 100 * (float(value) / float(bound) - 1)


def ms(us):
    return f"{float(us) / 1000:.2f}" if us else "-"


def plan(rows):
    yield ("Step, ms (all strategies: plan-quality.csv). espresso: Algorithms 1 and 2; given: tensors as given; thorough: ESP_PLAN_THOROUGH; "
           "gap: of the column before it, over\nbound_us or bound_any_us; upper: the paper's Upper Bound; plan: ms to plan\n")
    yield ("model     codec     net    GPUs" + "".join(f" {name[:10]:>10}" for name in SHOWN) +
           f" {'given':>10} | {'+ given':>9} {'thorough':>9} {'gap %':>6} | {'espresso+':>9} {'thorough':>9} {'gap %':>6} {'upper':>9}"
           f" | {'plan':>6} {'thorough':>8}")
    for r in rows:
        yield (f"{r['model']:9} {r['codec']:9} {r['testbed']:6} {r['gpus']:>2}" + "".join(f" {ms(r[name + '_us']):>10}" for name in SHOWN) +
               f" {ms(r['espresso_given_us']):>10} | {ms(r['plus_given_us']):>9} {ms(r['thorough_given_us']):>9}"
               f" {over(r['thorough_given_us'], r['bound_us']):6.2f} | {ms(r['plus_us']):>9} {ms(r['thorough_us']):>9}"
               f" {over(r['thorough_us'], r['bound_any_us']):6.2f} {ms(r['upper_us']):>9}"
               f" | {float(r['plan_ms']):6.1f} {float(r['plan_thorough_ms']):8.1f}")


def main():
    source, to = folders()
    if not os.path.exists(os.path.join(source, "plan-quality.csv")):
        sys.exit(f"case_tables.py: plan-quality.csv is not in {source}: bench/planner/plan.sh writes it")
    with open(os.path.join(source, "plan-quality.csv")) as f:
        text = "\n".join(plan(list(csv.DictReader(f))))
    with open(os.path.join(to, "plan-cases.txt"), "w") as f:
        f.write("\n".join(line.rstrip() for line in text.split("\n")) + "\n")
    print(os.path.join(to, "plan-cases.txt"))


if __name__ == "__main__":
    main()
