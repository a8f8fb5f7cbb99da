#!/bin/sh
# test_mpi_hosts.sh: four hosts with two ranks each, Open MPI over a shaped network between them: the conformance checks
# of backend mpi, a sample of the options, and a trainer without compression and with strategies. Skipped, with the
# reason, where network namespaces are not allowed. time limit: 500 s RATES: the links, "1gbit" (the default) or "1gbit
# 100mbit". The checks are those of the test build, with 4 MiB instead of 64.
# runs: long quiet
set -eu
BUILD=${BUILD:-build}
ESPRESSO_COMMAND=${ESPRESSO_COMMAND:-$PWD/$BUILD/bin/espresso}
TESTBED=$$
export BUILD TESTBED
hosts="sh tests/jobs/hosts/hosts.sh"
work=$(mktemp -d)
trap '$hosts down; rm -rf "$work"' EXIT
trap 'exit 143' HUP INT TERM
command -v mpirun >/dev/null || { echo "skipped: mpirun is not there (Debian: openmpi-bin)" && exit 77; }
[ -e "$BUILD/lib/espresso/libespresso-mpi.so" ] || { echo "skipped: backend mpi was not built (mpicc is not there)" && exit 77; }
[ -d /usr/share/datasets/fashion-mnist ] || { echo "skipped: Debian's dataset-fashion-mnist is not there" && exit 77; }
ESPRESSO_PLUGIN_PATH=$PWD/$BUILD/lib/espresso
export ESPRESSO_PLUGIN_PATH
fail() {
    echo "FAILED: $*" && tail -n 30 "$work/said"
    exit 1
}
mpi() { # FLAGS_OF_MPIRUN COMMAND...
    MPIRUN_FLAGS="-x ESPRESSO_PLUGIN_PATH $1" && export MPIRUN_FLAGS
    shift
    sh tests/jobs/hosts/mpirun.sh 4 2 "$@" >"$work/said" 2>&1
}
for rate in ${RATES:-1gbit}; do
    $hosts up 4 "$rate" 100us || exit $?
    mpi "" "$BUILD/tests/bin/espresso" plugins --check mpi || fail "$rate: conformance: status $?"
    grep -q "8 processes of the launcher, on 4 machine" "$work/said" || fail "$rate: conformance: not on 4 machines"
    echo "$rate: conformance: $(tail -n 1 "$work/said")"
    # every 20th of 4341, besides those of codec none; MPI between machines, shared memory inside
    mpi "" "$BUILD/tests/jobs/mpi/options" 20 || fail "$rate: options: status $?"
    sed "s/^/$rate: /" "$work/said"
    reference=
    for how in "" "-x ESPRESSO_CODEC=topk:ratio=0.01" "-x ESPRESSO_CODEC=efsignsgd -x ESPRESSO_STRATEGY=layerwise"; do
        mpi "$how" "$BUILD/bin/train" --max-steps 40 --limit-train 16384 --epochs 2 --eval 0 --json "$work/result" ||
            fail "$rate: trainer $how: status $?"
        accuracy=$(sed -n 's/.*"accuracy": *\([0-9.]*\).*/\1/p' "$work/result")
        echo "$rate: trainer ${how:-fp32}: test accuracy $accuracy"
        [ -n "$reference" ] || reference=$accuracy
        echo "$accuracy $reference" | awk '{ exit !($1 > 0.6 || $1 > 60) || !($2 > 0) }' || fail "$rate: trainer $how: accuracy $accuracy"
    done
    # a link that is cut for 3 s delays the job, but does not end it
    # shellcheck disable=SC2086 # several words
    ${CC:-gcc} -O1 -I. tests/jobs/hosts/steps.c "$BUILD/lib/libespresso.a" ${OPENMP_FLAG:-} -pthread -ldl -lm -o "$work/steps"
    mpi "" "$work/steps" 100 50 &
    job=$!
    for _ in $(seq 300); do
        if grep -q "the first step is done" "$work/said" 2>/dev/null; then break; fi
        sleep 0.1
    done
    $hosts cut 2 && sleep 3 && $hosts mend 2
    wait $job || fail "$rate: a link that was cut for 3 s: status $?"
    grep -q "all 100 steps are right on rank 7 of 8" "$work/said" || fail "$rate: after a link was cut for 3 s"
    echo "$rate: a link cut for 3 s: ok"
    $hosts down
done
