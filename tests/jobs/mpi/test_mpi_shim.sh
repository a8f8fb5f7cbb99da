# test_mpi_shim.sh: with libespresso-mpi-shim.so preloaded, an MPI trainer that does not know the library trains as
# before without a codec, and converges with one, which sends a small part of the bytes; wrong lists are said; children
# that a rank forks end, and change nothing.
# runs: quiet slow
. tests/compile/common.sh
mpirun=$(command -v mpirun.openmpi || command -v mpirun) || { echo "skipped: mpirun is not there (Debian: openmpi-bin)" && exit 77; }
shim=$root/$build/lib/libespresso-mpi-shim.so
[ -e "$shim" ] || { echo "skipped: the shim was not built (mpicc is not there)" && exit 77; }
"$mpirun" --version | grep -qE 'Open MPI|OpenRTE' || { echo "skipped: $mpirun is not Open MPI's" && exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ESPRESSO_PLUGIN_PATH="$root/$build/lib/espresso"
try mpicc -O2 -Wall -Wextra tests/jobs/mpi/trainer.c -o "$tmp/trainer"
trains() { # SUMS MODE: 4 ranks with the variables that are set; the output is in $tmp/said
    timeout -k 5 120 "$mpirun" --oversubscribe --mca btl self,vader --mca mpi_yield_when_idle 1 -n 4 ${1:+-x LD_PRELOAD="$shim" -x ESPRESSO_MPI_SUMS="$1"} \
        "$tmp/trainer" "$2" ${3:-} >"$tmp/said" 2>&1 || { echo "exit status $?: $1 $2" && cat "$tmp/said" && exit 1; }
}
last() { sed -n 's/^loss .* -> \([0-9.]*\), parameters same$/\1/p' "$tmp/said"; }
close() { # WHAT: the last loss is that of MPI alone, apart from rounding
    awk "BEGIN { d = $(last || echo 9) - $alone; exit !(d < $alone / 50 && d > -$alone / 50) }" || { echo "$1: not $alone:" && cat "$tmp/said" && exit 1; }
}
trains '' blocking
alone=$(last)
for mode in blocking overlap; do
    ESPRESSO_STATS=$tmp/none.jsonl trains '20000*4' $mode
    close "$mode, no codec"
    for backend in shm mpi; do
        rm -f "$tmp"/stats.jsonl*
        ESPRESSO_BACKEND=$backend ESPRESSO_CODEC=topk:ratio=0.05 ESPRESSO_STATS=$tmp/stats.jsonl trains 20000,20000,20000*2 $mode
        awk "BEGIN { exit !($(last || echo 9) < $alone * 3) }" || { echo "topk, $mode, $backend: " && cat "$tmp/said" && exit 1; }
        grep -q topk "$tmp"/stats.jsonl* || { echo "topk, $mode, $backend: the library did nothing" && exit 1; }
        compressed=$(last)
        for children in loader calls; do
            ESPRESSO_BACKEND=$backend ESPRESSO_CODEC=topk:ratio=0.05 trains '20000*4' $mode $children
            [ "$(last)" = "$compressed" ] || { echo "topk, $mode, $backend, $children: not $compressed" && cat "$tmp/said" && exit 1; }
            [ $children = loader ] || grep -q "a forked child takes no part in sums" "$tmp/said" || { cat "$tmp/said" && exit 1; }
        done
    done
done
says() { # TEXT SUMS
    trains "$2" blocking
    grep -q -- "$1" "$tmp/said" || { echo "expected '$1':" && cat "$tmp/said" && exit 1; }
    close "$2"
}
says "no call summed 777 floats over all ranks" 777
says "'20000x4' is no list of element counts" 20000x4
says "'0' is no list" 20000,0
says "is no list" '20000*5000'
if (ESPRESSO_STRATEGY=auto && export ESPRESSO_STRATEGY && trains '20000*4' blocking) >"$tmp/failed"; then
    echo "auto: no error" && exit 1
fi
grep -q "only fp32 and layerwise work here" "$tmp/said" || { cat "$tmp/said" && exit 1; }
