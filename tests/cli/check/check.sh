# check.sh: for the scripts of `espresso plugins --check`: shows the checks that failed, with their messages.
. tests/cli/lib.sh
fixtures=$ESPRESSO_BUILD/tests/abi
# the test build of the command, whose largest collectives are smaller
case $ESPRESSO_COMMAND in */asan/bin/*) ;; *) ESPRESSO_COMMAND=$ESPRESSO_BUILD/tests/bin/espresso ;; esac
varies='s/rank [0-9] of/rank R of/'
check() { # ARGS
    quiet plugins --check "$@"
    { awk '/^(codec|backend) |passed, /; /^ *FAILED/ { print; getline; print }' "$top/1" && sed -n 's/^espresso/2> &/p' "$top/2"; } | plain
}
codec() { check --path "$fixtures" "faulty:fault=$1"; }
backend() { check --path "$fixtures" faulty "faultynet:fault=$1"; } # of the plugin file in $fixtures
several() { # CHECK WORDS: for a fault that breaks varying rules: shows only one check
    name=$1 && shift
    "$@" >"$top/all"
    grep -A 1 -E "^\\$|^\\[exit|FAILED   $name " "$top/all" | grep -v '^--\|^codec\|^backend'
}
