# test_outer.sh: `espresso plan --outer`: rounds against times that follow from a plan of one step, the strategy, and wrong
# inputs.
. tests/cli/plan/plan.sh
echo '{"espresso": 1, "system": "slow", "machines": 2, "ranks_per_machine": 1, "devices": ["cpu"], "intra": {"alpha_us": 1, "bytes_per_us": 20000}, "inter": {"alpha_us": 100, "bytes_per_us": 500}}' >slow.json
echo '{"espresso": 1, "model": "one", "forward_us": 1000, "update_us": 500, "dtype": "f32", "tensors": [{"name": "w", "elements": 1000000, "compute_us": 2000}]}' >one.json
one() { small quiet plan --json --model one.json --system slow.json --max-comp 0 --no-split "$@"; }

# a single tensor is exposed whole in a step, and without delay in a round; a delay hides that many inner steps
one
step=$(value iteration_us)
exposed=$(awk "BEGIN { print $step - 3500 }")
holds "$exposed > 7000"
one --outer every=10
holds "($(value exposed_us) - $exposed) ^ 2 < 1e-9 && ($(value step_us) - 3500 - $exposed / 10) ^ 2 < 1e-9"
holds "($(value every_step_us) - $step) ^ 2 < 1e-9"
one --outer every=10,delay=1..1
holds "($(value exposed_us) - $exposed + 3500) ^ 2 < 1e-9"
one --outer every=10,delay=0..10
holds "$(value exposed_us) == 0 && $(value utilisation) == 1"
grep -q '"delay": 3,' "$top/1" || cat "$top/1"
# each pass over the parameters takes as long as a copy: 3.5 of them, or with compression 4.5; codecs are counted once
sed 's/}}$/}, "cores_per_rank": 1, "cpu_workers": 1, "pack_bytes_per_us": 8000}/' slow.json >copies.json
for codec in 'fp16 --max-comp 0:3.5' int4:4.5; do
    small quiet plan --json --model one.json --system copies.json --no-split --gc ${codec%:*} --outer every=10
    holds "($(value exposed_us) - $(value every_step_us) + 3500 - ${codec#*:} * 500) ^ 2 < 1e-9"
done
# the first number of steps that reaches 95%: 19 times what a round waits, in steps of 3.5 ms
one --outer every=1..1000
every=$(value every)
holds "$every == $(awk "BEGIN { e = 19 * $exposed / 3500; print e == int(e) ? e : int(e) + 1 }")"

# text, what-if, and a strategy whose groups stay within the fragments, and that is valid for the whole model
plan --system slow.json --outer every=1..60,fragments=1..3,delay=0..4 --what-if inter=2x -o s.strategy
cat s.strategy
small quiet plan --system slow.json --strategy s.strategy --json
holds "$(value iteration_us) > 0"
# --what-if: wan is the outermost link, whose slower direction counts, and latency may be a time: 4 MB take 320 + 80 ms
one --outer every=9 --what-if wan=0.9gbit/100mbit,latency=80ms
grep -q '"exposed_us": 400000,' "$top/1" || cat "$top/1"
errors --outer every=9 --what-if latency=fast
# a page: all inner steps, and for each fragment's delay one of the next round
small quiet plan --system slow.json --outer every=10..10,fragments=2..2,delay=2..2 --timeline round.html
[ "$(grep -c '"step [0-9]' round.html)" = 12 ] && grep -q '"step 2, next round"' round.html && ! grep -q '"step 3, n' round.html || echo "steps are wrong"
# collectives begin after two steps, and end when the round and a further step would: its waits are in it
small quiet plan --system slow.json --outer every=4..4,fragments=2..2,delay=1..1 --timeline round.html
awk -F, '/"iteration_ns":/ { round = $0; sub(/.*"iteration_ns":/, "", round); sub(/,.*/, "", round) }
    /"events":/ { on = sub(/.*\[/, "") }
    on && NF > 7 { if (!step) step = $7; if ($6 < 2 * step) early++; if ($6 + $7 > end) end = $6 + $7 }
    on && /\]/ { on = 0 }
    END { if (early != 2 || end != round + step || end < 5 * step) print "times are wrong:", early, step, end, round }' round.html
# where links are fast, a round brings nothing
plan --model one.json --system paper-nvlink --outer every=1..4

for wrong in every fragments=2 every=0 every=5..3 every=2.5 every=3,frag=2 every=3,fragments=4 every=4,fragments=2,delay=3; do
    errors --outer $wrong
done
errors --outer every=9,fragments=6..8
errors --outer every=9 --strategy fp32
errors --outer every=9 --machines 1,2
errors --outer every=9 --shard '*'
