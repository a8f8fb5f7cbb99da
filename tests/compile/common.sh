# common.sh: for the scripts of this folder, which run in the project's root: a folder of their own that goes away at the
# end, and `try`, which ends the test with the output of a command that fails.
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
# notes what a test leaves out, for its last line: `checked` ends it as skipped, with the reasons, where there are any
left_out=
leaves_out() { left_out="$left_out${left_out:+; }$*"; }
checked() {
    [ -n "$left_out" ] || exit 0
    echo "skipped: $left_out"
    exit 77
}
# runs a program that must say "ok"
says_ok() {
    if [ "$("$@" 2>"$tmp/output")" != ok ]; then
        echo "did not say ok: $*"
        cat "$tmp/output"
        exit 1
    fi
}
# a copy of what `make install` installs, moved to a place that the files in it do not know
staged() {
    try make -s install DESTDIR="$tmp/stage" PREFIX="${PREFIX:-/usr/local}"
    mkdir "$tmp/elsewhere"
    mv "$tmp/stage${PREFIX:-/usr/local}" "$tmp/elsewhere/espresso"
    stage=$tmp/elsewhere/espresso
    unset ESPRESSO_PLUGIN_PATH
}
