# test_hosts.sh: jobs on two hosts with a real network between them: espresso run --hosts and mpirun, a link that is cut
# for 3 seconds, a host that is halted. Skipped, with the reason, where network namespaces are not allowed.
# time limit: 300 s
# runs: quiet slow
set -eu
BUILD=${BUILD:-build}
plugin=$PWD/$BUILD/lib/espresso
[ -e "$plugin/libespresso-gloo.so" ] || { echo "skipped: backend gloo was not built (libgloo-dev is not there)" && exit 77; }
ESPRESSO_COMMAND=${ESPRESSO_COMMAND:-$PWD/$BUILD/bin/espresso}
TESTBED=$$
export BUILD TESTBED
hosts="sh tests/jobs/hosts/hosts.sh"
work=$(mktemp -d)
job=
trap '[ -z "$job" ] || kill -9 $job; $hosts down; rm -rf "$work"' EXIT
trap 'exit 143' HUP INT TERM
$hosts up 2 100mbit || exit $?

fail() {
    echo "FAILED: $*"
    for f in "$work"/said*; do echo "--- $f" && tail -n 30 "$f"; done
    exit 1
}
said() { grep -q -- "$2" "$work/said.$1" || fail "$1: not said: $2"; }
await() { # NAME TEXT
    for i in $(seq 300); do
        if grep -q -- "$2" "$work/said.$1" 2>/dev/null; then return 0; fi
        sleep 0.1
    done
    fail "$1: not said within 30 s: $2"
}
nobody_left() {
    for h in 1 2; do
        for i in $(seq 50); do
            left=$(ip netns pids "esp$TESTBED-$h")
            [ -n "$left" ] || break
            sleep 0.1
        done
        [ -z "$left" ] || fail "$1: processes are left on host $h: $(ps -o pid,args -p "$(echo $left | tr ' ' ,)" | tail -n 5)"
    done
}

# shellcheck disable=SC2086 # several words
${CC:-gcc} -O1 -I. tests/jobs/hosts/steps.c "$BUILD/lib/libespresso.a" ${OPENMP_FLAG:-} -pthread -ldl -lm -o "$work/steps"
# no backend is named: the library chooses gloo here, and MPI under mpirun
ESPRESSO_PLUGIN_PATH=$plugin
export ESPRESSO_PLUGIN_PATH

# As in the README: the ranks of two hosts connect over the network, a machine each, and average.
run() { # FLAGS -- PROGRAM
    "$ESPRESSO_COMMAND" run --hosts host1:2,host2:2 --rsh "$hosts shell" "$@"
}
start() { # NAME FLAGS -- PROGRAM: in the background, as the process $job
    name=$1
    shift
    "$ESPRESSO_COMMAND" run --hosts host1:2,host2:2 --rsh "$hosts shell" "$@" >"$work/said.$name" 2>&1 &
    job=$!
}
run -- sh -c 'echo "$(hostname) $ESPRESSO_ROOT"; exec "$@"' sh "$work/steps" 20 >"$work/said.run" 2>&1 || fail "run: status $?"
said run '^\[1\] host1 host1:[0-9]*$'
said run '^\[2\] host2 host1:[0-9]*$'
said run '^\[3\] all 20 steps are right on rank 3 of 4$'
run --env ESPRESSO_LOG=info -- "$work/steps" 1 >"$work/said.info" 2>&1 || fail "info: status $?"
said info 'rank 3 of 4 .*machine 1 of 2'
said info 'backend gloo'
nobody_left run
echo "meets over the network: ok"

# Without the network the job cannot start, so it does use the network.
$hosts cut 2
if run --env ESPRESSO_TIMEOUT_MS=3000 -- "$work/steps" 1 >"$work/said.cut" 2>&1; then fail "the ranks met although the link was cut"; fi
said cut 'missing ranks 2, 3'
$hosts mend 2
nobody_left cut
echo "does not meet over a link that is cut: ok"

# A link that is cut for 3 s delays the job, but does not end it.
start mended -- "$work/steps" 100 50
await mended 'the first step is done'
$hosts cut 2
sleep 3
$hosts mend 2
wait $job || fail "mended: status $?"
job=
said mended 'all 100 steps are right on rank 2 of 4'
echo "survives a link that is cut for 3 s: ok"

