#!/bin/sh
# plan.sh: the planner's speed and quality anew: runs build/bench/plan, writes bench/results/plan-*.txt and .csv, puts the numbers
# into docs/plan/planner-results.md, and makes pictures and tables of them (make results).
# Usage: bench/planner/plan.sh [speed] [quality] [plot]      (default: all three; some minutes)
# Environment: BUILD=build, ESPRESSO_SHARED (folder with models/; default ../shared), RUN="taskset -c 1" in front of the program.
set -eu
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
out=bench/results
program=$BUILD/bench/plan
what="${*:-speed quality plot}"
make -s BUILD="$BUILD" "$program"
for part in $what; do
    case $part in
    speed | quality)
        # results are replaced only by a run that came to its end
        ${RUN:-} "$program" "$part" "$BUILD/plan-$part.csv" >"$BUILD/plan-$part.txt"
        mv "$BUILD/plan-$part.csv" "$out/plan-$part.csv"
        mv "$BUILD/plan-$part.txt" "$out/plan-$part.txt"
        ;;
    plot) make -s BUILD="$BUILD" results && python3 bench/planner/plan_doc.py ;;
    *)
        echo "usage: bench/planner/plan.sh [speed] [quality] [plot]" >&2
        exit 2
        ;;
    esac
done
[ ! -f "$out/plan-quality.txt" ] || sed -n '/^Summary/,/^$/p' "$out/plan-quality.txt"
