# test_cuda.sh: plugin cuda, as nvcc built it: it has code for every architecture that nvcc knows, no kernel uses more
# than 32 bytes of local memory a thread (bench/cuda/kernels.sh lists them), it exports only its entry, and it loads on
# a machine without a GPU.
. tests/compile/common.sh
plugin=$BUILD/lib/espresso/libespresso-cuda.so
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || :)
if [ -z "$nvcc" ]; then
    echo "skipped: nvcc is not here, so plugin cuda is not built"
    exit 77
fi
[ -e "$plugin" ] || { echo "$plugin is not there: make plugins builds it"; exit 1; }
for arch in $("$nvcc" --list-gpu-code | sed -n 's/^sm_\([0-9]*\)$/\1/p'); do
    [ "$arch" -lt 70 ] && continue
    [ -n "${TEST_ALL:-}" ] || [ "$arch" -eq 90 ] || continue # make test-all builds for all of them
    grep -q "sm_$arch" "$BUILD"/cuda/topk.ptxas || { echo "no code for sm_$arch: built with CUDA_ARCH=all?"; exit 1; }
done
sh bench/cuda/kernels.sh "$BUILD" >"$tmp/kernels" || { cat "$tmp/kernels" | tail -n 20; exit 1; }
tail -n 1 "$tmp/kernels"
exports=$(nm -D --defined-only "$plugin" | awk '{ print $3 }')
[ "$exports" = espresso_plugin_v1 ] || { echo "exports more than its entry: $exports"; exit 1; }
"$ESPRESSO_COMMAND" plugins "./$plugin" >"$tmp/listed" 2>&1 || { cat "$tmp/listed"; exit 1; }
for name in $(sed -n 's/^CUDA_CODECS(\(.*\))$/\1/p' codecs/cuda/codecs.inc); do
    grep -q "$name" "$tmp/listed" || { echo "codec $name is not listed:"; cat "$tmp/listed"; exit 1; }
done
