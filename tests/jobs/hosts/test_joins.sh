# test_joins.sh: ranks that join a running job over each backend, on this host and from another one (skipped, with the
# reason, where network namespaces are not allowed), and jobs which no rank can join: it is told at once what to do.
# time limit: 300 s
# runs: quiet slow
set -eu
BUILD=${BUILD:-build}
ESPRESSO_PLUGIN_PATH=$PWD/$BUILD/lib/espresso
ESPRESSO_TIMEOUT_MS=60000
TESTBED=$$
export BUILD ESPRESSO_PLUGIN_PATH ESPRESSO_TIMEOUT_MS TESTBED
hosts="sh tests/jobs/hosts/hosts.sh"
work=$(mktemp -d)
ranks=
end_ranks() {
    for rank in $ranks; do kill -9 "$rank" 2>/dev/null || true; done
    for rank in $ranks; do wait "$rank" 2>/dev/null || true; done
    ranks=
}
trap 'end_ranks; rm -rf "$work"' EXIT
trap 'exit 143' HUP INT TERM
fail() {
    echo "FAILED: $*"
    tail -n 20 "$work"/said.*
    exit 1
}
# shellcheck disable=SC2086 # several words
${CC:-gcc} -O1 -I. tests/jobs/hosts/joins.c "$BUILD/lib/libespresso.a" ${OPENMP_FLAG:-} -pthread -ldl -lm -o "$work/joins"

number=0
begin() { # ENV...: two ranks that wait for a third
    number=$((number + 1))
    rm -f "$work"/said.*
    for rank in 0 1; do
        env "$@" ESPRESSO_ROOT=unix:joins-$$-$number ESPRESSO_RANK=$rank ESPRESSO_SIZE=2 "$work/joins" 3 >"$work/said.$rank" 2>&1 &
        ranks="$ranks $!"
    done
}
join() { # ENV...
    env "$@" ESPRESSO_ROOT=unix:joins-$$-$number timeout 100 "$work/joins" 3 join >"$work/said.join" 2>&1
}
joins() { # NAME ENV...
    name=$1
    shift
    begin "$@"
    join "$@" || fail "$name: no rank joined"
    for rank in $ranks; do wait "$rank" || fail "$name: a rank of the job failed"; done
    ranks=
    [ "$(cat "$work"/said.* | grep -c '^all rounds are right on rank [0-2] of 3$')" = 3 ] || fail "$name: not 3 ranks ended"
    echo "joins: $name"
}
refused() { # NAME TEXT ENV...: the rank's error has this text, and the job goes on
    name=$1 text=$2
    shift 2
    begin "$@"
    if join "$@"; then fail "$name: a rank joined"; fi
    grep -q -- "$text" "$work/said.join" || fail "$name: not said: $text"
    for rank in $ranks; do kill -0 "$rank" || fail "$name: a rank of the job ended"; done
    end_ranks
    echo "refused: $name"
}
before=$(find /dev/shm -name '*espresso*' | wc -l)
joins shm ESPRESSO_BACKEND=shm
if [ -e "$ESPRESSO_PLUGIN_PATH/libespresso-gloo.so" ]; then
    joins gloo ESPRESSO_BACKEND=gloo
    joins "gloo between machines" 'ESPRESSO_BACKEND=levels:intra=(shm),inter=(gloo)'
fi
# with the NCCL emulation of tests/nccl
[ ! -e "$BUILD/tests/nccl/new/libcuda.so.1" ] ||
    joins nccl ESPRESSO_BACKEND=nccl ESPRESSO_NCCL="$PWD/$BUILD/tests/nccl/new/libcuda.so.1"

refused "strategy auto" 'so no rank can join' JOINS_OUTER= ESPRESSO_STRATEGY=auto 'ESPRESSO_CODEC=topk;int4'
refused "rounds that the library chooses" 'so no rank can join' JOINS_OUTER=average:max_every=10
begin ESPRESSO_BACKEND=shm
if join ESPRESSO_BACKEND=shm ESPRESSO_INTER_LINK=1gbit; then fail "a rank joined with another link"; fi
grep -q "the job has 'backend shm, link none.*the rank has 'backend shm, link 1gbit" "$work/said.join" || fail "another link"
end_ranks
echo "refused: another link"
if [ -e "$ESPRESSO_PLUGIN_PATH/libespresso-mpi.so" ]; then
    begin ESPRESSO_BACKEND=shm
    if join ESPRESSO_BACKEND=mpi; then fail "a rank joined over MPI"; fi
    grep -q "no rank can join a job on backend 'mpi': start the job with backend gloo" "$work/said.join" || fail mpi
    end_ranks
    echo "refused: mpi"
fi
begin JOINS_OUTER= JOINS_SHARD=1
for rank in $ranks; do if wait "$rank"; then fail "sharded: esp_reconfigure succeeded"; fi; done
ranks=
grep -q "esp_reconfigure: tensor 'w' is sharded" "$work/said.0" || fail sharded
echo "refused: a sharded tensor"
# killed jobs leave what the next job removes
joins "shm again" ESPRESSO_BACKEND=shm
[ "$(find /dev/shm -name '*espresso*' | wc -l)" -le "$before" ] || fail "memory is left: $(ls /dev/shm)"

[ -e "$ESPRESSO_PLUGIN_PATH/libespresso-gloo.so" ] || { echo "skipped: backend gloo was not built" && exit 77; }
trap 'end_ranks; $hosts down; rm -rf "$work"' EXIT
$hosts up 2 100mbit || exit $?
export ESPRESSO_HOSTS=2 ESPRESSO_ROOT=host1:29433 # of these hosts, so free
rm -f "$work"/said.*
for rank in 0 1; do
    ESPRESSO_RANK=$rank ESPRESSO_SIZE=2 timeout 100 $hosts enter $((rank + 1)) "$work/joins" 4 >"$work/said.$rank" 2>&1 &
    ranks="$ranks $!"
done
for host in 2 1; do
    timeout 100 $hosts enter $host "$work/joins" 4 join >"$work/said.join$host" 2>&1 &
    ranks="$ranks $!"
done
for rank in $ranks; do wait "$rank" || fail "two hosts: status $?"; done
ranks=
[ "$(cat "$work"/said.* | grep -c '^all rounds are right on rank [0-3] of 4$')" = 4 ] || fail "two hosts: not 4 ranks ended"
echo "joins: two hosts, from each"
