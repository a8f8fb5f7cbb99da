#!/bin/sh
# replay.sh: which strategy is fastest for the timing of a model, and is the planner's choice that one? Runs `espresso replay` over
# models, ranks and ratios of communication to computing; writes bench/results/replay.csv and replay.txt, and makes of them
# $BUILD/results/replay.svg and replay-cases.txt. Computing is a sleep here, and costs are measured by the same processes just before:
# bench/truth says how well steps of trainers are predicted. Builds nothing: make first.
#   bench/replay.sh [MODEL...] [4|8] [RATIO...]     (default: all; parts of it in any order: bench/replay.sh vgg16 4)
#   QUICK=1: 3 models, 4 ranks, ratio 1 (5 minutes)   FRESH=1: run what was run before, too   PLAN=1: only say what would run
# Environment: BUILD=build, RESULTS=bench/results, STRATEGIES=fp32,...|all, STEPS=9, INTER=100mbit,50us, GC=dgc:ratio=0.01, LIMIT=400
# (seconds a case may take), ESPRESSO_SHARED (folder with models/; default ../shared). A case that was run is kept in $BUILD/replay and
# not run again.
set -eu
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
STRATEGIES=${STRATEGIES:-fp32,ddp,fp16,layerwise,mergecomp,hipress,hitopkcomm,byteps-compress,espresso,espresso+}
STEPS=${STEPS:-9}
INTER=${INTER:-100mbit,50us}
GC=${GC:-dgc:ratio=0.01}
RESULTS=${RESULTS:-bench/results}
LIMIT=${LIMIT:-400}
models= ranks= ratios=
for word in "$@"; do
    case $word in
    4 | 8) ranks="$ranks $word" ;; # ranks, not a ratio: write 4.0 for that
    [0-9]*) ratios="$ratios $word" ;;
    -*) sed -n '2,10s/^# *//p' "$0" && exit 2 ;;
    *) models="$models $word" ;;
    esac
done
if [ "${QUICK:-0}" = 1 ]; then
    models=${models:-vgg16 bert-base lstm} ranks=${ranks:-4} ratios=${ratios:-1}
fi
models=${models:-vgg16 resnet101 ugatit bert-base gpt2 lstm}
ranks=${ranks:-4 8}
ratios=${ratios:-0.3 1 3}
# the published traces where they are, else what comes along
[ ! -d "${ESPRESSO_SHARED:-../shared}/models" ] || export ESPRESSO_MODELS="${ESPRESSO_SHARED:-../shared}/models"
espresso=$BUILD/bin/espresso
[ -x "$espresso" ] || { echo "replay.sh: $espresso is not there: run make first" >&2 && exit 1; }
kept=$BUILD/replay
mkdir -p "$kept"

# What there is to do, as "MODEL RANKS RATIO" lines.
cases() {
    for n in $ranks; do for ratio in $ratios; do for model in $models; do echo "$model $n $ratio"; done; done; done
}
name_of() { echo "$kept/$1-$2-$3"; }

