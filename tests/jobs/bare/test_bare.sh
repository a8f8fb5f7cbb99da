# test_bare.sh: the README's first command and `build` on a machine that has nothing: a minimal Debian root (root.sh),
# into which the commit is cloned. As root: `./bootstrap demo --quick`, then build; with TEST_ALL also as a user with
# sudo: `./bootstrap build`; each in a fresh root.
#   make bare        or       sh tests/jobs/bare/test_bare.sh [COMMAND]     (COMMAND is run instead, as root and as a user with sudo)
# Skipped, with the reason, where there are no namespaces or no packages. OPT is -O1 and CFLAGS -g0 unless they are set:
# what is missing does not depend on them, and it takes half the time.
# time limit: 1500 s (three minutes on two idle cores, once the root is made and packages are fetched)
# runs: slow
set -eu
OPT=${OPT:--O1} CFLAGS=${CFLAGS:--g0}
export OPT CFLAGS
skip() {
    echo "skipped: $*"
    exit 77
}
commit=$(git rev-parse --short --verify HEAD 2>&1) || skip "no commit to clone: $commit"
tar=$(sh tests/jobs/bare/root.sh) || exit $?
for old in "$(dirname "$tar")"/run-*; do # left behind by killed tests
    kill -0 "${old##*-}" 2>/dev/null || rm -rf "$old"
done
work=$(dirname "$tar")/run-$$
mkdir "$work"
inside=
trap '[ -z "$inside" ] || kill -9 $inside; rm -rf "$work"' EXIT
trap 'exit 143' HUP INT TERM
if [ "$(id -u)" -eq 0 ]; then as_root=; else as_root="--map-root-user --map-auto"; fi
# shellcheck disable=SC2086 # several words
enter() { # USER COMMAND
    rm -rf "$work/root"
    said=0
    unshare --mount --pid --fork --kill-child $as_root sh tests/jobs/bare/enter.sh \
        "$work" "$tar" "$work/sources.tar" "$(dirname "$tar")/archives" "$@" &
    inside=$!
    wait $inside || said=$?
    inside=
    return $said
}
git archive -o "$work/sources.tar" HEAD
if ! git diff --quiet HEAD; then echo "note: this tests the commit $commit, without the changes since"; fi
enter root true >"$work/log" 2>&1 || skip "no namespaces to run a bare root in: $(tail -n 1 "$work/log")"

tries() { # USER COMMAND
    start=$(date +%s)
    echo "== a bare root, as $1: $2"
    code=0
    enter "$@" || code=$?
    echo "== exit status $code, $(($(date +%s) - start)) s"
    [ "$code" -ne 0 ] || return 0
    # an unreachable mirror is not a fault of bootstrap
    enter root 'apt-get update -o APT::Update::Error-Mode=any' >"$work/log" 2>&1 ||
        skip "packages cannot be fetched: $(tail -n 3 "$work/log")"
    exit 1
}
if [ $# -gt 0 ]; then
    tries root "$*"
    tries bare "$*"
else
    # two ranks without `espresso run`, which connect by a name that is usually in /etc/hosts
    where="WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29517"
    pair="{ env RANK=1 $where build/bin/hello & env RANK=0 $where build/bin/hello && wait \$!; }"
    tries root "./bootstrap demo --quick && ./bootstrap build && $pair"
    [ -z "${TEST_ALL:-}" ] || tries bare "./bootstrap build && $pair"
fi
