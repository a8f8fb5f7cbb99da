#!/bin/sh
# plan.sh: measures the planner's speed and the quality of its plans, and updates the numbers of
# docs/plan/planner-results.md.
# Usage: bench/planner/plan.sh [speed] [quality] [relax] [doc]      (default: all but relax; some minutes)
# Environment: BUILD=build, RESULTS=bench/results/planner, ESPRESSO_SHARED (folder with models/; default ../shared),
# RUN="taskset -c 1" in front of the program.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
RESULTS=${RESULTS:-bench/results/planner}
program=$BUILD/bench/plan
make -s BUILD="$BUILD" "$program"
for part in ${*:-speed quality doc}; do
    case $part in
    speed | quality | relax)
        # results are replaced only by a run that came to its end
        rm -rf "$BUILD/plan-$part" && mkdir -p "$BUILD/plan-$part" "$RESULTS"
        ${RUN:-} "$program" "$part" "$BUILD/plan-$part"
        mv "$BUILD/plan-$part"/*.csv "$RESULTS"
        ;;
    doc) python3 bench/planner/plan_doc.py "$RESULTS" ;;
    *)
        echo "usage: bench/planner/plan.sh [speed] [quality] [relax] [doc]" >&2
        exit 2
        ;;
    esac
done
