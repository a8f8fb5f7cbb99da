# test_alone.sh: every file of the library, the planner, the codecs, the backends and the command compiles alone, and
# compile_commands.json has its flags. The build compiles most of them alone, too: without TEST_ALL, these are left out.
# runs: slow
. tests/compile/common.sh
need gcc
try make -s BUILD="$build" "$build/gen/tools/page/page.inc"
mpi=$(mpicc --showme:compile 2>/dev/null) || leaves_out "mpicc is not there: backends/p2p/mpi.c was not compiled"
files=$(find espresso_impl planner codecs backends tools -name '*.c' | sort)
[ -n "$mpi" ] || files=$(echo "$files" | grep -v '^backends/p2p/mpi.c$')
[ "$(echo "$files" | wc -l)" -gt 100 ] || { echo "too few files were found: $files" && exit 1; }
[ -n "${TEST_ALL:-}" ] || files=$(for f in $files; do
    [ -e "$build/obj/${f%.c}.o" ] || [ -e "$build/plugin/${f%.c}.o" ] || echo "$f"
done)
# shellcheck disable=SC2086 # several flags
echo "$files" | xargs -n 1 -P "$(getconf _NPROCESSORS_ONLN)" gcc -std=gnu11 -I. "-I$build/gen" -fsyntax-only -Werror=implicit-function-declaration $mpi >"$tmp/log" 2>&1 || {
    grep 'error:' "$tmp/log" | head -20
    exit 1
}
# a file with a missing include must be found
printf '#include "espresso.h"\nstatic int missing(void) { return esp__alloc(0, 1) != 0; }\n' >"$tmp/needs.c"
if gcc -std=gnu11 -I. -fsyntax-only -Werror=implicit-function-declaration "$tmp/needs.c" 2>"$tmp/log"; then echo "a file without its headers compiled" && exit 1; fi
try make -s compile_commands.json
if have python3; then
    try python3 -c "
import json
all = json.load(open('compile_commands.json'))
assert len(all) > 100 and all[0]['file'] == 'espresso_impl/base/status.c', all[:1]"
fi
checked
