# test_plan_limits.sh: flags of `espresso plan` that constrain plans: --keep, --only, --forbid, --max-..., --devices,
# --shard.
. tests/cli/plan/plan.sh

plan --no-merge --no-split --keep 'e*=fp32' --keep embed*=dgc:ratio=0.01 # the first match counts
plan --forbid comp@cpu --forbid inter.alltoall --max-comp 1
plan --devices cpu
plan --max-comp 0
plan --max-memory 20MB
plan --model lstm --gc efsignsgd --gc fp16 --strategy espresso
small quiet plan --json --model lstm --gc efsignsgd --gc fp16 --strategy espresso
value codec
plan --strategy hipress
errors --only comp --max-memory 1KB
errors --only comp --max-error 0.001
errors --only flat --forbid flat
errors --keep 'nix*=fp32'

# results of sharded tensors are not gathered
plan --shard '*' -o shard.strategy
cat shard.strategy
holds "$(grep -cE 'allgather|allreduce|^group ' shard.strategy) == 0"
errors --shard '*=inter'
small quiet plan --shard '*' --strategy shard.strategy
errors --strategy shard.strategy
small quiet plan --shard '*' --strategy fp32 -o fp32.strategy
errors --shard 'no_such*'
