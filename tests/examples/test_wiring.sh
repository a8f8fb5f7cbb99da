# test_wiring.sh: both shapes of examples/02_wire_a_trainer train to the same weights, alone and as a job, with and without a
# codec, and docs/use/wiring.md quotes the present example.
. tests/compile/common.sh
wiring=$tmp/wiring
try gcc -O2 -I. examples/02_wire_a_trainer/*.c "$build/lib/libespresso.a" -o "$wiring" -pthread -ldl -lm
for n in 1 4; do
    for codec in none topk:ratio=0.1; do
        for shape in layers flat; do
            ESPRESSO_CODEC=$codec timeout 60 "$build/bin/espresso" run --no-prefix -n $n -- "$wiring" $shape >"$tmp/$shape"
            [ "$(wc -l <"$tmp/$shape")" -eq $n ] && [ "$(sort -u "$tmp/$shape" | wc -l)" -eq 1 ] && continue
            echo "$n ranks, $codec, $shape: every rank must have the same weights:"
            cat "$tmp/$shape"
            exit 1
        done
        if [ $codec = none ] && ! diff "$tmp/layers" "$tmp/flat"; then exit 1; fi
        # the loss falls to less than a tenth
        awk '{ if ($4 + 0 >= $2 / 10) { print; exit 1 } }' "$tmp/flat"
    done
done
if "$wiring" sideways 2>/dev/null; then exit 1; fi

# the example has every quoted line
awk '/^```/ { code = /^```c/; next } code' docs/use/wiring.md >"$tmp/quoted"
[ "$(wc -l <"$tmp/quoted")" -gt 30 ]
grep -vxFf examples/02_wire_a_trainer/main.c "$tmp/quoted" >"$tmp/missing" || true
if [ -s "$tmp/missing" ]; then
    echo "docs/use/wiring.md quotes lines that examples/02_wire_a_trainer/main.c has not:"
    cat "$tmp/missing"
    exit 1
fi
