# test_compare.sh: `espresso compare`: every strategy is listed, ours is the best, and text and JSON agree.
. tests/cli/plan/plan.sh
compare() { small run compare "$@"; }

compare
small quiet compare --json
part '/"strategies"/q;p'
part '/"strategy": "espresso+"/,$p'
for name in strategy iteration_us fp32_us n_units summary; do key $name <"$top/1" >all.$name; done
sed -i 1d all.fp32_us # the first is not in a row
key summary <"$top/1"
# nothing is below the bound, nothing is faster than ours, and fp32 is fp32
paste all.strategy all.iteration_us all.fp32_us all.n_units | awk -v bound="$(value bound_us)" -v fp32="$(value fp32_us)" \
    -v free="$(value free_compression_us)" '
    $2 < bound - 0.001 || $3 != fp32 { print "wrong: " $0 }
    $1 == "\"fp32\"" && $2 != fp32 { print "wrong: " $0 }
    { if (!best || $2 < best) best = $2; ours = $2 }
    END { if (NR != 11 || ours > best || free > ours) print "ours is not the best" }'

compare --strategies hipress,ddp,espresso+ # in that order

run compare
compare --strategies zipper
compare --strategies ''
compare --system mars
