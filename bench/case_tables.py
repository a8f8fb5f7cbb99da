#!/usr/bin/env python3
"""case_tables.py: every case of bench/plan and bench/replay.sh as text, from their CSV: plan-cases.txt, replay-cases.txt (standard
library only).

    python3 bench/case_tables.py [FROM [TO]]        default: bench/results, build/results
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


def replay(rows):
    yield ("Step times in ms. Ranks are processes of one machine; ratio: fp32's communication over computing, predicted. error: predicted "
           "over measured;\nexp.: measured time with no backward running in which a link is busy, or only compression; bytes: received by "
           "all ranks in a step.\nWhy a strategy was refused: replay.txt.")
    case = None
    for r in rows:
        now = [r[name] for name in ("model", "n", "ratio_asked")]
        if now != case:
            case = now
            title = "\n{}, {} ranks, ratio {}".format(*case)
            if r["ratio"]:
                title += (f": elements x {float(r['elements_scale']):.3g}, times x {float(r['time_scale']):.3g}, ratio {float(r['ratio']):.2f}, "
                          f"load {float(r['load_percent']):.0f}%, stolen {float(r['stolen_percent']):.1f}%\n"
                          f"{'':18}{'predicted':>10}{'measured':>10}{'10%':>10}{'90%':>10}{'error':>8}"
                          f"{'exp. links':>12}{'exp. codecs':>12}{'intra MB':>10}{'inter MB':>10}")
            yield title
        if r["outcome"] in ("refused", "failed"):
            yield f"{r['outcome']}: {r['strategy']}"
            continue
        marks = ", ".join(word for word in ("fastest", "chosen") if r[word] == "1")
        error = f"{float(r['error_percent']):+.1f}%" if r["error_percent"] else ""
        yield (f"{r['strategy']:18}{ms(r['predicted_us']):>10}{ms(r['measured_us']) if r['outcome'] == 'ok' else r['outcome']:>10}"
               f"{ms(r['p10_us']):>10}{ms(r['p90_us']):>10}{error:>8}{ms(r['exposed_communication_us']):>12}"
               f"{ms(r['exposed_compression_us']):>12}{float(r['intra_bytes']) / 1e6:>10.2f}{float(r['inter_bytes']) / 1e6:>10.2f}  {marks}")


def main():
    source, to = folders()
    found = 0
    for name, out, table in (("plan-quality.csv", "plan-cases.txt", plan), ("replay.csv", "replay-cases.txt", replay)):
        if not os.path.exists(os.path.join(source, name)):
            continue
        found += 1
        with open(os.path.join(source, name)) as f:
            text = "\n".join(table(list(csv.DictReader(f))))
        with open(os.path.join(to, out), "w") as f:
            f.write("\n".join(line.rstrip() for line in text.split("\n")) + "\n")
        print(os.path.join(to, out))
    if not found:
        sys.exit(f"case_tables.py: neither plan-quality.csv nor replay.csv is in {source}: bench/plan.sh and bench/replay.sh write them")


if __name__ == "__main__":
    main()
