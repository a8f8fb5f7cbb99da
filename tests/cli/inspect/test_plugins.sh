# test_plugins.sh: `espresso plugins`: shows built-in plugins and those of a file, and reports a missing file.
. tests/cli/lib.sh
fixtures=$ESPRESSO_BUILD/tests/abi

run plugins
run plugins topk
run plugins shm
# variables of a training job must not matter
export ESPRESSO_RANK=3 ESPRESSO_SIZE=nonsense ESPRESSO_BACKEND=nonsense
run plugins fp16
unset ESPRESSO_RANK ESPRESSO_SIZE ESPRESSO_BACKEND

# models of codecs: with parameters, of a wrapper, and of a codec from a plugin file
run plugins topk:ratio=0.001
run plugins 'warmup:steps=3,of=(fp16:of=(topk:ratio=0.01))' warmup
run plugins "$fixtures/libespresso-everysecond.so"
run plugins --path "$fixtures" everysecond

run plugins 'warmup:steps=3,of=(topk:ratio=7)'
run plugins --path /no/such/dir topq
run plugins ./no-such.so
run plugins --pat x
