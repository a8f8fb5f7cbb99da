#!/bin/sh
# accuracy.sh: what codecs cost in accuracy: the trainers of examples/ with two optimizers each, and an LSTM, with every
# row of bench/accuracy/accuracy.rows and three seeds. Loss by steps does not depend on the clock, so these runs emulate
# no link, and accuracy_table.py computes step times from the bytes sent. Writes accuracy.csv and accuracy-ends.csv;
# make results draws the curves. vnmse.csv has how much of the GPT's gradients codecs leave out (vnmse.c).
#   make accuracy, or sh bench/accuracy/accuracy.sh [run] [size] [check] [table] [vnmse]    (default: all; about an hour)
# Runs that are done are not repeated: remove $BUILD/bench/accuracy for that. Rows without runs keep their results.
# size: how many bytes rows without runs send. check: some step times on emulated links.
# Variables: BUILD (build), RESULTS (bench/results/accuracy), SEEDS (1 2 3), TRAINERS, ROWS
# (bench/accuracy/accuracy.rows), ROUNDS (3; of check).
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
SEEDS=${SEEDS:-1 2 3}
TRAINERS=${TRAINERS:-gpt-adamw gpt-momentum0.9 lstm-momentum0.5 fashion-momentum0.5 fashion-momentum0.9}
ROWS=${ROWS:-bench/accuracy/accuracy.rows}
RESULTS=${RESULTS:-bench/results/accuracy}
ROUNDS=${ROUNDS:-3}
work=$BUILD/bench/accuracy
unset ESPRESSO_STRATEGY ESPRESSO_CODEC ESPRESSO_BACKEND ESPRESSO_TRACE ESPRESSO_INTER_LINK ESPRESSO_MIN_COMPRESS_ELEMENTS
export OMP_NUM_THREADS=1
mkdir -p "$work"

# The trainer's program, usual momentum, steps and flags. The learning rates are fp32's best of three.
trainer() {
    gpt="$BUILD/bin/gpt --sample 0 --width 72 --context 32 --batch 4 --accumulate 1"
    fashion="$BUILD/bin/train --eval 0 --batch 32 --limit-train 25600"
    case $1 in
    gpt-adamw) momentum=0.9 steps=300 program="$gpt --optimizer adamw --lr 0.004" ;;
    gpt-momentum0.9) momentum=0.9 steps=300 program="$gpt --optimizer sgd --lr 0.1" ;;
    lstm-momentum0.5) momentum=0.5 steps=300 program="$BUILD/bench/trainer lstm --width 32 --hidden 64 --length 16 --batch 4" ;;
    fashion-momentum0.5) momentum=0.5 steps=200 program="$fashion --lr 0.3" ;;
    fashion-momentum0.9) momentum=0.9 steps=200 program="$fashion --lr 0.06" ;;
    *)
        echo "accuracy.sh: TRAINERS: '$1' is not known" >&2
        exit 2
        ;;
    esac
}

one() { # OUT LINK STEPS ROW FLAGS...: OUT.json and OUT.csv
    out=$1 link=$2 limit=$3 row=$4
    shift 4
    IFS=';' read -r name codec own tensors <<LINE
$row
LINE
    codec=$(echo "$codec" | sed "s/=M/=$momentum/g; s/=W/=$((steps / 6))/g")
    if [ "$own" = M ]; then own=$momentum; fi
    small=4096 strategy=layerwise
    if [ "$tensors" != large ]; then small=0; fi
    if [ "$tensors" = merged ]; then strategy=merged:groups=1; fi
    if ! ESPRESSO_MIN_COMPRESS_ELEMENTS=$small "$BUILD/bin/espresso" run -n 4 --machines 2 ${link:+--inter "$link"} -- $program --momentum "$own" \
        --max-steps "$limit" --strategy $strategy --codec "$codec" --json "$out.json.part" --curve "$out.csv" "$@" >"$out.log" 2>&1; then
        tail -n 5 "$out.log" >&2
        echo "accuracy.sh: '$name' failed: $out.log" >&2
        return 1
    fi
    mv "$out.json.part" "$out.json"
}

file() { echo "$work/$1.$(echo "$2" | cut -d';' -f1 | tr -c 'A-Za-z0-9.\n' _)"; } # KIND ROW

runs() {
    for seed in $SEEDS; do
        for t in $TRAINERS; do
            trainer "$t"
            grep -v '^#' "$ROWS" | while IFS= read -r row; do
                out=$(file "$t.$seed" "$row")
                [ -f "$out.json" ] || one "$out" "" "$steps" "$row" --seed "$seed" </dev/null || :
            done
            echo "$t, seed $seed: done"
        done
    done
}

# Three steps, but all of them of rows whose sizes change from step to step.
sizes() {
    for t in gpt-adamw lstm-momentum0.5 fashion-momentum0.5; do
        trainer "$t"
        grep -v '^#' "$ROWS" | while IFS= read -r row; do
            out=$(file "$t.1" "$row") n=3
            case $row in
            *=W* | threshold* | inceptionn* | threelc* | adaptive* | lossless*) n=$steps ;;
            *) [ -f "$out.json" ] || out=$(file "size.$t" "$row") ;;
            esac
            [ -f "$out.json" ] || one "$out" "" "$n" "$row" --seed 1 </dev/null || :
        done
    done
}

# Step times with emulated links, to compare the computed ones with.
checks() {
    for round in $(seq "$ROUNDS"); do
        for t in gpt-adamw lstm-momentum0.5 fashion-momentum0.5; do
            trainer "$t"
            for link in 100mbit,50us 1gbit,50us; do
                grep '^fp32;\|^int4;\|^efsignsgd;\|^topk 1%;\|^powersgd rank 4;' "$ROWS" | while IFS= read -r row; do
                    out=$(file "time.$t.$round.$link" "$row")
                    [ -f "$out.json" ] || one "$out" "$link" 30 "$row" --seed 1 </dev/null || :
                done
            done
        done
    done
}

vnmse() {
    ${CC:-gcc} -std=gnu11 -O2 -ffp-contract=off -I. bench/accuracy/vnmse.c examples/gpt/model.c examples/gpt/text.c \
        examples/train/gemm.c -o "$work/vnmse" "$BUILD/lib/libespresso.a" -pthread -ldl -lm
    "$work/vnmse" >"$work/vnmse.csv"
    cp "$work/vnmse.csv" "$RESULTS/vnmse.csv"
}

load=$(cut -d' ' -f1-3 /proc/loadavg)
for part in ${*:-run size check table vnmse}; do
    case $part in
    run) runs ;;
    size) sizes ;;
    check) checks ;;
    table) python3 -B bench/accuracy/accuracy_table.py "$work" "$ROWS" "$RESULTS" "$load" ;;
    vnmse) vnmse ;;
    *)
        echo "usage: bench/accuracy/accuracy.sh [run] [size] [check] [table] [vnmse]" >&2
        exit 2
        ;;
    esac
done
