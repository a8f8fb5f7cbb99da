#!/bin/sh
# test_mpi.sh: backend mpi under mpirun on this machine: the conformance checks, every 20th option of the tree, three
# levels, programs that use MPI themselves, wrong inputs, and ranks that die or stop. time limit: 400 s
# runs: quiet slow
set -u
BUILD=${BUILD:-build}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 143' HUP INT TERM
mpirun=$(command -v mpirun.openmpi || command -v mpirun) || { echo "skipped: mpirun is not there (Debian: openmpi-bin)" && exit 77; }
[ -e "$BUILD/lib/espresso/libespresso-mpi.so" ] || { echo "skipped: backend mpi was not built (mpicc is not there)" && exit 77; }
"$mpirun" --version | grep -qE 'Open MPI|OpenRTE' || { echo "skipped: $mpirun is not Open MPI's, whose flags this test uses" && exit 77; }
root='' recovery=''
[ "$(id -u)" -ne 0 ] || root=--allow-run-as-root
ESPRESSO_PLUGIN_PATH=$PWD/$BUILD/lib/espresso
OMP_NUM_THREADS=1 # there are more ranks than cores
export ESPRESSO_PLUGIN_PATH OMP_NUM_THREADS
failed=0
bad() { echo "FAILED: $*" && tail -n 20 "$dir/log" && failed=1; }
mpi() { # RANKS COMMAND...
    n=$1
    shift
    # shellcheck disable=SC2086
    timeout -k 5 200 "$mpirun" $root --oversubscribe --bind-to none --mca btl self,vader --mca mpi_yield_when_idle 1 $recovery -n "$n" "$@" >"$dir/log" 2>&1
}
passes() { # NAME RANKS COMMAND...
    name=$1
    shift
    mpi "$@" || bad "$name: exit status $?"
    grep -E '^(ok|[a-z ]+: .*(ok|FAILED)|[0-9]+ passed|joined)' "$dir/log" | sed "s/^/$name: /"
}
fails() { # NAME TEXT RANKS COMMAND...
    name=$1 text=$2
    shift 2
    if mpi "$@"; then bad "$name: no error"; fi
    grep -q -- "$text" "$dir/log" || bad "$name: no '$text' in"
}
# with smaller tensors; with TEST_ALL as users do
check=$BUILD/tests/bin/espresso
[ -z "${TEST_ALL:-}" ] && [ -x "$check" ] || check=$ESPRESSO_COMMAND
passes conformance 4 "$check" plugins --check mpi
ESPRESSO_BACKEND=mpi
export ESPRESSO_BACKEND
passes "options, flat" 3 "$BUILD/tests/jobs/mpi/options" 2
# two machines, three levels, by ESPRESSO_PLACE
at() { # PLACE_OF_RANK_EXPRESSION COMMAND: ESPRESSO_PLACE from the rank
    echo "r=\$OMPI_COMM_WORLD_RANK; ESPRESSO_PLACE=$1 exec $2"
}
passes "options, two levels" 4 sh -c "$(at 'm$((r / 2))' "$BUILD/tests/jobs/mpi/options 20")"
passes "options, shm inside" 4 env 'ESPRESSO_BACKEND=levels:intra=(shm),inter=(mpi)' sh -c "$(at 'm$((r / 2))' "$BUILD/tests/jobs/mpi/options 40")"
# with the NCCL emulation of tests/nccl inside a machine
passes "options, nccl inside" 4 env ESPRESSO_NCCL="$BUILD/tests/nccl/new/libcuda.so.1" 'ESPRESSO_BACKEND=levels:intra=(nccl),inter=(mpi)' \
    sh -c "$(at 'm$((r / 2))' "$BUILD/tests/jobs/mpi/options 80")"
passes "options, gradients on a device" 4 env ESPRESSO_NCCL="$BUILD/tests/nccl/new/libcuda.so.1" FAKE_SHARED=1 'ESPRESSO_BACKEND=levels:intra=(nccl:device=0),inter=(mpi)' \
    sh -c "$(at 'm$((r / 2))' "$BUILD/tests/jobs/mpi/options 80 $PWD/$BUILD/tests/nccl/libespresso-standin.so")"
passes "options, three levels" 8 sh -c "$(at 'k$((r / 4))/m$((r / 2))' "$BUILD/tests/jobs/mpi/options 2000")"

