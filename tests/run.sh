#!/bin/sh
# run.sh: runs test programs and scripts, counts their test functions, prints what a failing one said.
#   sh tests/run.sh PROGRAM|SCRIPT.sh ...        ends with "N passed, N failed"
# A program uses cmocka; a script is one test: exit 0 passed, 77 skipped, else failed. Each ends within TEST_TIMEOUT seconds
# (300), a script that says "time limit: N s" in a comment within those.
BUILD=${BUILD:-build}
ESPRESSO_COMMAND=${ESPRESSO_COMMAND:-$PWD/$BUILD/bin/espresso}
ESPRESSO_BUILD=$PWD/$BUILD
export BUILD ESPRESSO_COMMAND ESPRESSO_BUILD
passed=0 failed=0 skipped=0

for t in "$@"; do
    name=${t#"$BUILD"/}
    log=$BUILD/log/$(echo "$name" | tr / -).log
    mkdir -p "$BUILD/log"
    start=$(date +%s) limit=${TEST_TIMEOUT:-300}
    case $t in
    *.sh)
        own=$(sed -n 's/^# time limit: \([0-9]*\) s.*/\1/p' "$t")
        limit=${own:-$limit}
        timeout -k 5 "$limit" sh "$t" >"$log" 2>&1 </dev/null
        code=$? p=0 f=0 s=0
        case $code in 0) p=1 ;; 77) s=1 ;; *) f=1 ;; esac
        ;;
    *)
        timeout -k 5 "$limit" "./${t#./}" >"$log" 2>&1 </dev/null
        code=$?
        r=$(grep -c '\[ RUN      \]' "$log")
        p=$(grep -c '\[       OK \]' "$log")
        s=$(grep -o '\[  SKIPPED \] [^0-9].*' "$log" | sort -u | wc -l) # cmocka lists them once more at the end
        # a test that began and neither passed nor was skipped failed, be it by a crash or the timeout
        f=$((r - p - s))
        if [ "$f" -lt 0 ]; then f=0; fi
        if [ "$f" -eq 0 ] && { [ "$code" -ne 0 ] || [ "$r" -eq 0 ]; }; then f=1; fi
        ;;
    esac
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    word=ok
    if [ "$f" -gt 0 ]; then word=FAILED; fi
    if [ "$code" -eq 124 ]; then word="FAILED: ran longer than $limit s"; fi
    echo "$name: $word ($p passed, $f failed$([ "$s" -eq 0 ] || echo ", $s skipped"); $(($(date +%s) - start)) s)"
    if [ "$f" -gt 0 ]; then
        tail -n 60 "$log" | sed 's/^/    /'
        echo "    (exit status $code; all of it: $log)"
    fi
done

if [ "$skipped" -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
[ "$failed" -eq 0 ]
