# test_standards.sh: espresso.c and the one-file header compile without warnings under each strict standard (CMake's
# C_EXTENSIONS OFF, Meson's c_std=c11), and a program built so runs. If a header of libc has already left out what the
# code needs, one #error says what to add.
# runs: slow
. tests/compile/common.sh
try make -s dist
cp dist/espresso.h tests/install/use_api.c "$tmp/"
warn="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
{ echo '#define ESPRESSO_IMPLEMENTATION' && cat "$tmp/use_api.c"; } >"$tmp/one.c"
{ echo '#include <stdlib.h>' && cat "$tmp/one.c"; } >"$tmp/late.c"
for cc in gcc clang; do
    have $cc || { leaves_out "$cc is not there"; continue; }
    # what is built last is C11, and C17 corrects it
    for std in c99 c2x ${TEST_ALL:+c11 c17}; do try $cc -std=$std -I. $warn -fsyntax-only espresso.c; done
    [ -z "${TEST_ALL:-}" ] || try $cc -std=c99 "-I$tmp" $warn -fsyntax-only "$tmp/one.c"
    if $cc -std=c11 "-I$tmp" -fsyntax-only "$tmp/late.c" 2>"$tmp/output"; then
        echo "$cc -std=c11 compiles the code although stdlib.h came first" && exit 1
    fi
    grep -q 'error.*-D_DEFAULT_SOURCE -D_ISOC11_SOURCE' "$tmp/output" || { cat "$tmp/output" && exit 1; }
    try $cc -std=c11 "-I$tmp" $warn -D_DEFAULT_SOURCE -D_ISOC11_SOURCE -fsyntax-only "$tmp/late.c"
    try $cc -std=c11 "-I$tmp" "$tmp/one.c" -o "$tmp/one" -pthread -ldl -lm
    says_ok "$tmp/one"
done
checked
