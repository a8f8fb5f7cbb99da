#!/bin/sh
# auto_pairs.sh: what strategy auto costs where nothing is to be won: examples/train under fp32 and under auto, in interleaved
# pairs, on links as fast as this machine. The mean step is taken over the whole run after auto's first measurement, trying and
# watching included. Prints a line a pair and the median ratio; exits 1 where that is over LIMIT.
#   sh bench/auto_pairs.sh [PAIRS]        8 pairs: about two minutes
# Variables: BUILD (build), STEPS (160), LINK (an emulated link; default: none), BUSY (0; so many processes that only burn a
# core), CODECS (what auto may choose from), AUTO (strategy of the second run; fp32: how far apart two equal runs are),
# LIMIT (1.02), RESULT (bench/results/auto_pairs.csv).
set -eu
cd "$(dirname "$0")/.."
PAIRS=${1:-8}
BUILD=${BUILD:-build}
STEPS=${STEPS:-160}
LINK=${LINK-}
BUSY=${BUSY:-0}
CODECS=${CODECS:-efsignsgd;topk:ratio=0.01}
AUTO=${AUTO:-auto}
LIMIT=${LIMIT:-1.02}
RESULT=${RESULT:-bench/results/auto_pairs.csv}
OUT=$BUILD/bench/auto_pairs
case $PAIRS$STEPS$BUSY in *[!0-9]*) echo "auto_pairs.sh: PAIRS, STEPS and BUSY are whole numbers" >&2; exit 2 ;; esac
[ "$PAIRS" -gt 0 ] || { echo "auto_pairs.sh: PAIRS must be 1 or more" >&2; exit 2; }
# these would override what the runs are about
unset ESPRESSO_STRATEGY ESPRESSO_CODEC ESPRESSO_BACKEND ESPRESSO_TRACE ESPRESSO_INTER_LINK
mkdir -p "$OUT" "$(dirname "$RESULT")"

burning=
trap 'for p in $burning; do kill "$p" 2>/dev/null || :; done; rm -f "$RESULT.tmp"' EXIT
trap 'exit 130' INT TERM
i=0
while [ "$i" -lt "$BUSY" ]; do
    sh -c 'while :; do :; done' &
    burning="$burning $!"
    i=$((i + 1))
done

run() { # NAME FLAGS...: NAME.csv gets the time after each step, NAME.log the messages
    name=$1
    shift
    ESPRESSO_LOG=info "$BUILD/bin/espresso" run -n 4 --machines 2 ${LINK:+--inter "$LINK"} -- "$BUILD/bin/train" \
        --max-steps "$STEPS" --eval 0 --curve "$OUT/$name.csv" "$@" >"$OUT/$name.log" 2>&1 || {
        cat "$OUT/$name.log" >&2
        echo "auto_pairs.sh: the run '$name' failed; its messages are above" >&2
        exit 1
    }
}

mean() { # NAME FIRST: milliseconds a step, of the steps after FIRST
    awk -F, -v first="$2" '{ at[NR] = $2 } END { first += 0; if (NR <= first) exit 1
        printf "%.3f", 1e3 * (at[NR] - at[first]) / (NR - first) }' "$OUT/$1.csv" || {
        echo "auto_pairs.sh: $OUT/$1.csv ends before step $2, where auto began: more STEPS are needed" >&2
        exit 1
    }
}

{
    echo "# fp32 and auto in pairs: mean step after auto's first measurement; examples/train, 4 ranks on 2 emulated machines,"
    echo "# link ${LINK:-not emulated}, $STEPS steps, $BUSY busy processes beside, auto may use $CODECS"
    awk -F: '/model name/ { cpu = $2 } END { printf "# machine:%s, ", cpu ? cpu : " unknown CPU" }' /proc/cpuinfo
    echo "$(nproc) cores, $(uname -s) $(uname -r | cut -d. -f1,2), load before: $(cut -d' ' -f1 /proc/loadavg)"
    echo "pair,first,fp32_ms,auto_ms,ratio,spent_steps,lost_steps,tried,what"
} >"$RESULT.tmp"

printf '%4s %9s %9s %6s %6s %6s %6s  %s\n' pair "fp32 ms" "auto ms" ratio spent lost tried "what auto did"
pair=1
while [ "$pair" -le "$PAIRS" ]; do
    if [ $((pair % 2)) = 1 ]; then order="fp32 auto"; else order="auto fp32"; fi
    for kind in $order; do
        if [ "$kind" = fp32 ]; then run fp32 --strategy fp32; else run auto --strategy "$AUTO" --codec "$CODECS"; fi
    done
    # 2 steps warm up, then so many are measured
    first=$(sed -n 's/.*autopilot: measured \([0-9][0-9]*\) steps:.*/\1/p' "$OUT/auto.log" | head -n 1)
    first=$((${first:-20} + 2))
    what=$(sed -n 's/^.*espresso: autopilot: //p' "$OUT/auto.log" | tr ',"' ';.' | sed 's/$/ |/' | tr '\n' ' ')
    tried=$(sed -n 's/^.*espresso: autopilot: step [0-9]*: .* predicted .*/x/p' "$OUT/auto.log" | wc -l)
    fp32=$(mean fp32 "$first")
    auto=$(mean auto "$first")
    ratio=$(awk -v a="$auto" -v b="$fp32" 'BEGIN { r = b + 0 ? a / b : 9; printf "%.4f", r }')
    # by its own account, in steps: what it took itself, and what tries lost
    cost=$(sed -n 's/.*first measurement it spent the time of \([0-9.]*\) steps, and tries lost \([0-9.]*\);.*/\1 \2/p' "$OUT/auto.log")
    cost=${cost:-0 0}
    spent=${cost% *} lost=${cost#* }
    printf '%4d %9.2f %9.2f %6.3f %6s %6s %6d  %.90s\n' "$pair" "$fp32" "$auto" "$ratio" "$spent" "$lost" "$tried" "$what"
    echo "$pair,${order%% *},$fp32,$auto,$ratio,$spent,$lost,$tried,\"$what\"" >>"$RESULT.tmp"
    pair=$((pair + 1))
done

median=$(grep -v '^#' "$RESULT.tmp" | awk -F, 'NR > 1 { print $5 }' | sort -n |
    awk '{ x[NR] = $1 } END { h = int((NR + 1) / 2); printf "%.4f", NR % 2 ? x[h] : (x[h] + x[h + 1]) / 2 }')
echo "# median ratio $median" >>"$RESULT.tmp"
mv "$RESULT.tmp" "$RESULT"
echo
if awk -v m="$median" -v l="$LIMIT" 'BEGIN { exit !(m <= l) }'; then
    echo "median ratio auto / fp32 over the whole run: $median (at most $LIMIT)"
else
    echo "median ratio auto / fp32 over the whole run: $median: MORE than $LIMIT"
    exit 1
fi
