#!/bin/sh
# outer.sh: outer loops (docs/use/outer.md) against averaging in every step: the small GPT with AdamW (beta1 0.3) and the LSTM with
# SGD of momentum 0.5, 4 workers on as many machines, three seeds. Loss by steps does not depend on the clock, so these
# runs emulate no link; step times come from short runs of their own on each link. Writes outer.csv; make results draws
# outer.svg.
#   sh bench/accuracy/outer.sh [run] [time] [table]     (default: all; about 15 minutes)
#   sh bench/accuracy/outer.sh delay                    how much of the time 4 and 8 workers train, with a delay: outer-delay.csv (a minute)
#   sh bench/accuracy/outer.sh eight                    loss by steps of some methods with 8 workers: outer-eight.csv (10 minutes)
#   sh bench/accuracy/outer.sh warmup                   the GPT, if its first steps average gradients, and in longer runs: outer-warmup.csv
# Runs that are done are not repeated: remove $BUILD/bench/outer for that.
# Variables: BUILD (build), RESULTS (bench/results/accuracy), SEEDS (1 2 3), ROUNDS (2; of the short runs).
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
SEEDS=${SEEDS:-1 2 3}
RESULTS=${RESULTS:-bench/results/accuracy}
ROUNDS=${ROUNDS:-2}
STEPS=900
workers=4
work=$BUILD/bench/outer
unset ESPRESSO_STRATEGY ESPRESSO_CODEC ESPRESSO_BACKEND ESPRESSO_TRACE ESPRESSO_INTER_LINK ESPRESSO_MIN_COMPRESS_ELEMENTS ESPRESSO_OUTER
export OMP_NUM_THREADS=1
mkdir -p "$work"

# NAME;CODEC;OUTER LOOP;STEPS OF ITS ROUND (0: none)
rows="fp32;none;;0
int4;int4;;0
efsignsgd;efsignsgd;;0
average 30;none;average:every=30;30
diloco 10;none;diloco:every=10;10
diloco 30;none;diloco:every=30;30
diloco 30, momentum 0.5;none;diloco:every=30,momentum=0.5;30
diloco 30, momentum 0.5, int4;int4;diloco:every=30,momentum=0.5;30
diloco 100;none;diloco:every=100;100
streaming int4;int4;streaming:every=30,fragments=4,delay=5;30
sparseloco;chunktopk;sparseloco:every=30;30"

one() { # OUT MODEL STEPS LINK ROW FLAGS...: OUT.json and OUT.csv
    out=$1 limit=$3 link=$4
    case $2 in
    gpt) program="$BUILD/bin/gpt --sample 0 --width 48 --context 32 --batch 4 --accumulate 1 --momentum 0.3 --lr 0.004" ;;
    lstm) program="$BUILD/bench/trainer lstm --width 32 --hidden 64 --length 16 --batch 4" ;;
    esac
    IFS=';' read -r name codec outer every <<LINE
$5
LINE
    shift 5
    [ ! -f "$out.json" ] || return 0
    # shellcheck disable=SC2086 # several words
    if ! "$BUILD/bin/espresso" run -n "$workers" --machines "$workers" ${link:+--inter "$link"} -- $program --max-steps "$limit" --strategy layerwise \
        --codec "$codec" ${outer:+--outer "$outer"} --json "$out.json.part" --curve "$out.csv" "$@" >"$out.log" 2>&1 </dev/null; then
        tail -n 5 "$out.log" >&2
        echo "outer.sh: '$name' failed: $out.log" >&2
        return 1
    fi
    mv "$out.json.part" "$out.json"
}

file() { echo "$work/$1.$(echo "$2" | cut -d';' -f1 | tr ' ' _)"; } # KIND ROW

runs() {
    for seed in $SEEDS; do
        for model in gpt lstm; do
            echo "$rows" | while IFS= read -r row; do
                one "$(file "$model.$seed" "$row")" $model $STEPS "" "$row" --seed "$seed"
            done
            echo "$model, seed $seed: done"
        done
    done
}

# Step times: of whole rounds, or of some steps. Without a delay: outer_table.py subtracts what a delay hides.
step_times() {
    for round in $(seq "$ROUNDS"); do
        for model in gpt lstm; do
            for link in 10mbit,40ms 100mbit,50us 1gbit,50us; do
                echo "$rows" | while IFS= read -r row; do
                    every=${row##*;}
                    case $every,$link in
                    0,10mbit*) n=12 ;;
                    0,100mbit*) n=44 ;;
                    0,*) n=84 ;;
                    100,*) n=300 ;;
                    *) n=$((every * 4)) ;;
                    esac
                    one "$(file "time.$model.$round.$link" "$row")" $model "$n" "$link" "$(echo "$row" | sed 's/delay=5/delay=0/')"
                done
            done
        done
        echo "step times, round $round: done"
    done
}

