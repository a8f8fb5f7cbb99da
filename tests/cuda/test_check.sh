# test_check.sh: `espresso plugins --check` runs the whole conformance program on every CUDA codec, on the emulator.
# time limit: 600 s
# runs: long
plugin=$PWD/$BUILD/tests/cuda/libespresso-on_cpu.so
if [ ! -e "$plugin" ]; then
    echo "skipped: $plugin is not built (make test builds it)"
    exit 77
fi
# the test build's command, whose largest tensors are smaller
out=$("$BUILD/tests/bin/espresso" plugins --check "$plugin") || { echo "$out"; exit 1; }
echo "$out" | tail -n 1
# every codec of the plugin was checked
for name in $(sed -n 's/^CUDA_CODECS(\(.*\))$/\1/p' codecs/cuda/codecs.inc); do
    echo "$out" | grep -q "^codec $name ($plugin)" || { echo "codec $name was not checked"; exit 1; }
done
