#!/bin/sh
# advise.sh: is the answer of `espresso advise` true? Trains with DistributedDataParallel on hosts with one rank each
# (tests/jobs/hosts), unchanged and with codecs, in turns of a few steps, so that other load slows all ways alike.
# Records traces of the unchanged job, and asks for advice. Writes RESULT, with predicted and measured gains over the
# unchanged job.
# Needs root, backend gloo, and python3 with a torch that has Kineto.
# Usage: bench/validate/advise.sh [RATE/HOSTS/WIDTH...]      about 10 minutes; WIDTH: of the model's hidden layers
# Environment: PYTHON=python3 ROUNDS=3 STEPS=30 RESULT=bench/results/validate/advise.csv
set -eu
cd "$(dirname "$0")/../.."
RESULT=${RESULT:-bench/results/validate/advise.csv} BUILD=${BUILD:-build} PYTHON=${PYTHON:-python3}
ROUNDS=${ROUNDS:-3} STEPS=${STEPS:-30} TESTBED=$$
export BUILD TESTBED
export PYTHONPATH="$PWD/python" ESPRESSO_LIBRARY="$PWD/$BUILD/lib/libespresso.so" PYTHONDONTWRITEBYTECODE=1
export MASTER_ADDR=10.99.0.1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
hosts="sh tests/jobs/hosts/hosts.sh"
dir=$(mktemp -d)
trap '$hosts down; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
[ $# -gt 0 ] || set -- 100mbit/2/512 1gbit/2/512 1gbit/2/1024 300mbit/3/512
LOAD=$(cut -d' ' -f1-3 /proc/loadavg)
export LOAD
ways="torch auto+fp16 auto+int8 auto+int4 auto+fp16+int8+int4"
for case in "$@"; do
    rate=${case%%/*} width=${case##*/}
    export WORLD_SIZE="${case#*/}"
    WORLD_SIZE=${WORLD_SIZE%/*}
    $hosts up "$WORLD_SIZE" "$rate"
    round=0
    while [ $((round += 1)) -le "$ROUNDS" ]; do
        MASTER_PORT=$((MASTER_PORT + 2))
        for rank in $(seq 0 $((WORLD_SIZE - 1))); do
            RANK=$rank timeout 300 $hosts enter $((rank + 1)) "$PYTHON" bench/validate/advise.py "$STEPS" \
                "$dir/$rate-$WORLD_SIZE-$width-$round-" "$width" $ways >"$dir/$rank" 2>"$dir/errors$rank" &
        done
        wait
        [ -s "$dir/0" ] || { tail -n 5 "$dir"/errors* >&2 && exit 1; }
        sed "s,^,$case ," "$dir/0" >>"$dir/all"
        LC_ALL=C "$BUILD/bin/espresso" advise --gc fp16 --gc int8 --gc int4 \
            "$dir/$rate-$WORLD_SIZE-$width-$round-"*.json >"$dir/advice"
        # a row of the table: codec, step, unit, gain, ...
        awk -v job="$case" '/^(fp16|int8|int4|as it is|the safe ones) / {
            for (i = 3; i <= NF; i++)
                if ($i ~ /^[0-9.]+x$/) {
                    way = $1 == "the" ? "auto" : $1 == "as" ? "torch" : $1
                    ms = $(i - 2) * ($(i - 1) == "us" ? 1e-3 : $(i - 1) == "s" ? 1e3 : 1)
                    print job, "predicted", way, ms, $i + 0
                }
        }' "$dir/advice" >>"$dir/all"
    done
    $hosts down
done
{
    echo "# bench/validate/advise.sh: hosts with one rank each; $ROUNDS rounds of $STEPS steps a way, in turns of 15; medians"
    env -u OMP_NUM_THREADS sh bench/head.sh
    echo "# job: link, hosts, width of its layers; predicted: by espresso advise, from traces of way torch; gain: step of way torch / this step"
    echo "job,way,predicted_ms,measured_ms,predicted_gain,measured_gain,gain_error_percent,step_error_percent"
    "$PYTHON" - "$dir/all" <<'END'
import statistics, sys
rows = [line.split() for line in open(sys.argv[1])]
def median(link, *what):
    return statistics.median(float(r[-1]) for r in rows if r[0] == link and tuple(r[1:1 + len(what)]) == what)
for link in dict.fromkeys(r[0] for r in rows):
    for way in dict.fromkeys(r[1] for r in rows if r[1] != "predicted"):
        name = {"torch": "torch", "auto+fp16+int8+int4": "auto"}.get(way, way.split("+")[-1])
        ms = statistics.median(float(r[3]) for r in rows if r[:3] == [link, "predicted", name])
        gain, measured = median(link, "predicted", name), median(link, "torch") / median(link, way)
        print(f"{link},{way},{ms:.4g},{median(link, way):.4g},{gain:.3g},{measured:.3g},{100 * (gain / measured - 1):.0f},{100 * (ms / median(link, way) - 1):.0f}")
END
} >"$RESULT"
cat "$RESULT"
