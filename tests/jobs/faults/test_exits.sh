#!/bin/sh
# test_exits.sh: ranks that fork, exit, abort, or exit in a signal handler, with backends mpi, shm and gloo: each process
# ends with its own status, none crashes, and no job hangs. time limit: 300 s
# runs: quiet slow
set -u
BUILD=${BUILD:-build}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export ESPRESSO_PLUGIN_PATH="$PWD/$BUILD/lib/espresso" ESPRESSO_TIMEOUT_MS=20000 ESPRESSO_BACKEND OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun=$(command -v mpirun.openmpi || command -v mpirun) || mpirun=
skipped= failed=0
[ -n "$mpirun" ] && "$mpirun" --version | grep -qE 'Open MPI|OpenRTE' || skipped="mpirun of Open MPI is not there"
run() { # WAY
    case $ESPRESSO_BACKEND in
    mpi) timeout -k 5 60 "$mpirun" --oversubscribe --bind-to none --mca btl self,vader --mca btl_vader_single_copy_mechanism none -n 2 "$BUILD/tests/jobs/faults/exits" "$1" ;;
    *) timeout -k 5 60 "$BUILD/bin/espresso" run -n 2 -- "$BUILD/tests/jobs/faults/exits" "$1" ;;
    esac >"$dir/log" 2>&1
}
ends() { # WAY STATUS...: the job ends with one of these statuses within 15 s
    way=$1 begin=$(date +%s)
    shift
    run "$way"
    status=$?
    case " $* " in *" $status "*) ok=1 ;; *) ok=0 ;; esac
    [ $(($(date +%s) - begin)) -lt 15 ] || ok=0
    if [ "$way" != abort ] && grep -qiE 'signal 11|segmentation|signal 6|abort\(' "$dir/log"; then ok=0; fi
    [ "$way" != abort ] || grep -q Aborted "$dir/log" || ok=0
    [ "$way" != fork ] || [ "$(grep -c 'went on' "$dir/log")" = 2 ] || ok=0
    [ $ok = 1 ] && return
    echo "FAILED: $ESPRESSO_BACKEND, $way: status $status instead of $*, after $(($(date +%s) - begin)) s"
    cat "$dir/log"
    failed=1
}
for ESPRESSO_BACKEND in shm gloo mpi; do
    [ $ESPRESSO_BACKEND = shm ] || [ -e "$BUILD/lib/espresso/libespresso-$ESPRESSO_BACKEND.so" ] || { skipped="backend $ESPRESSO_BACKEND is not there" && continue; }
    [ $ESPRESSO_BACKEND != mpi ] || [ -n "$mpirun" ] || continue
    for repeat in 1 ${TEST_ALL:+2 3}; do
        ends fork 0
        ends step 7 3 # 3: the other rank's error came first
        ends signal 7 3
        ends handler 7 3
        ends wait 7 3
        ends closed 0
    done
    [ $ESPRESSO_BACKEND = mpi ] && ends forget 0 || ends forget 0 3
    ends between 7 3
    ends one 7 3
    [ $ESPRESSO_BACKEND = mpi ] && ends abort 134 3 || ends abort 134 # mpirun has the status that it sees first
    ESPRESSO_TIMEOUT_MS=4000
    ends alone 3 # over MPI, that rank waits for the others, which time out
    ESPRESSO_TIMEOUT_MS=20000
    [ $ESPRESSO_BACKEND != mpi ] || grep -q 'exited without esp_close' "$dir/log" || { echo "FAILED: $ESPRESSO_BACKEND, alone: not said" && cat "$dir/log" && failed=1; }
    echo "$ESPRESSO_BACKEND: tried"
done
[ $failed = 1 ] && exit 1
[ -z "$skipped" ] || { echo "skipped: $skipped" && exit 77; }