# One rank on each host dies: the others continue without them, over the same network.
for victim in 0 3; do
    run --elastic -- "$work/steps" 40 20 $victim >"$work/said.lost$victim" 2>&1 && status=0 || status=$?
    [ "$(grep -c '^\[[0-3]\] rank [0-2] of 3 goes on at step 20$' "$work/said.lost$victim")" = 3 ] || fail "lost$victim: status $status: not 3 ranks went on"
    [ "$(grep -c 'all 40 steps are right on rank [0-2] of 3$' "$work/said.lost$victim")" = 3 ] || fail "lost$victim: status $status: not 3 ranks ended"
    nobody_left lost$victim
done
echo "goes on without ranks that die: ok"

# A halted host: the launcher reports it, the other ranks end, and no process is left.
start halted -- "$work/steps" 100000 20
await halted 'the first step is done'
$hosts halt 2
if wait $job; then fail "halted: status 0"; fi
job=
said halted "host host2 (ranks 2-3): 'sh' was killed by signal 9"
nobody_left halted
echo "ends when a host is halted: ok"

# A rank that fails, and a signal as from Ctrl-C (which a shell's background jobs ignore): all ranks end.
run -- "$work/steps" 200 20 3 >"$work/said.failed" 2>&1 && status=0 || status=$?
[ $status = 137 ] || fail "failed: status $status"
said failed '^espresso run on host2: rank 3 (pid [0-9]*) was killed by signal 9'
nobody_left failed
start asked -- "$work/steps" 100000 20
await asked 'the first step is done'
kill -TERM $job
wait $job && status=0 || status=$?
job=
[ $status = 143 ] || fail "asked: status $status"
nobody_left asked
echo "ends when a rank fails, and by a signal: ok"

# kill -9 of the launcher: no process is left on either host.
start killed -- "$work/steps" 100000 20
await killed 'the first step is done'
kill -9 $job
wait $job || true
job=
nobody_left killed
echo "leaves nobody when the launcher is killed: ok"

# The same program under mpirun.
if command -v mpirun >/dev/null; then
    if [ ! -e "$plugin/libespresso-mpi.so" ]; then # then MPI is not installed
        ESPRESSO_BACKEND='levels:intra=(shm),inter=(gloo)' ESPRESSO_ROOT=host1:29400
        export ESPRESSO_BACKEND ESPRESSO_ROOT
    fi
    MPIRUN_FLAGS="-x ESPRESSO_PLUGIN_PATH ${ESPRESSO_ROOT:+-x ESPRESSO_BACKEND -x ESPRESSO_ROOT} -x ESPRESSO_LOG=info" \
        sh tests/jobs/hosts/mpirun.sh 2 2 "$work/steps" 20 >"$work/said.mpirun" 2>&1 || fail "mpirun: status $?"
    said mpirun 'all 20 steps are right on rank 3 of 4'
    [ -n "${ESPRESSO_ROOT:-}" ] || said mpirun 'backend mpi'
    nobody_left mpirun
    echo "mpirun on two hosts: ok"
else
    echo "note: mpirun is not there (Debian: openmpi-bin), so jobs of mpirun were not tried"
fi

# The commands of the README. On these hosts ssh is a script, and the plugins are not installed.
if [ ! -e "$plugin/libespresso-mpi.so" ]; then
    echo "note: the README's lines were not tried: they need the plugin mpi"
    exit 0
fi
printf '#!/bin/sh\nexec sh %s/tests/jobs/hosts/hosts.sh shell "$@"\n' "$PWD" >"$work/ssh"
printf '#!/bin/sh\nexport ESPRESSO_PLUGIN_PATH=%s\nexec "$0.steps" 3\n' "$plugin" >"$work/train"
printf '#!/bin/sh\nexec %s "$@"\n' "$ESPRESSO_COMMAND" >"$work/espresso"
mv "$work/steps" "$work/train.steps"
chmod +x "$work/ssh" "$work/train" "$work/espresso"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
grep '^    .* node1:2,node2:2 ' README.md | sed 's/^ *//' >"$work/lines"
[ "$(wc -l <"$work/lines")" -eq 2 ] || fail "README.md has other lines for two machines: $(cat "$work/lines")"
while read -r line; do
    (cd "$work" && PATH=$work:$PATH && export PATH && exec sh "$OLDPWD/tests/jobs/hosts/hosts.sh" enter 1 $line) \
        </dev/null >"$work/said.readme" 2>&1 || fail "status $? of: $line"
    said readme 'all 3 steps are right on rank 3 of 4'
    echo "README's '$line': ok"
done <"$work/lines"
