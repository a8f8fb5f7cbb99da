#!/bin/sh
# demo.sh: four processes on two emulated machines train the same model on the same images three times: without
# compression, with every tensor compressed alike, and by demo.strategy. Prints a table and writes a timeline.
#   make demo      or      sh examples/train/demo.sh [flags for train, such as --epochs 1 --seed 2]
# Variables: BUILD (build), OUT (BUILD/demo), LINK (100mbit,50us).
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
OUT=${OUT:-$BUILD/demo}
LINK=${LINK:-100mbit,50us}
# these would override what the three runs are about
unset ESPRESSO_STRATEGY ESPRESSO_CODEC ESPRESSO_BACKEND ESPRESSO_TRACE ESPRESSO_INTER_LINK

mkdir -p "$OUT"
rm -f "$OUT"/*.json

run() { # NAME FLAGS...
    name=$1
    shift
    "$BUILD/bin/espresso" run -n 4 --machines 2 --inter "$LINK" -- "$BUILD/bin/train" --json "$OUT/$name.json" "$@" || {
        echo "demo: the run '$name' failed; its messages are above" >&2
        exit 1
    }
    [ -s "$OUT/$name.json" ] || { echo "demo: the run '$name' wrote no result to $OUT/$name.json" >&2; exit 1; }
}

echo "2 machines x 2 ranks on this machine, the link between the machines emulated: $LINK"
echo; echo "1 of 3: fp32, nothing compressed"
run fp32 --strategy fp32 "$@"
echo; echo "2 of 3: layerwise, every tensor compressed to one bit an element (efsignsgd)"
run layerwise --strategy layerwise --codec efsignsgd "$@"
echo; echo "3 of 3: strategy, each tensor as examples/train/demo.strategy says"
ESPRESSO_TRACE=$OUT/trace.json
export ESPRESSO_TRACE
run strategy --strategy examples/train/demo.strategy "$@"
[ -s "$OUT/trace.json" ] || { echo "demo: no timeline in $OUT/trace.json" >&2; exit 1; }

echo
awk '
function field(key, s) { # the number behind "key":
    s = $0
    return sub(".*\"" key "\": *", "", s) ? s + 0 : 0
}
FNR == 1 {
    name = FILENAME; sub(".*/", "", name); sub("[.]json$", "", name)
    step = field("step_ms")
    if (NR == 1) { first = step; printf "%-10s %12s %14s %20s %10s %9s\n", "", "step", "of it waiting", "between machines", "test", "" }
    printf "%-10s %9.1f ms %11.1f ms %12.2f MB/step %8.2f %% %8.1fx\n", name, step, field("wait_ms"),
           field("inter_bytes_per_step") / 1e6, 100 * field("accuracy"), first / step
    speed = first / step
}
END { if (speed < 2) print "\nThe strategy is under twice as fast here: this machine was too busy computing for the link to matter." }
' "$OUT/fp32.json" "$OUT/layerwise.json" "$OUT/strategy.json"
echo
echo "timeline of the last run: $OUT/trace.json"
echo "open it in https://ui.perfetto.dev or chrome://tracing: a process a rank, a track each for compute, cpu, intra, inter"
