#!/bin/sh
# test_mpich.sh: backend mpi, compiled with MPICH's wrapper and started by its mpirun: the conformance checks, options
# of the tree on two machines, programs that use MPI themselves, a rank that dies. time limit: 300 s
# runs: long quiet
set -u
BUILD=${BUILD:-build}
ESPRESSO_COMMAND=${ESPRESSO_COMMAND:-$PWD/$BUILD/bin/espresso}
mpicc=$(command -v mpicc.mpich) || { echo "skipped: mpicc.mpich is not there (Debian: libmpich-dev)" && exit 77; }
mpirun=$(command -v mpirun.mpich) || { echo "skipped: mpirun.mpich is not there (Debian: mpich)" && exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 143' HUP INT TERM
failed=0
bad() { echo "FAILED: $*" && tail -n 20 "$dir/log" && failed=1; }
mpi() { # RANKS COMMAND...
    n=$1
    shift
    timeout -k 5 100 "$mpirun" -n "$n" "$@" >"$dir/log" 2>&1
}
passes() { # NAME RANKS COMMAND...
    name=$1
    shift
    mpi "$@" || bad "$name: exit status $?"
    grep -E '^(ok|[a-z]+: .*(ok|FAILED)|[0-9]+ passed|joined)' "$dir/log" | sed "s/^/$name: /"
}
flags="-std=gnu11 -ffp-contract=off -I. -I$BUILD/gen -pthread -O2 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
# shellcheck disable=SC2086
"$mpicc" $flags -fPIC -fvisibility=hidden -shared -Wl,-z,defs backends/common/*.c backends/p2p/*.c -o "$dir/libespresso-mpi.so" -ldl -lm >"$dir/log" 2>&1 || bad "the backend does not compile"
# shellcheck disable=SC2086
"$mpicc" $flags tests/jobs/mpi/joined.c -o "$dir/joined" "$BUILD/lib/libespresso.a" -ldl -lm >"$dir/log" 2>&1 || bad "a program that uses MPI does not compile"
[ $failed -eq 0 ] || exit 1
ESPRESSO_PLUGIN_PATH=$dir OMP_NUM_THREADS=1
export ESPRESSO_PLUGIN_PATH OMP_NUM_THREADS
passes conformance 4 "$ESPRESSO_COMMAND" plugins --check mpi
# shellcheck disable=SC2016
ESPRESSO_BACKEND=mpi passes "options, two levels" 4 sh -c 'ESPRESSO_PLACE=m$((PMI_RANK / 2)) exec "$0" 100' "$BUILD/tests/jobs/mpi/options"
for mode in funnelled multiple; do passes "its own MPI" 4 "$dir/joined" $mode; done
# shellcheck disable=SC2016
if ESPRESSO_BACKEND=mpi mpi 4 sh -c 'if [ $PMI_RANK = 2 ]; then (sleep 3; kill -9 $$) & fi; exec "$0" --epochs 1000 --limit-train 20000 --eval 0' "$BUILD/bin/train"; then
    bad "a killed rank: no error"
fi
exit $failed
