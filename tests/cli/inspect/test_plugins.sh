# test_plugins.sh: `espresso plugins`: what is built in, what a plugin file brings, and what is said of a missing one.
. tests/cli/lib.sh
fixtures=$ESPRESSO_BUILD/tests/abi

run plugins
run plugins topk
run plugins shm
# the environment of a training job must not get in the way
export ESPRESSO_RANK=3 ESPRESSO_SIZE=nonsense ESPRESSO_BACKEND=nonsense
run plugins fp16
unset ESPRESSO_RANK ESPRESSO_SIZE ESPRESSO_BACKEND

# what codecs say of themselves: with parameters, of a wrapper, and of a codec that nothing here knows
run plugins topk:ratio=0.001
run plugins 'warmup:steps=3,of=(fp16:of=(topk:ratio=0.01))' warmup
run plugins "$fixtures/libespresso-everysecond.so"
run plugins --path "$fixtures" everysecond

run plugins 'warmup:steps=3,of=(topk:ratio=7)'
run plugins --path /no/such/dir topq
run plugins ./no-such.so
run plugins --pat x
