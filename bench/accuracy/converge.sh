#!/bin/sh
# converge.sh: both trainers of examples/, fp32 and auto, over an emulated link of 100 Mbit/s: loss by step and by time. Writes
# bench/results/accuracy/converge.csv, and converge.txt with this machine's description; make results draws the curves.
# Usage: bench/accuracy/converge.sh [run] [plot]      (default: both; about four minutes)
# Environment: BUILD=build, LINK=100mbit,50us, CODECS (what auto may choose from).
set -eu
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
LINK=${LINK:-100mbit,50us}
CODECS=${CODECS:-efsignsgd;topk:ratio=0.02}
out=bench/results
work=$BUILD/bench/converge
unset ESPRESSO_STRATEGY ESPRESSO_CODEC ESPRESSO_BACKEND ESPRESSO_TRACE ESPRESSO_INTER_LINK
mkdir -p "$work"

one() { # EXAMPLE KIND FLAGS...
    example=$1 kind=$2
    shift 2
    echo "$example, $kind"
    "$BUILD/bin/espresso" run -n 4 --machines 2 --inter "$LINK" -- "$BUILD/bin/$example" --json "$work/$example.$kind.json" \
        --curve "$work/$example.$kind.csv" "$@" >"$work/$example.$kind.log" 2>&1 || {
        tail -n 20 "$work/$example.$kind.log"
        exit 1
    }
    grep 'autopilot: ' "$work/$example.$kind.log" || :
}

runs() {
    make -s BUILD="$BUILD" "$BUILD/bin/train" "$BUILD/bin/gpt" "$BUILD/bin/espresso"
    for example in train gpt; do
        flags="--eval 0"
        if [ $example = gpt ]; then flags="--sample 0"; fi
        one $example fp32 $flags --strategy fp32
        one $example auto $flags --strategy auto --codec "$CODECS"
    done
    { # results are replaced only when all runs came to their end
        echo "example,strategy,step,seconds,loss"
        for example in train gpt; do
            for kind in fp32 auto; do sed "s/^/$example,$kind,/" "$work/$example.$kind.csv"; done
        done
    } >"$work/all.csv"
    {
        echo "examples/train and examples/gpt, fp32 and auto (codecs: $CODECS); 2 machines x 2 ranks, emulated link of $LINK"
        awk -F: '/model name/ { cpu = $2; n++ } END { printf "machine: %d cores,%s\n", n, cpu ? cpu : " unknown CPU" }' /proc/cpuinfo
        echo "system: $(uname -sr), $(${CC:-gcc} --version | head -n 1)"
        echo "load before (1, 5, 15 minutes): $load"
        echo "settled_step_ms: median of the second half of the steps; loss: of rank 0's last steps"
        echo
        for example in train gpt; do
            for kind in fp32 auto; do
                echo "$example $kind $(cat "$work/$example.$kind.json")"
                sed -n 's/^\(\[0\] \)*espresso: \(autopilot: .*\)/    \2/p' "$work/$example.$kind.log"
            done
        done
    } >"$work/all.txt"
    mv "$work/all.csv" "$out/converge.csv"
    mv "$work/all.txt" "$out/converge.txt"
}

load=$(cut -d' ' -f1-3 /proc/loadavg)
for part in ${*:-run plot}; do
    case $part in
    run) runs ;;
    plot) python3 -B bench/accuracy/converge_plot.py "$out" "$BUILD/results" ;;
    *)
        echo "usage: bench/accuracy/converge.sh [run] [plot]" >&2
        exit 2
        ;;
    esac
done
