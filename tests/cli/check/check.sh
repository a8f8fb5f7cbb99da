# check.sh: for the scripts about `espresso plugins --check`: shows which of its checks failed, and why.
. tests/cli/lib.sh
fixtures=$ESPRESSO_BUILD/tests/abi
# the command whose largest collectives are smaller
case $ESPRESSO_COMMAND in */asan/bin/*) ;; *) ESPRESSO_COMMAND=$ESPRESSO_BUILD/tests/bin/espresso ;; esac
varies='s/rank [0-9] of/rank R of/'
check() { # ARGS
    quiet plugins --check "$@"
    { awk '/^(codec|backend) |passed, /; /^ *FAILED/ { print; getline; print }' "$top/1" && sed -n 's/^espresso/2> &/p' "$top/2"; } | plain
}
codec() { check --path "$fixtures" "faulty:fault=$1"; }
backend() { check --path "$fixtures" faulty "faultynet:fault=$1"; } # found in the file once it is loaded
several() { # CHECK WORDS: a fault that breaks several rules, not always the same ones: shows that one alone
    name=$1 && shift
    "$@" >"$top/all"
    grep -A 1 -E "^\\$|^\\[exit|FAILED   $name " "$top/all" | grep -v '^--\|^codec\|^backend'
}
