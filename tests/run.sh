#!/bin/sh
# run.sh: runs test programs and scripts, counts their tests, prints the output of failed ones and why others were
# skipped.
#   sh tests/run.sh PROGRAM|SCRIPT.sh ...        ends with "N passed, N failed" or "N passed, N failed, N skipped"
# A program uses cmocka; a script is one test: exit 0 passed, 77 skipped, else failed. The time limit is TEST_TIMEOUT
# seconds (300), or of a comment "time limit: N s" in the script, if longer. A skipped test must print "skipped:
# REASON". The output of a script of tests/cli must equal the .out file beside it; UPDATE=1 writes these files.
# $BUILD/tests/cli/test_NAME.sh and $BUILD/asan/cli/test_NAME.sh are tests/cli/test_NAME.sh with the tests' command, and
# with that under the address sanitizer. A test's line "runs:" says what it needs (CONTRIBUTING.md). TEST_JOBS tests run
# at a time (one more than cores, since some wait), the slow ones first; those with the word "quiet" after all others.
BUILD=${BUILD:-build}
ESPRESSO_COMMAND=${ESPRESSO_COMMAND:-$PWD/$BUILD/bin/espresso}
ESPRESSO_BUILD=$PWD/$BUILD
export BUILD ESPRESSO_COMMAND ESPRESSO_BUILD
# OpenMP threads must not spin while they wait: other tests need the cores
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
# mpirun asks for the address of localhost: without /etc/hosts, a name server that loses questions takes 5 s for each
export RES_OPTIONS="${RES_OPTIONS:-timeout:1}"

source_of() { # TEST
    case $1 in "$BUILD"/*.sh) echo "tests/${1#"$BUILD"/*/}" ;; *.sh) echo "$1" ;; *) echo "tests/${1#"$BUILD"/*/}.c" ;; esac
}
runs() { # TEST: the words of its source's line "runs:"
    file=$(source_of "$1")
    [ ! -e "$file" ] || sed -n 's,^[/#][* ]* *runs: \([^*]*\).*,\1,p' "$file" | head -n 1
}

# Runs one test; "PASSED FAILED SKIPPED" goes to a file in $TEST_COUNTS.
run_one() { # TEST
    t=$1
    name=${t#"$BUILD"/}
    log=$BUILD/log/$(echo "$name" | tr / -).log
    start=$(date +%s) limit=${TEST_TIMEOUT:-300} file=$(source_of "$t")
    # an mpirun that ends removes the folder of one that begins, unless each has its own
    export OMPI_MCA_orte_tmpdir_base="$TEST_COUNTS.mpi/$$"
    mkdir -p "$OMPI_MCA_orte_tmpdir_base"
    # tests under sanitizers start the command built with the same sanitizers
    case $t in "$BUILD"/asan/* | "$BUILD"/tests/*.sh) ESPRESSO_COMMAND=$PWD/$BUILD/${name%%/*}/bin/espresso ;; esac
    case $t in
    *.sh)
        own=$(sed -n 's/^#.*time limit: \([0-9]*\) s.*/\1/p' "$file" | head -n 1)
        [ "${own:-0}" -le "$limit" ] || limit=$own
        timeout -k 5 "$limit" sh "$file" >"$log" 2>&1 </dev/null
        code=$? p=0 f=0 s=0
        case $code$file in
        0tests/cli/*)
            out=${file%.sh}.out
            [ -z "${UPDATE:-}" ] || cmp -s "$log" "$out" || cp "$log" "$out"
            diff -u "$out" "$log" >"$log.diff" 2>&1 || { code=1 && mv "$log.diff" "$log"; }
            ;;
        esac
        case $code in 0) p=1 ;; 77) s=1 ;; *) f=1 ;; esac
        ;;
    *)
        rm -f "$log.threads"
        TEST_THREADS=$log.threads timeout -k 5 "$limit" "./${t#./}" >"$log" 2>&1 </dev/null
        code=$?
        r=$(grep -c '\[ RUN      \]' "$log")
        p=$(grep -c '\[       OK \]' "$log")
        s=$(grep -o '\[  SKIPPED \] [^0-9].*' "$log" | sort -u | wc -l) # cmocka lists them again at the end
        # a test that began, but neither passed nor was skipped, failed: by a crash or the timeout
        f=$((r - p - s))
        if [ "$f" -lt 0 ]; then f=0; fi
        if [ "$f" -eq 0 ] && { [ "$code" -ne 0 ] || [ "$r" -eq 0 ]; }; then f=1; fi
        ;;
    esac
    why=
    if [ "$s" -gt "$(grep -c '^skipped: ' "$log")" ]; then
        f=$((f + s)) s=0 why="a test was skipped without a line \"skipped: REASON\""
    fi
    if [ -e "$log.threads" ] && ! runs "$t" | grep -q 'tsan'; then
        f=$((f + 1)) why="the test starts threads: its line \"runs:\" needs tsan, tsan-long, or no-tsan: and a reason"
    fi
    word=ok
    if [ "$f" -gt 0 ]; then word=FAILED; fi
    if [ "$code" -eq 124 ]; then word="FAILED: ran longer than $limit s"; fi
    {
        echo "$name: $word ($p passed, $f failed$([ "$s" -eq 0 ] || echo ", $s skipped"); $(($(date +%s) - start)) s)"
        if [ "$s" -gt 0 ]; then grep '^skipped: ' "$log" | sed 's/^/    /'; fi
        if [ "$f" -gt 0 ]; then
            tail -n 60 "$log" | sed 's/^/    /'
            echo "    (exit status $code; all of it: $log)"
            [ -z "$why" ] || echo "    $why"
        fi
    } >"$log.said"
    echo "$p $f $s" >"$TEST_COUNTS/$(basename "$log")"
    cat "$log.said"
}
if [ "${1:-}" = --one ]; then
    run_one "$2"
    exit 0
fi

mkdir -p "$BUILD/log"
TEST_COUNTS=$(mktemp -d)
export TEST_COUNTS
trap 'rm -rf "$TEST_COUNTS" "$TEST_COUNTS.mpi"' EXIT
quiet= quiet_slow= slow= others=
for t in "$@"; do
    case " $(runs "$t") " in
    *" quiet "*" slow "* | *" quiet "*" long "* | *" long "*" quiet "*) quiet_slow="$quiet_slow $t" ;;
    *" quiet "*) quiet="$quiet $t" ;;
    *" slow "* | *" long "*) slow="$slow $t" ;;
    *) others="$others $t" ;;
    esac
done
all() { printf '%s\n' "$@" | xargs -r -n 1 -P "${TEST_JOBS:-$(($(getconf _NPROCESSORS_ONLN) + 1))}" sh "$0" --one; }
# shellcheck disable=SC2086 # several names
all $slow $others
# shellcheck disable=SC2086
all $quiet_slow $quiet

set -- $(find "$TEST_COUNTS" -type f -exec cat {} + | awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0, NR }') $#
# a test without counts has killed its runner
failed=$(($2 + $5 - $4))
# what they said, again, for readers of the last lines
for log in $(find "$TEST_COUNTS" -type f -exec awk '$2 > 0 { n = split(FILENAME, a, "/"); print a[n] }' {} +); do
    cat "$BUILD/log/$log.said"
done
if [ "$3" -gt 0 ]; then echo "$1 passed, $failed failed, $3 skipped"; else echo "$1 passed, $failed failed"; fi
[ "$failed" -eq 0 ]
