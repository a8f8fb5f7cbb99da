#!/bin/sh
# converge.sh: both trainers of examples/, fp32 and auto, over an emulated link of 100 Mbit/s: loss by step and by time.
# Writes converge.csv and converge-runs.csv into RESULTS (bench/results/accuracy); make results draws the curves. About
# four minutes.
# Environment: BUILD=build, FLAGS (of the trainers), LINK=100mbit,50us, CODECS (what auto may choose from).
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
LINK=${LINK:-100mbit,50us}
CODECS=${CODECS:-efsignsgd;topk:ratio=0.02}
RESULTS=${RESULTS:-bench/results/accuracy}
KEYS="ranks machines steps settled_step_ms step_ms wait_ms inter_bytes_per_step loss accuracy bits_per_character"
KEYS="$KEYS unigram_bits"
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
        # shellcheck disable=SC2086
        one $example fp32 $flags ${FLAGS:-} --strategy fp32
        # shellcheck disable=SC2086
        one $example auto $flags ${FLAGS:-} --strategy auto --codec "$CODECS"
    done
    { # results are replaced only when all runs came to their end
        echo "# bench/accuracy/converge.sh: training loss of rank 0 by step and time"
        LOAD=$load sh bench/head.sh
        echo "example,strategy,step,seconds,loss"
        for example in train gpt; do
            for kind in fp32 auto; do sed "s/^/$example,$kind,/" "$work/$example.$kind.csv"; done
        done
    } >"$work/all.csv"
    {
        echo "# bench/accuracy/converge.sh: examples/train and examples/gpt, fp32 and auto (codecs: $CODECS); 2 machines x 2" \
            "ranks, emulated link of $LINK"
        LOAD=$load sh bench/head.sh
        echo "# settled_step_ms: median of the second half of the steps; loss: of rank 0's last steps"
        echo "example,strategy,$(echo "$KEYS" | tr ' ' ','),autopilot"
        for example in train gpt; do
            for kind in fp32 auto; do
                printf '%s,%s' $example $kind
                for key in $KEYS; do
                    printf ',%s' "$(sed -n "s/.*\"$key\": *\([-+0-9.a-z]*\).*/\1/p" "$work/$example.$kind.json")"
                done
                printf ',"%s"\n' "$(sed -n 's/^\(\[0\] \)*espresso: autopilot: //p' "$work/$example.$kind.log" |
                    tr '"' "'" | paste -sd';' | sed 's/;/; /g')"
            done
        done
    } >"$work/runs.csv"
    mkdir -p "$RESULTS"
    mv "$work/all.csv" "$RESULTS/converge.csv"
    mv "$work/runs.csv" "$RESULTS/converge-runs.csv"
}

load=$(cut -d' ' -f1-3 /proc/loadavg)
runs
