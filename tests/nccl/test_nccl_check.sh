#!/bin/sh
# test_nccl_check.sh: the conformance checks of `espresso plugins --check` for backend nccl, on host memory and on that of a device, with
# ranks as processes over the stand-in for NCCL and the CUDA driver. Then what a user reads who has neither. time limit: 120 s
# runs: quiet slow
set -u
BUILD=${BUILD:-build}
command=$BUILD/tests/bin/espresso fake=$PWD/$BUILD/tests/nccl
[ -x "$command" ] || { echo "skipped: the command of the test build is not there" && exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 143' HUP INT TERM
ESPRESSO_PLUGIN_PATH=$PWD/$BUILD/lib/espresso:$fake TMPDIR=$dir
export ESPRESSO_PLUGIN_PATH TMPDIR
unset ESPRESSO_NCCL
failed=0
bad() { echo "FAILED: $*" && tail -n 40 "$dir/log" && failed=1; }

ESPRESSO_NCCL=$fake/new/libcuda.so.1 "$command" plugins --check standin nccl >"$dir/log" 2>&1 || bad "the checks: exit status $?"
grep -q '^12 passed, 0 failed, 3 skipped$' "$dir/log" || bad "the checks: not 12 that passed"
grep -q 'ok  *devices ' "$dir/log" || bad "device memory was not checked"
ls -d "$dir"/fake-nccl-* 2>/dev/null && bad "ranks left files behind"

# neither the library nor its file
if ESPRESSO_NCCL=/nowhere/libnccl.so.2 ESPRESSO_BACKEND=nccl "$BUILD/bin/hello" >"$dir/log" 2>&1; then bad "no NCCL: no error"; fi
grep -q '/nowhere/libnccl.so.2: cannot open' "$dir/log" || bad "no NCCL: no file in the error"
grep -q "install NCCL, or name its file in ESPRESSO_NCCL" "$dir/log" || bad "no NCCL: no advice"
ESPRESSO_NCCL=/nowhere/libnccl.so.2 "$command" plugins --check nccl >"$dir/log" 2>&1
grep -q "skipped  by its probe() it cannot run here" "$dir/log" || bad "no NCCL: checked all the same"
# a library that is not NCCL; where there is no driver, that is said, too
if ESPRESSO_NCCL=$fake/libespresso-standin.so ESPRESSO_BACKEND=nccl "$BUILD/bin/hello" >"$dir/log" 2>&1; then bad "not NCCL: no error"; fi
grep -qE 'libcuda.so.1: cannot open|is version 0 and lacks ncclGetErrorString' "$dir/log" || bad "not NCCL: no reason"
if grep -q 'libcuda.so.1: cannot open' "$dir/log"; then
    grep -q "libcuda.so.1: .*: install the GPU's driver" "$dir/log" || bad "no driver: no advice"
    grep -q 'install NCCL' "$dir/log" && bad "no driver: NCCL is there, and the advice is to install it"
fi

# the test for GPUs, with which a GPU's time must not be lost
for version in new old; do
    [ ! -x "$BUILD/tests/nccl/test_nccl_gpu" ] || ESPRESSO_NCCL=$fake/$version/libcuda.so.1 LD_LIBRARY_PATH=$fake/$version FAKE_SHARED=1 \
        timeout -k 5 60 "$BUILD/tests/nccl/test_nccl_gpu" >"$dir/log" 2>&1 || bad "test_nccl_gpu on the $version stand-in: exit status $?"
done
exit $failed
