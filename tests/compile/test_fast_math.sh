# test_fast_math.sh: the implementation refuses to compile with -Ofast or its parts, and the remedy in its message
# works. A program that was linked with -Ofast gets the same bits as one that was not.
# runs: slow
. tests/compile/common.sh
cp tests/compile/use_denormals.c "$tmp/"
done=0
for cc in gcc clang; do
    have $cc || continue
    for flags in -Ofast -ffast-math -ffinite-math-only; do
        if $cc $flags -I. -Wfatal-errors -fsyntax-only espresso.c >"$tmp/output" 2>&1 || ! grep -q "espresso.c.*-fno-fast-math" "$tmp/output"; then
            echo "$cc $flags must be refused with the way out:"
            cat "$tmp/output"
            exit 1
        fi
    done
    try $cc -Ofast -fno-fast-math -I. -fsyntax-only espresso.c # the remedy of the message
    try $cc -O2 -I. "$tmp/use_denormals.c" "$build/lib/libespresso.a" -o "$tmp/kept" -pthread -ldl -lm
    try $cc -Ofast -I. "$tmp/use_denormals.c" "$build/lib/libespresso.a" -o "$tmp/flushed" -pthread -ldl -lm
    for run in "" "timeout 60 $root/$build/bin/espresso run --no-prefix -n 2 --"; do
        for codec in none efsignsgd "topk:ratio=0.5"; do
            ESPRESSO_CODEC=$codec $run "$tmp/kept" >"$tmp/a" 2>"$tmp/mode_a"
            ESPRESSO_CODEC=$codec $run "$tmp/flushed" >"$tmp/b" 2>"$tmp/mode_b"
            if ! diff "$tmp/a" "$tmp/b" || [ "$(wc -l <"$tmp/a")" -ne 3 ]; then
                echo "$cc, codec $codec: linked with -O2 (<) and -Ofast (>) the bits differ"
                exit 1
            fi
            grep -q keeps "$tmp/mode_a" && grep -q flushes "$tmp/mode_b" && done=$((done + 1))
        done
    done
done
echo "$done comparisons with a program that flushes denormals"
[ "$done" -gt 0 ]
