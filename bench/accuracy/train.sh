#!/bin/sh
# train.sh: the demo's three runs with three seeds each; writes the means to RESULT (bench/results/accuracy/train.csv).
# About ten minutes. Flags for the trainer may follow, such as --epochs 5.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
RESULT=${RESULT:-bench/results/accuracy/train.csv}
export BUILD

for seed in 1 2 3; do
    echo "seed $seed"
    DEMO=strategies OUT=$BUILD/bench/train/$seed sh examples/train/demo.sh --seed $seed --eval 0 "$@"
done

{
    echo "# bench/accuracy/train.sh${*:+ $*}: examples/train on Fashion-MNIST: 2 machines x 2 ranks," \
        "emulated link of ${LINK:-100mbit,50us}"
    sh bench/head.sh
    echo "# accuracy: mean of seeds 1, 2, 3; step, waiting, bytes: mean of the three runs' medians"
    echo "strategy,step_ms,waiting_ms,inter_mb_per_step,accuracy_percent,to_fp32,speed_up,$(seq -s , -f accuracy_seed%g 3)"
    for name in fp32 layerwise strategy; do
        cat "$BUILD/bench/train/1/$name.json" "$BUILD/bench/train/2/$name.json" "$BUILD/bench/train/3/$name.json" |
            sed "s/^{/{\"name\": $name, /"
    done | awk '
    function field(key, s) {
        s = $0
        return sub(".*\"" key "\": *", "", s) ? s + 0 : 0
    }
    {
        name = $2; sub(",", "", name)
        if (!(name in runs)) order[++n] = name
        runs[name]++; step[name] += field("step_ms"); wait[name] += field("wait_ms")
        bytes[name] += field("inter_bytes_per_step"); right[name] += field("accuracy")
        each[name] = each[name] sprintf(",%.2f", 100 * field("accuracy"))
    }
    END {
        for (i = 1; i <= n; i++) {
            k = order[i]; r = runs[k]; first = order[1]
            printf "%s,%.1f,%.1f,%.2f,%.2f,%+.2f,%.1f%s\n", k, step[k] / r, wait[k] / r, bytes[k] / r / 1e6,
                   100 * right[k] / r, 100 * (right[k] / r - right[first] / runs[first]),
                   step[first] / runs[first] / (step[k] / r), each[k]
        }
    }'
} >"$RESULT.tmp"
mv "$RESULT.tmp" "$RESULT"
echo
cat "$RESULT"
