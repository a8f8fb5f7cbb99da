# test_plan_what_if.sh: `espresso plan --what-if` and `--explain`: other inputs for a plan, other options for a tensor.
. tests/cli/plan/plan.sh

small quiet plan --json --what-if inter=100gbit --what-if inter=4x,codec=2x --what-if machines=1 --what-if compute=0.5x
part '/"what_if"/,$p'
# a faster link never makes a kept plan slower, fp32 gains from 25 to 100 Gbit/s, and half the compute speed doubles
# compute times
set -- $(key kept_us <"$top/1")
holds "$1 <= $(value iteration_us) && $2 <= $1 && $(key fp32_us <"$top/1" | sed -n 2p) < 0.8 * $(value fp32_us) && $(key bound_us <"$top/1" | sed -n '$p') >= 2 * 2310.5"
small quiet plan --what-if inter=2x
part '/^what if/,$p'

# bandwidth changes the gap and latency the rest of the time, exactly for one tensor: its 5000500 bytes are half-way
# between the points of the tables
cat >one.json <<END
{"espresso": 1, "model": "one", "forward_us": 100, "update_us": 10, "tensors": [{"name": "a", "elements": 1250125, "compute_us": 500}]}
END
cores 0
small quiet plan --json --model one.json --system cores.json --no-split --only flat.allreduce --what-if inter=2x --what-if latency=2x --what-if intra=2x
around=610 time=10150 gap=7550
set -- $(key kept_us <"$top/1")
echo "as it is $(value iteration_us); $*"
holds "$(value iteration_us) == $around + $time && $1 == $around + $time - $gap / 2 && $2 == $around + $gap + ($time - $gap) / 2 && $3 == $around + $time"
errors --system cores.json --what-if cores=2
cores 1
errors --system cores.json --what-if cores=4
errors --system cores.json --what-if outer=2x
# with one core, computing, compression and collectives take turns; with a second one they overlap
small quiet plan --system cores.json --what-if cores=2
part '/^what if/,$p'

small quiet plan --explain head.weight --json
part '/"explain"/,$p'
# the best options in order, with the plan's, and none faster than a step without the tensor's synchronisation
holds "$(key current <"$top/1" | grep -c true) == 1 && $(value without_us) <= $(key iteration_us <"$top/1" | sort -g | head -n 1)"
key iteration_us <"$top/1" | sed 1d | head -n 10 | sort -c -g
for flags in norm.bias "norm.bias --strategy ddp" "embed.weight --strategy byteps-compress"; do # alone, in a group, in chunks
    small quiet plan --explain $flags
    part '/^[a-z]*.[a-z]*, [0-9]/,$p'
done
errors --explain head.weigth
