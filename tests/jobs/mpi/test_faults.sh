#!/bin/sh
# test_faults.sh: faults at random moments over MPI: tests/jobs/faults/test_chaos with Open MPI's launcher, with its
# option to keep the other ranks when one dies. RUNS of each kind (5). time limit: 300 s
# runs: long quiet
set -u
BUILD=${BUILD:-build}
RUNS=${RUNS:-5}
mpirun=$(command -v mpirun.openmpi || command -v mpirun) || { echo "skipped: mpirun is not there (Debian: openmpi-bin)" && exit 77; }
[ -e "$BUILD/lib/espresso/libespresso-mpi.so" ] || { echo "skipped: backend mpi was not built (mpicc is not there)" && exit 77; }
"$mpirun" --version | grep -qE 'Open MPI|OpenRTE' || { echo "skipped: $mpirun is not Open MPI's, whose flags this test uses" && exit 77; }
root=
[ "$(id -u)" -ne 0 ] || root=--allow-run-as-root
ESPRESSO_PLUGIN_PATH=$PWD/$BUILD/lib/espresso OMP_NUM_THREADS=1
export ESPRESSO_PLUGIN_PATH OMP_NUM_THREADS
failed=0
# without shared memory of all ranks, calls in the wrong order and missing pushes end at the timeout (kinds order, push)
for kind in kill stop slow exit codec; do
    said=$("$BUILD/tests/jobs/faults/test_chaos" --kind $kind --runs "$RUNS" --backend mpi --within 10000 --launcher \
        "$mpirun $root --enable-recovery --oversubscribe --bind-to none --mca btl self,vader --mca mpi_yield_when_idle 1 -n 4" 2>&1) || {
        echo "$said" | tail -n 40
        failed=1
    }
    echo "$said" | grep "^$kind "
done
exit $failed
