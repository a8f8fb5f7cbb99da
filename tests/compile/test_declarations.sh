# test_declarations.sh: the header's declarations as C99, C11 and C++11 to 20, under the strictest warnings, from the
# source tree and from the one-file header, with the planner and without; and the same file with declarations twice.
# runs: slow
. tests/compile/common.sh
try make -s dist
mkdir "$tmp/onefile"
cp dist/espresso.h "$tmp/onefile/"
printf '#include "declarations.h"\n#include "espresso.h"\nint main(void) { return use_declarations(); }\n' >"$tmp/use.c"
cp "$tmp/use.c" "$tmp/use.cc"
warn="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
done=0
# with TEST_ALL, all four; otherwise the two that differ in both
for include in ${TEST_ALL:+"$root -DESP_NO_PLANNER" "$tmp/onefile"} "$root" "$tmp/onefile -DESP_NO_PLANNER"; do
    flags="-I$include -Itests/compile $warn"
    for cc in gcc clang; do
        have $cc || { leaves_out "$cc is not there"; continue; }
        for std in c99 c11 gnu17; do
            try $cc -std=$std $flags -Wc++-compat "$tmp/use.c" -o "$tmp/use"
            try "$tmp/use"
            try $cc -std=$std $flags -DESPRESSO_STATIC -fsyntax-only "$tmp/use.c" -Wno-undefined-internal -Wno-unknown-warning-option -Wno-unused-function
            done=$((done + 1))
        done
    done
    for cxx in g++ clang++; do
        have $cxx || { leaves_out "$cxx is not there"; continue; }
        for std in c++11 c++17 c++20; do
            try $cxx -std=$std $flags -Wold-style-cast "$tmp/use.cc" -o "$tmp/use"
            try "$tmp/use"
            done=$((done + 1))
        done
    done
done
# the code in a trainer's file that is compiled with the trainer's warnings
printf '#define ESPRESSO_IMPLEMENTATION\n#include "espresso.h"\nint main(void) { return 0; }\n' >"$tmp/code.c"
for cc in gcc clang; do
    have $cc || continue
    try $cc -std=gnu11 "-I$root" $warn -Wc++-compat -Wdeclaration-after-statement -fsyntax-only "$tmp/code.c"
    { cat "$tmp/code.c" && echo 'int *after(void *p); int *after(void *p) { return p; }'; } >"$tmp/after.c"
    # the trainer's own lines after it still have warnings
    if [ $cc = gcc ] && gcc "-I$root" -Wc++-compat -Werror -fsyntax-only "$tmp/after.c" 2>/dev/null; then exit 1; fi
    done=$((done + 1))
done
echo "$done builds"
[ "$done" -gt 0 ] || exit 1
checked