# Whole rounds with the delay, after the first one: outer.csv's rows subtract what a delay would hide.
delays() {
    echo "# bench/accuracy/outer.sh delay: $(uname -sr), $(nproc --all) cores, load before: $load; all workers on emulated machines, 100mbit,50us"
    echo "# alone_ms: a step in a round that does not end; step_ms: the mean of two rounds, the least of $ROUNDS runs; busy_percent: alone_ms / step_ms"
    echo "model,workers,codec,outer,alone_ms,step_ms,busy_percent"
    for model in gpt lstm; do
        for workers in 4 8; do
            alone=
            while IFS= read -r row; do
                least=
                for round in $(seq "$ROUNDS"); do
                    out=$(file "delay.$model.$workers.$round" "$row")
                    one "$out" $model 301 100mbit,50us "$row"
                    least=$(awk -F, -v least="$least" '$1 == 101 { from = $2 } $1 == 301 { ms = ($2 - from) * 5 }
                        END { print least == "" || ms < least ? ms : least }' "$out.csv")
                done
                alone=${alone:-$least}
                echo "$row" | awk -F';' -v model=$model -v n=$workers -v alone="$alone" -v ms="$least" '{
                    printf "%s,%s,%s,\"%s\",%.2f,%.2f,%.1f\n", model, n, $2, $3, alone, ms, 100 * alone / ms }'
            done <<ROWS
alone;none;average:every=100000;0
none;none;diloco:every=100;100
none 50;none;diloco:every=100,delay=50;100
int4;int4;diloco:every=100;100
int4 30;int4;diloco:every=100,delay=30;100
ROWS
        done
    done
    workers=4
}

# Held-out bits and bytes if averaging in every step comes first, as the papers begin with a model that was trained; and
# in longer runs.
warmups() {
    row="warm-up;int4;diloco:every=30,momentum=0.5;30"
    echo "# bench/accuracy/outer.sh warmup: the small GPT, 4 workers: int4 and diloco:every=30,momentum=0.5 after \`warmup\` steps that"
    echo "# average gradients (int4); held-out bits a character; bytes as in outer.csv, warm-up included; fp32 in as many steps"
    echo "seed,steps,warmup,bytes_per_step,times_fewer,held_out_bits,fp32_bits,to_fp32_percent"
    for seed in $SEEDS; do
        for steps in $STEPS 2700 8100; do
            fp32="$work/gpt.$seed.fp32"
            [ "$steps" = $STEPS ] || fp32=$fp32.$steps
            one "$fp32" gpt "$steps" "" "fp32;none;;0" --seed "$seed"
            for warmup in 0 90 300 600; do
                [ $warmup = 0 ] || [ "$steps" = $STEPS ] || continue
                one "$work/gpt.$seed.$steps.warm$warmup" gpt "$steps" "" "$row" --seed "$seed" --warmup $warmup
                cat "$fp32.json" "$work/gpt.$seed.$steps.warm$warmup.json" | tr ',{}' '\n' |
                    awk -F': ' -v run="$seed,$steps,$warmup" '/inter_bytes/ { bytes[n++] = $2 } /bits_per/ { bits[m++] = $2 }
                        END { printf "%s,%.0f,%.1f,%.4f,%.4f,%+.2f\n", run, bytes[1] / 4, bytes[0] / bytes[1], bits[1], bits[0],
                              100 * (bits[1] / bits[0] - 1) }'
            done
        done
    done
}

# Held-out bits and bytes with 8 workers.
eights() {
    workers=8
    echo "# bench/accuracy/outer.sh eight: $workers workers, $STEPS steps; held-out bits a character; bytes as in outer.csv"
    echo "model,seed,method,bytes_per_step,times_fewer,held_out_bits,to_fp32_percent"
    for model in gpt lstm; do
        for seed in $SEEDS; do
            echo "$rows" | grep -E '^(fp32|int4|diloco 30, momentum 0.5, int4|diloco 100|sparseloco);' | while IFS= read -r row; do
                out=$(file "eight.$model.$seed" "$row")
                one "$out" $model $STEPS "" "$row" --seed "$seed"
                cat "$work/eight.$model.$seed.fp32.json" "$out.json" | tr ',{}' '\n' |
                    awk -F': ' -v run="$model,$seed,\"$(echo "$row" | cut -d';' -f1)\"" '
                        /inter_bytes/ { bytes[n++] = $2 } /bits_per/ { bits[m++] = $2 }
                        END { printf "%s,%.0f,%.1f,%.4f,%+.2f\n", run, bytes[1] / 8, bytes[0] / bytes[1], bits[1], 100 * (bits[1] / bits[0] - 1) }'
            done
        done
    done
    workers=4
}

load=$(cut -d' ' -f1-3 /proc/loadavg)
for part in ${*:-run time table}; do
    case $part in
    run) runs ;;
    time) step_times ;;
    table) echo "$rows" | python3 -B bench/accuracy/outer_table.py "$work" "$RESULTS/outer.csv" "$STEPS" "$load" ;;
    delay) delays >"$RESULTS/outer-delay.csv" ;;
    eight) eights >"$RESULTS/outer-eight.csv" ;;
    warmup) warmups >"$RESULTS/outer-warmup.csv" ;;
    *)
        echo "usage: bench/accuracy/outer.sh [run] [time] [table] [delay] [eight] [warmup]" >&2
        exit 2
        ;;
    esac
done