# an outer loop has the same bits on all ways between processes
outer="$BUILD/tests/jobs/mpi/outer"
for backend in shm gloo mpi; do
    [ $backend != gloo ] || [ -e "$BUILD/lib/espresso/libespresso-gloo.so" ] || continue
    if [ $backend = mpi ]; then
        mpi 3 "$outer" || bad "an outer loop on mpi: exit status $?"
    else
        ESPRESSO_BACKEND=$backend timeout 100 "$ESPRESSO_COMMAND" run -n 3 -- "$outer" >"$dir/log" 2>&1 || bad "an outer loop on $backend: exit status $?"
    fi
    bits=$(grep -o 'outer: .* on 3 ranks' "$dir/log") || bad "an outer loop on $backend: no hash in"
    [ $backend = shm ] && shm=$bits
    [ "$bits" = "$shm" ] || bad "an outer loop on $backend: '$bits', on shm '$shm'"
    echo "outer loop: $backend"
done

unset ESPRESSO_BACKEND
for mode in funnelled serialized multiple half; do passes "its own MPI" 4 "$BUILD/tests/jobs/mpi/joined" $mode; done
fails "funnelled, with threads" "only the trainer's threads may call" 2 env ESPRESSO_PROGRESS=threads "$BUILD/tests/jobs/mpi/joined" funnelled

ESPRESSO_BACKEND=mpi
export ESPRESSO_BACKEND
# a single rank needs no MPI; ranks without an MPI launcher cannot use it
timeout 20 "$BUILD/bin/hello" >"$dir/log" 2>&1 || bad "a rank alone: exit status $?"
if timeout 60 "$ESPRESSO_COMMAND" run -n 2 -- "$BUILD/bin/hello" >"$dir/log" 2>&1; then bad "espresso run with backend mpi: no error"; fi
grep -q "no MPI launcher started this process" "$dir/log" || bad "espresso run with backend mpi: no reason in"
fails "an unknown parameter" "does not know speed=3: it takes comm=HANDLE" 2 env ESPRESSO_BACKEND=mpi:speed=3 "$BUILD/bin/hello"
fails "no communicator" "does not know comm=x" 2 env ESPRESSO_BACKEND=mpi:comm=x "$BUILD/bin/hello"
fails "another size" "leave one of them out" 2 env ESPRESSO_RANK=0 ESPRESSO_SIZE=5 "$BUILD/bin/hello"

# if a rank dies, Open MPI ends the job; if one stops, the others notice it after the timeout
cat >"$dir/hit.sh" <<'EOF'
victim=$1 signal=$2 log=$3
shift 3
[ "$OMPI_COMM_WORLD_RANK" = "$victim" ] || exec "$@"
"$@" &
for i in $(seq 600); do
    if grep -qE '^(step|epoch) ' "$log"; then break; fi # it trains
    sleep 0.1
done
kill -"$signal" $! || exit 0 # it has ended, which must be seen
[ "$signal" = KILL ] || sleep 20
kill -KILL $! 2>/dev/null
wait $!
exit 1
EOF
long="$BUILD/bin/train --epochs 1000 --limit-train 24000 --eval 0"
begin=$(date +%s)
# shellcheck disable=SC2086
mpi 4 sh "$dir/hit.sh" 2 KILL "$dir/log" $long && bad "a killed rank: no error"
[ $(($(date +%s) - begin)) -lt 100 ] || bad "a killed rank: the job went on for long"
# shellcheck disable=SC2086
fails "a stopped rank" "rank 2" 4 env ESPRESSO_TIMEOUT_MS=3000 sh "$dir/hit.sh" 2 STOP "$dir/log" $long

# with this option, Open MPI does not end the job, and the other ranks continue
recovery=--enable-recovery
for victim in 0 2; do
    for backend in mpi 'levels:intra=(shm),inter=(mpi)'; do
        # shellcheck disable=SC2016
        ESPRESSO_BACKEND=$backend mpi 4 sh -c 'ESPRESSO_PLACE=m$((OMPI_COMM_WORLD_RANK / 2)) exec "$@"' sh \
            sh "$dir/hit.sh" $victim KILL "$dir/log" "$BUILD/bin/train" --elastic 1 --epochs 4 --limit-train 2000
        grep -q '^3 ranks go on' "$dir/log" || bad "$backend, without rank $victim: nobody went on in"
        grep -q 'epoch 4, .*loss [0-9]' "$dir/log" || bad "$backend, without rank $victim: the training did not end in"
        grep '^3 ranks go on' "$dir/log" | sed "s/^/$backend, without rank $victim: /"
    done
done
exit $failed
