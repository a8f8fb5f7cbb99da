# common.sh: for the scripts of this folder, which run in the project's root: a temporary folder $tmp, and `try`, which
# runs a command and ends the test with its output if it fails.
set -eu
tmp=$(mktemp -d "${TMPDIR:-/tmp}/espresso-test-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
root=$PWD
build=${BUILD:-build}

try() {
    if ! "$@" >"$tmp/output" 2>&1; then
        echo "failed: $*"
        cat "$tmp/output"
        exit 1
    fi
}
have() { command -v "$1" >/dev/null 2>&1; }
need() {
    if ! have "$1"; then
        echo "skipped: $1 is not there"
        exit 77
    fi
}
# records parts that a test leaves out: `checked` then ends it as skipped, with the reasons
left_out=
leaves_out() { left_out="$left_out${left_out:+; }$*"; }
checked() {
    [ -n "$left_out" ] || exit 0
    echo "skipped: $left_out"
    exit 77
}
# runs a program that must print "ok"
says_ok() {
    if [ "$("$@" 2>"$tmp/output")" != ok ]; then
        echo "did not say ok: $*"
        cat "$tmp/output"
        exit 1
    fi
}
# an installed copy, moved to another folder, so that paths inside must be relative
staged() {
    try make -s install DESTDIR="$tmp/stage" PREFIX="${PREFIX:-/usr/local}"
    mkdir "$tmp/elsewhere"
    mv "$tmp/stage${PREFIX:-/usr/local}" "$tmp/elsewhere/espresso"
    stage=$tmp/elsewhere/espresso
    unset ESPRESSO_PLUGIN_PATH
}
