#!/usr/bin/env python3
"""make_results.py: texts and pictures of the CSV of bench/results (standard library only).

    python3 bench/make_results.py [FROM [TO]]        default: bench/results, build/results
"""
import glob
import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE] + [os.path.join(HERE, area) for area in ("accuracy", "planner", "validate")]
import accuracy_plot
import converge_plot
import outer_plot
import plan_plot
import plan_tables
import tables
import truth_text

# Tables with views of their own; all others become aligned text.
VIEWS = {
    "accuracy": [accuracy_plot.accuracy],
    "accuracy-ends": [accuracy_plot.volume, lambda table, to: plain(table, to)],
    "auto": [truth_text.auto],
    "converge": [converge_plot.converge],
    "outer": [outer_plot.outer, lambda table, to: plain(table, to)],
    "plan-growth": [plan_plot.growth, lambda table, to: plain(table, to)],
    "plan-quality": [plan_plot.quality, plan_tables.quality],
    "truth": [truth_text.truth],
    "truth-fresh": [truth_text.truth],
    "truth-mpi": [truth_text.truth],
}


def plain(table, to):
    tables.write(os.path.join(to, table.name + ".txt"), tables.text(table))


def main():
    source, to = (sys.argv[1:] + ["bench/results", "build/results"][len(sys.argv) - 1:])[:2]
    for path in sorted(glob.glob(os.path.join(source, "*", "*.csv"))):
        table = tables.Table(path)
        for view in VIEWS.get(table.name, [plain]):
            view(table, to)
    print(f"{to}: texts and pictures of {source}")


if __name__ == "__main__":
    main()
