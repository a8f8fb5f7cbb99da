#!/bin/sh
# clock.sh: does the executor run ops in the order, and with the overlap, that the planner assumes? Plays published systems with a clock
# (`espresso replay --mode model`): six models, 4 and 8 ranks, three ratios of communication to computing, all strategies. The clock
# is compared with itself, so small differences say nothing about how well a trainer's step is predicted: bench/truth does. Takes hours,
# so `make test` runs tests/replay/test_replay.c and tests/observe/test_clocked.c instead. Fails where a case's median difference is
# over 2%, or 90% of its strategies differ by more than 5%. CORES: of a system whose collectives need a core for a twentieth of their
# time, and their links for two thirds.
#   sh tests/replay/clock.sh [MODEL...] [4|8] [RATIO...]       sh tests/replay/clock.sh vgg16 4 1
# Environment: BUILD=build, STRATEGIES=fp32,...|all, STEPS=6, GC=dgc:ratio=0.01, CORES=1|2|3 (of a rank).
set -eu
cd "$(dirname "$0")/../.."
command -v python3 >/dev/null || { echo "clock.sh: python3 is not there" && exit 77; }
models= ranks= ratios=
for word in "$@"; do
    case $word in
    4 | 8) ranks="$ranks $word" ;;
    [0-9]*) ratios="$ratios $word" ;;
    -*) sed -n '2,10s/^# *//p' "$0" && exit 2 ;;
    *) models="$models $word" ;;
    esac
done
bad=0 system=
if [ -n "${CORES:-}" ]; then
    system=$(mktemp "${TMPDIR:-/tmp}/espresso-clock.XXXXXX")
    trap 'rm -f "$system"' EXIT
    python3 -c '
import json, sys
def link(us, bytes_per_us):
    times = [[b, us + b / bytes_per_us] for b in (1024, 65536, 1048576, 16777216)]
    part = lambda x: [[b, t * x] for b, t in times]
    names = "allreduce reduce_scatter allgather alltoall gather broadcast reduce".split()
    return {"alpha_us": us, "bytes_per_us": bytes_per_us,
            "tables": {c: {"points": times, "gap": part(2 / 3), "core": part(1 / 20)} for c in names}}
flat = {"tables": link(300, 1000)["tables"]}
json.dump({"espresso": 1, "system": "cores", "machines": 2, "ranks_per_machine": 2, "devices": ["cpu"],
           "cores_per_rank": int(sys.argv[1]), "intra": link(100, 5000), "inter": link(300, 1000), "flat": flat}, sys.stdout)
' "$CORES" >"$system"
fi
for n in ${ranks:-4 8}; do for ratio in ${ratios:-0.3 1 3}; do for model in ${models:-vgg16 resnet101 ugatit bert-base gpt2 lstm}; do
    force=
    # half of its tensors are biases, which come with their weights: that their gaps are short says nothing
    [ "$model" != lstm ] || force=--force
    "${BUILD:-build}/bin/espresso" replay --mode model --model "$model" -n "$n" --machines $((n / 2)) --ratio "$ratio" $force \
        ${system:+--system "$system"} \
        --gc "${GC:-dgc:ratio=0.01}" --strategy "${STRATEGIES:-all}" --steps "${STEPS:-6}" --json </dev/null |
        python3 -c '
import json, sys
errors = sorted(abs(s["error_percent"]) for s in json.load(sys.stdin)["strategies"] if s["error_percent"] is not None)
at = lambda part: errors[min(len(errors) - 1, int(part * len(errors)))] if errors else 100
print(f"{sys.argv[1]}: {len(errors)} strategies, difference {at(0.5):.2f}% in the median, {at(0.9):.2f}% in 90%, {at(1):.2f}% at most")
sys.exit(at(0.5) > 2 or at(0.9) > 5)' "$model, $n ranks, ratio $ratio" || bad=1
done; done; done
exit $bad
