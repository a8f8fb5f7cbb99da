# test_plan_files.sh: `espresso plan` with invalid or truncated models and strategies, and its files after a failure.
# runs: slow
. tests/cli/plan/plan.sh

# ---- models ----------------------------------------------------------------------------------------------------------
bad() { # TENSORS
    printf '{"espresso": 1, "model": "bad", "forward_us": 1, "dtype": "f32", "tensors": [%s]}\n' "$1" | tee bad.json
    errors --model bad.json
}
bad '{"name": "a", "elements": 10, "compute_us": -5}'
bad '{"name": "a", "elements": 10}'
bad '{"name": "a", "elements": 10, "compute_us": NaN}'
bad '{"name": "a", "elements": 10, "compute_us": "1"}'
bad '{"name": "a", "elements": 0, "compute_us": 1}'
bad '{"name": "a", "elements": -1, "compute_us": 1}'
bad '{"name": "a b", "elements": 1, "compute_us": 1}'
bad '{"name": "a", "elements": 1, "compute_us": 1}, {"name": "a", "elements": 1, "compute_us": 1}'
bad ''
awk 'BEGIN { print "{\"espresso\": 1, \"model\": \"million\", \"forward_us\": 1, \"dtype\": \"f32\", \"tensors\": ["
    for (i = 0; i < 1000000; i++) printf "{\"name\": \"t%d\", \"elements\": 10, \"compute_us\": 1}%s\n", i, i < 999999 ? "," : "]}" }' >million.json
errors --model million.json

# truncated files are refused
cut() { # FILE FLAG BYTES STEP
    at=0
    while [ "$at" -lt "$3" ]; do
        head -c "$at" "$1" >cut.part
        small launch plan "$2" cut.part && echo "$1 was taken, cut off after $at bytes"
        grep -q cut.part "$top/2" || echo "$1, cut off after $at bytes: the file is not named"
        at=$((at + $4))
    done
}
cut m.json --model $(($(wc -c <m.json) - 2)) 29
small quiet plan -o p.strategy
# only up to the order's last entry: a strategy without that entry is valid
size=$(sed '/^order/,$d' p.strategy | wc -c)
cut p.strategy --strategy $((size - 2)) $((1 + size / 12))

# ---- strategies ------------------------------------------------------------------------------------------------------
small quiet plan --model lstm --strategy fp32 -o other.strategy
errors --strategy other.strategy
errors --strategy m.json
small quiet plan --only comp --no-merge --no-split -o c.strategy
errors --gc efsignsgd --strategy c.strategy
errors --strategy .

# ---- outputs: a failure keeps old files, and leaves none incomplete --------------------------------------------------
rm -f ./* && printf 'mine\n' >kept.strategy
echo '{"espresso": 1, "model": "one", "forward_us": 1, "tensors": [{"name": "a", "elements": 9, "compute_us": 1}]}' >m.json
errors -o kept.strategy --only flat --forbid flat
errors -o kept.strategy --explain nix
errors -o nix/p.strategy
errors -o .
errors --timeline /dev/full
errors --trace /dev/null
[ -c /dev/null ] && cat kept.strategy && ls -A
