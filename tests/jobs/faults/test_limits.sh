# test_limits.sh: ranks with limits (ulimit) on files, descriptors, memory and threads, and whose output nobody reads: no
# signal ends them, and an error names the limit.
# runs: quiet slow
set -u
BUILD=${BUILD:-build}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export ESPRESSO_PLUGIN_PATH="$PWD/$BUILD/lib/espresso" ESPRESSO_TIMEOUT_MS=10000 ESPRESSO_BACKEND
hello=$PWD/$BUILD/bin/hello run="$PWD/$BUILD/bin/espresso run" failed=0 skipped=
bad() { echo "FAILED: $ESPRESSO_BACKEND, $*"; cat "$dir/log"; failed=1; }
limit() { # LETTER VALUE
    $run -n 2 -- sh -c "ulimit -$1 $2; exec $hello" >"$dir/log" 2>&1
    status=$?
    [ $status != 127 ] || return 0 # not even the dynamic loader could run
    [ $status -lt 126 ] || bad "ulimit -$1 $2: status $status"
    if [ $status != 0 ] && ! grep -q 'see ulimit -' "$dir/log"; then bad "ulimit -$1 $2: no error names it"; fi
}
nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"
$nobody prlimit --nproc=100 test -x "$hello" 2>/dev/null || { nobody= && skipped="no root, setpriv or prlimit to limit the threads of another user"; }
for ESPRESSO_BACKEND in shm gloo; do
    [ $ESPRESSO_BACKEND = shm ] || [ -e "$BUILD/lib/espresso/libespresso-gloo.so" ] || { skipped="backend gloo is not there" && continue; }
    for blocks in 0 1 100; do
        limit f $blocks
        [ "$status" = 0 ] || bad "ulimit -f $blocks: status $status, though no file is needed"
    done
    for files in 3 4 5 6 7 8 9 10 11 12 13 14 16 20; do limit n $files; done
    for kib in 12000 16000 20000 24000 32000 40000 60000 80000; do limit v $kib; done
    # ulimit -u counts the processes and threads of a user, and does not limit root
    for threads in 3 4 5 6 7 8 12 20 40; do
        [ -n "$nobody" ] || continue
        $nobody prlimit --nproc=$threads $run -n 2 -- "$hello" >"$dir/log" 2>&1
        status=$?
        [ $status -lt 126 ] || bad "$threads threads: status $status"
        if [ $status != 0 ] && ! grep -q 'see ulimit -u' "$dir/log"; then bad "$threads threads: no error names the limit"; fi
        ! grep -q 'different amounts' "$dir/log" || bad "$threads threads: ranks did not fail together"
    done
    sh -c "ulimit -s 64; exec $run -n 2 -- $hello" >"$dir/log" 2>&1 # KiB of stack, also for the launcher
    [ $? -lt 126 ] || bad "ulimit -s 64: a signal"
    echo "$ESPRESSO_BACKEND: tried"
done

# backend gloo needs no name of this host
ESPRESSO_BACKEND=gloo
if [ -e "$BUILD/lib/espresso/libespresso-gloo.so" ] && unshare --uts true 2>/dev/null; then
    unshare --uts sh -c "hostname unknown.invalid && exec $run -n 2 -- $hello" >"$dir/log" 2>&1 || bad "this host's name is unknown"
fi

# files of one rank: what is written is cut, and training goes on
ESPRESSO_BACKEND=loop
for variable in ESPRESSO_TRACE ESPRESSO_STATS ESPRESSO_PROFILE; do
    env $variable="$dir/written" ESPRESSO_LOG=debug sh -c "ulimit -f 0; exec $hello" >/dev/null 2>"$dir/log"
    [ $? -lt 126 ] || bad "$variable with ulimit -f: a signal"
done
{ ESPRESSO_LOG=debug $hello 2>&1 >/dev/null; echo $? >"$dir/status"; } | sleep 0
[ "$(cat "$dir/status")" = 0 ] || { : >"$dir/log" && bad "stderr that nobody reads: status $(cat "$dir/status")"; }
ESPRESSO_LOG=debug sh -c "ulimit -f 0; exec $hello >/dev/null" 2>"$dir/log"
[ $? = 0 ] || bad "stderr in a file with ulimit -f"
[ $failed = 0 ] || exit 1
[ -z "$skipped" ] || { echo "skipped: $skipped" && exit 77; }