# Runs one case. A strategy that is refused is noted in .refused, and the others run without it.
run_case() {
    out=$(name_of "$@")
    list=$STRATEGIES
    scale=
    # half of its tensors are biases, which come with their weights: that their gaps are short says nothing, and a step that is
    # long enough for them (20 times) would take 5 s
    [ "$1" != lstm ] || scale="--time-scale 1 --force"
    : >"$out.refused"
    while :; do
            status=0
        # shellcheck disable=SC2086
        timeout -k 10 "$LIMIT" "$espresso" replay --model "$1" -n "$2" --machines $(($2 / 2)) --inter "$INTER" --ratio "$3" $scale \
            --gc "$GC" --strategy "$list" --steps "$STEPS" --json >"$out.tmp" 2>"$out.err" </dev/null || status=$?
        # with "all", what is refused is left out by the command itself
        sed -n 's/^espresso replay: left out: //p; s/^espresso replay: \(.*\) is left out: /\1: /p' "$out.err" >>"$out.refused"
        if [ "$status" = 0 ]; then
            mv "$out.tmp" "$out.json"
            rm -f "$out.err" "$out.failed"
            [ -s "$out.refused" ] || rm -f "$out.refused"
            return 0
        fi
        refused=$(sed -n 's/^espresso replay: \(.*\); --force runs it all the same.*/\1/p' "$out.err" | head -n 1)
        # where gaps are too short to be waited for, all of it runs so much slower
        wanted=$(echo "$refused" | sed -n 's/.*use --time-scale \([0-9.]*\).*/--time-scale \1/p')
        if [ -n "$wanted" ] && [ -z "$scale" ]; then
            scale=$wanted
            continue
        fi
        name=${refused%%: *}
        rm -f "$out.tmp"
        rest=$(echo ",$list," | sed "s|,$(echo "$name" | sed 's/[+.]/\\&/g'),|,|; s/^,//; s/,\$//")
        if [ -n "$refused" ] && [ "$rest" != "$list" ] && [ -n "$rest" ]; then
            echo "$refused" >>"$out.refused"
            list=$rest
            continue
        fi
        # the whole case: refused for a reason that no strategy has to do with, or it failed
        if [ -n "$refused" ]; then
            echo "case: $refused" >>"$out.refused"
        else
            { [ "$status" != 124 ] || echo "took over $LIMIT s" && tail -n 1 "$out.err"; } | tr '\n' ' ' >"$out.failed"
        fi
        rm -f "$out.err" "$out.json"
        [ -s "$out.refused" ] || rm -f "$out.refused"
        return 0
    done
}

todo=$(cases | while read -r c; do
    # shellcheck disable=SC2086
    file=$(name_of $c)
    if [ "${FRESH:-0}" = 1 ] || { [ ! -f "$file.json" ] && ! grep -qs '^case: ' "$file.refused"; }; then echo "$c"; fi
done)
count=$(echo "$todo" | grep -c . || true)
strategies=$(echo "$STRATEGIES" | tr ',' '\n' | wc -l)
[ "$STRATEGIES" != all ] || strategies=17
# a strategy's step takes about 0.3 s, one in four is not counted; a real case is measured for 8 s first
echo "$count of $(cases | grep -c .) cases are to be run: about $((count * (10 + strategies * STEPS * 4 / 3 * 3 / 10) / 60)) minutes"
[ "${PLAN:-0}" = 0 ] || { echo "$todo" && exit 0; }
done_=0
begin=$(date +%s)
echo "$todo" | grep . | while read -r c; do
    # shellcheck disable=SC2086
    run_case $c
    # shellcheck disable=SC2086
    file=$(name_of $c)
    done_=$((done_ + 1))
    now=$(date +%s)
    said=ok
    [ ! -f "$file.failed" ] || said="failed: $(cat "$file.failed")"
    [ ! -f "$file.refused" ] || said="refused: $(head -n 1 "$file.refused" | cut -c1-100)"
    echo "[$done_/$count, $(((now - begin) / 60)) min, $(((now - begin) * (count - done_) / done_ / 60)) to go] $c: $said"
done
{
    echo "# bench/replay.sh: STRATEGIES=$STRATEGIES STEPS=$STEPS INTER=$INTER GC=$GC"
    awk -F': ' '/model name/ { cpu = $2; n++ } END { printf "machine: %s, %d cores", cpu ? cpu : "unknown CPU", n }' /proc/cpuinfo
    echo ", load $(cut -d' ' -f1-3 /proc/loadavg); $(uname -sr)"
} >"$kept/machine.txt"
python3 bench/replay_table.py "$kept" "$RESULTS"
python3 -B bench/replay_plot.py "$RESULTS" "$BUILD/results"
python3 -B bench/case_tables.py "$RESULTS" "$BUILD/results"
sed -n '/^Summary/,$p' "$RESULTS/replay.txt"
