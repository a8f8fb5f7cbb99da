#!/usr/bin/env python3
"""plan_doc.py: puts results of the planner into the marked parts of a page, so that its numbers are the measured ones.

    python3 bench/planner/plan_doc.py [RESULTS [PAGE]]    default: bench/results/planner, docs/plan/planner-results.md
"""
import os
import sys
import textwrap

sys.dont_write_bytecode = True
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import plan_tables
import tables

PAPER_MODELS = ("vgg16", "resnet101", "ugatit", "bert-base", "gpt2", "lstm")
# The published planner's time to choose a strategy on a similar machine, ms (Python; 4 options for each tensor; no
# bound).
PUBLISHED = dict(zip(PAPER_MODELS, (15, 96, 62, 150, 264, 1)))
SEARCH_ONLY = ("open_ms", "candidates_ms", "search_ms")


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(r) + " |" for r in rows]


def wrapped(words):
    return textwrap.wrap(words, 120, break_long_words=False, break_on_hyphens=False)


def by_model(rows):
    """{(model, devices): row}"""
    return {(r["model"], r["devices"]): r for r in rows}


def pruning(parts):
    rows = []
    for model in ("bert-base", "resnet101"):
        for devices, words in (("1", "one device"), ("2", "two devices")):
            r = parts[model, devices]
            columns = ("left", "all_us", "left_us")
            rows.append([f"{words}, {model}", r["options"]] + [f"{float(r[c]):.0f}" for c in columns])
    return ["Options, and microseconds for one size:", ""] + table(
        ["", "options", "candidates", "no pruning, us", "pruning, us"], rows)


def parts_table(trials, speed):
    rows = []
    for model in PAPER_MODELS:
        t = next(r for r in trials if r["model"] == model)
        naive = [
            f"{'~' if r['naive_done'] != r['tensors'] else ''}{float(r['naive_ms']) / float(r['total_ms']):.0f}x"
            for r in (speed[model, d] for d in "12")
        ]
        rows.append([
            model, f"{t['ready_ns_per_op']} / {t['fixed_ns_per_op']}",
            f"{int(t['ready_ns']) / 1000:.1f} / {int(t['fixed_ns']) / 1000:.1f} / {int(t['trial_ns']) / 1000:.2f}",
            f"{t['units_skipped']} of {t['units']}", " / ".join(naive)
        ])
    return table([
        "model", "ready order / fixed order, ns an op",
        "one evaluation in ready order / fixed order / incrementally, us", "units skipped",
        "naive over ours, one / two devices"
    ], rows)


def times(speed, growth, machine):
    def cell(r):
        return f"{r['total_ms']} ({r['worst_ms']}; {r['target_ms']})"

    rows = []
    for model in dict.fromkeys(m for m, _ in speed):
        one, two = speed[model, "1"], speed[model, "2"]
        published, ratio = "-", "-"
        if model in PUBLISHED and one["published"] == "1":
            published = str(PUBLISHED[model])
            search = sum(float(one[c]) for c in SEARCH_ONLY)
            ratio = f"{PUBLISHED[model] / float(one['total_ms']):.1f}x / {PUBLISHED[model] / search:.1f}x"
        rows.append([model, one["tensors"], cell(one), cell(two), published, ratio])

    def above(devices, column):
        return sum(float(r[column]) > float(r["target_ms"]) for (_, d), r in speed.items() if d == devices)

    large = {}
    for r in growth:
        if r["tensors"] == "2000":
            large.setdefault(r["sizes"], []).append(f"{float(r['plan_ms']):.2f}")
    return ([f"Planning time, everything included, one thread ({machine}):", ""] + table([
        "model", "tensors", "one device, ms (worst case; target)", "two devices, ms (worst case; target)",
        "published planner, ms", "ratio, everything / search only"
    ], rows) + [""] + wrapped(
        "Plans for one device compress on the GPU only, those for two on GPU and CPU. The worst case is the slowest "
        f"of 3 codecs x 2 testbeds at 64 GPUs. Of {len(rows)} models, {above('1', 'worst_ms')} take longer than the "
        f"target with one device in the worst case, and {above('2', 'worst_ms')} with two.") + [""] +
            wrapped("Planning for 2,000 synthetic tensors takes " +
                    ", and ".join(f"{a} ms with one device and {b} ms with two if they have {n} different sizes"
                                  for n, (a, b) in large.items()) +
                    " (targets 100 and 500 ms). `plan-growth.csv` has up to 5,000 tensors."))


def main():
    results, page = (sys.argv[1:] + ["bench/results/planner", "docs/plan/planner-results.md"][len(sys.argv) - 1:])[:2]
    read = lambda name: tables.Table(os.path.join(results, f"plan-{name}.csv"))
    speed_table, quality = read("speed"), read("quality")
    speed, parts = by_model(speed_table.rows), by_model(read("parts").rows)
    machine = next(line for line in speed_table.head
                   if line.startswith("machine: "))[len("machine: "):].replace("; one thread", "")
    filled = {
        "speed": times(speed,
                       read("growth").rows, machine),
        "pruning": pruning(parts),
        "parts": parts_table(read("trials").rows, speed),
        "quality": [
            "- " + "\n  ".join(textwrap.wrap(" ".join(line.split()), 118)) for line in plan_tables.summary(quality)
        ],
        "paper": table([
            "model, testbed, codec", "over fp32", "over BytePS-Compress", "over HiTopKComm", "over HiPress",
            "fp32 scaling", "above the Upper Bound"
        ], plan_tables.paper(quality)),
    }
    with open(page) as f:
        text = f.read()
    for name, block in filled.items():
        start, end = f"<!-- measured: {name} -->\n", f"<!-- /{name} -->"
        a, b = text.index(start) + len(start), text.index(end)
        text = text[:a] + "\n" + "\n".join(block) + "\n\n" + text[b:]
    tables.write(page, text.rstrip("\n").split("\n"))
    print(page)


if __name__ == "__main__":
    main()
