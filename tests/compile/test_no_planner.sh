# test_no_planner.sh: the library without planner and strategy auto (ESP_NO_PLANNER): it compiles without warnings, from
# the tree and as the one-file header; the object has none of their functions; two ranks train with every other
# strategy, also together with a rank that has a planner, and without a third rank that died; strategy auto fails on
# every rank with a reason.
# runs: long
. tests/compile/common.sh
need gcc
try make -s dist
mkdir "$tmp/onefile"
cp dist/espresso.h "$tmp/onefile/"
warn="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
printf '#define ESPRESSO_IMPLEMENTATION\n#include "espresso.h"\n' >"$tmp/code.c"

# ---- it compiles: LABEL.o is the library, LABEL the program with it
builds() { # LABEL COMPILER FOLDER FLAG...
    label=$1 cc=$2 folder=$3
    shift 3
    try "$cc" -std=gnu11 "-I$folder" $warn "$@" -c "$tmp/code.c" -o "$tmp/$label.o"
    try "$cc" -std=gnu11 "-I$folder" $warn "$@" tests/compile/use_ranks.c "$tmp/$label.o" -o "$tmp/$label" -pthread -ldl -lm
}
lean=
for cc in gcc clang; do
    have $cc || { leaves_out "$cc is not there"; continue; }
    builds lean-$cc $cc "$root" -DESP_NO_PLANNER
    builds one-$cc $cc "$tmp/onefile" -DESP_NO_PLANNER
    lean="$lean lean-$cc one-$cc"
done
# gcc needs its optimiser for some warnings
try gcc -std=gnu11 "-I$root" $warn -DESP_NO_PLANNER -O1 -c "$tmp/code.c" -o "$tmp/optimised.o"
builds full gcc "$root" -g1

# ---- what is left out: the functions and data that the full object has from planner/, but for the one that says that auto is missing
nm -l --defined-only "$tmp/full.o" | grep /planner/ | awk '{ print $3 }' | grep -vx esp__auto_observer | sort -u >"$tmp/planner"
[ "$(wc -l <"$tmp/planner")" -gt 300 ] || { echo "nm -l finds too few of the planner's symbols:" && cat "$tmp/planner" && exit 1; }
for label in $lean; do
    nm "$tmp/$label.o" | awk '{ print $NF }' | sort -u >"$tmp/has"
    if comm -12 "$tmp/planner" "$tmp/has" | grep .; then echo "these are in $label.o with ESP_NO_PLANNER" && exit 1; fi
    if grep '^esp_plan_' "$tmp/has"; then exit 1; fi
done
echo 'int main(void) { return esp_plan_make != 0; }' | cat "$root/espresso.h" - >"$tmp/declared.c"
try gcc "-I$root" -fsyntax-only -Wno-address "$tmp/declared.c"
if gcc "-I$root" -DESP_NO_PLANNER -fsyntax-only "$tmp/declared.c" 2>/dev/null; then echo "esp_plan_make is declared" && exit 1; fi

# ---- two ranks
cat >"$tmp/strategy" <<'END'
espresso-strategy 1
tensor w 64 topk:ratio=0.5 comp@cpu > flat.allgather > decomp@cpu
tensor b 10 none flat.allreduce
END
job() { # PROGRAM PROGRAM: what ranks 0 and 1 say, in $tmp/rank0 and $tmp/rank1
    export ESPRESSO_BACKEND=shm ESPRESSO_SIZE=${size:-2} ESPRESSO_ROOT="unix:espresso-no-planner-$$" ESPRESSO_TIMEOUT_MS=20000
    if [ "$ESPRESSO_SIZE" = 3 ]; then
        ESPRESSO_RANK=2 "$tmp/$2" >"$tmp/rank2" 2>"$tmp/log2" &
    fi
    ESPRESSO_RANK=1 "$tmp/$2" >"$tmp/rank1" 2>"$tmp/log1" &
    ESPRESSO_RANK=0 "$tmp/$1" >"$tmp/rank0" 2>"$tmp/log0" || :
    wait || :
}
trains() { # STRATEGY PROGRAM PROGRAM
    export ESPRESSO_STRATEGY="$1"
    job "$2" "$3"
    [ "$(cat "$tmp/rank0" "$tmp/rank1")" = "ok
ok" ] || { echo "strategy $1, ranks $2 and $3:" && cat "$tmp/rank0" "$tmp/rank1" "$tmp/log0" "$tmp/log1" && exit 1; }
}
for label in $lean; do
    unset ESPRESSO_CODEC
    trains fp32 "$label" "$label"
    trains "$tmp/strategy" "$label" "$label"
    export ESPRESSO_CODEC=topk:ratio=0.5
    trains layerwise "$label" "$label"
done
trains layerwise lean-gcc full
trains layerwise full lean-gcc
size=3
trains layerwise lean-gcc full
trains layerwise full lean-gcc
size=2

says="strategy auto is not in this build (ESP_NO_PLANNER): compile espresso.c without that define, or link libespresso; or use fp32, \
layerwise or a strategy file, which \`espresso plan -o FILE\` writes"
for label in $lean; do
    for strategy in auto auto:steps=20; do
        export ESPRESSO_STRATEGY=$strategy
        job "$label" "$label"
        for rank in 0 1; do
            grep -qxF "$says" "$tmp/rank$rank" || { echo "rank $rank, $label, $strategy:" && cat "$tmp/rank$rank" "$tmp/log$rank" && exit 1; }
        done
    done
done
# a rank with a planner does not start alone
job lean-gcc full
grep -qxF "$says" "$tmp/rank0" && ! grep -qx ok "$tmp/rank1" || { cat "$tmp/rank0" "$tmp/rank1" && exit 1; }
ESPRESSO_STRATEGY=automatic
job lean-gcc lean-gcc
grep -q "strategy 'automatic': no built-in strategy" "$tmp/rank0" || { cat "$tmp/rank0" && exit 1; }
checked
