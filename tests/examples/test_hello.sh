# test_hello.sh: the C++ example trains, and if one rank throws in a step, all ranks end with a clear error, and no thread
# reads the freed gradient. The step waits for a second tensor, which rank 1 does not push, so it cannot end before the
# exception.
# runs: slow
. tests/compile/common.sh
strict="-std=c++11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
try g++ $strict -I. examples/10_cpp/hello.cc "$build/lib/libespresso.a" -o "$tmp/hello" -pthread -ldl -lm
"$build/bin/espresso" run --no-prefix -n 2 -- "$tmp/hello" >"$tmp/out"
[ "$(grep -c 'step 1: the mean is 100.5 110.5 120.5' "$tmp/out")" -eq 2 ]

# the library of the tests under the address sanitizer, if it is there
library=$build/test-library/asan.a libraries="-lcmocka -ljansson -fopenmp"
if [ ! -e "$library" ]; then
    library=$tmp/espresso.o libraries=
    try gcc -O0 -fsanitize=address,undefined -I. -c espresso.c -o "$library"
fi
cat >"$tmp/edit.sed" <<'EOF'
s/grad(3)/grad(5000000), more(3)/
s/desc.count = 3/desc.count = 5000000/
s/check(esp_start(job.ctx), job.ctx);/desc.name = "more", desc.count = 3;\
        uint32_t second = 0;\
        check(esp_tensor_add(job.ctx, \&desc, \&second), job.ctx);\
        &/
s/check(esp_wait_all(job.ctx), job.ctx);/check(esp_push(job.ctx, id + 1, more.data(), esp_stream{}), job.ctx);\
    &/
EOF
sed -f "$tmp/edit.sed" examples/10_cpp/hello.cc >"$tmp/large.cc"
# shellcheck disable=SC2086 # several flags
try g++ $strict -g -fsanitize=address,undefined -I. "$tmp/large.cc" "$library" -o "$tmp/large" -pthread -ldl -lm $libraries
for progress in threads caller; do
    if ESPRESSO_PROGRESS=$progress timeout 60 "$build/bin/espresso" run -n 2 -- "$tmp/large" throw >"$tmp/out" 2>&1; then
        exit 1
    fi
    if ! grep -q 'the loss is NaN' "$tmp/out" || ! grep -q 'rank 1 left.*the step was canceled' "$tmp/out" ||
        grep AddressSanitizer "$tmp/out"; then
        cat "$tmp/out"
        exit 1
    fi
done
