# test_plan_input.sh: `espresso plan` with bad input: wrong usage, unknown names.
. tests/cli/plan/plan.sh

run plan
run plan --model m
errors --machines 0
errors --machines 2.5
errors --max-memory -3GB
errors --max-memory nan
errors --max-volume inf
errors --budget 5
errors --keep embed
errors --devices tpu
for change in inter=0x wire=2x '' machines=1.3x; do errors --what-if "$change"; done
errors --json -o -
errors now
errors --explian
run help plan

errors --model vgg17
errors --model nix.json
errors --model /
errors --gc zip
errors --gc 'warmup:of=(topk:ratio=7)'
errors --gc dgc:ratio=7
errors --gc nix.json
errors --gc dgc --gc dgc
errors --system mars
errors --system nix.json
errors --strategy hipres
errors --strategy nix.strategy
errors --strategy ./nix.strategy
