#!/bin/sh
# check-style.sh: checks the sources: clang-format, no warnings from gcc and clang, no unused functions.
# Exit status 77: nothing is wrong, but a tool is not there.
#   make check-style        (run in the project's root)
# runs: slow
set -u
build=${BUILD:-build}
bad=0
left_out=
leaves_out() { left_out="$left_out${left_out:+; }$*"; }
wrong() {
    echo "check-style: $*"
    bad=1
}
sources=$(find espresso.h espresso.c espresso_impl codecs backends planner plugins tools tests bench examples \
    -name '*.c' -o -name '*.h' | sort)
warn="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"

if command -v clang-format >/dev/null; then
    clang-format --dry-run -Werror $sources $(find codecs tests -name '*.cu' -o -name '*.cc') 2>"$build/format.log" || {
        grep 'error:' "$build/format.log" | cut -d: -f1 | sort | uniq -c | head -20
        wrong "run clang-format -i on the files above"
    }
else
    leaves_out "clang-format is not there: formatting was not checked"
fi

whole='espresso.c codecs/*.c codecs/*/*.c planner/files/*.c tools/*.c tools/*/*.c' # clang compiles these as one file, below
built='backends/*/*.c bench/trainers/*.c examples/*/*.c tests/abi/plugin_*.c'
others='bench/micro/*.c bench/planner/*.c plugins/*/*.c'
for cc in gcc clang; do
    command -v $cc >/dev/null || { leaves_out "$cc is not there: its warnings were not checked" && continue; }
    case $cc,${WERROR:-} in
    clang,*) files="$built $others" ;;
    gcc,) files="$whole $built $others" ;;
    *) files=$others ;; # the build had gcc's warnings as errors
    esac
    for file in $files; do
        [ -f "$file" ] || continue
        # gcc needs its optimiser for some warnings, clang does not
        mpi=
        if grep -q '^#include <mpi.h>' "$file" && ! mpi=$(mpicc --showme:compile 2>/dev/null); then
            leaves_out "mpicc is not there: $file was not checked" && continue
        fi
        case $cc$file in gccespresso.c | gcctools/*) how="-O1 -c -o $build/style.o" ;; *) how=-fsyntax-only ;; esac
        $cc -std=gnu11 -ffp-contract=off -I. "-I$build/gen" -pthread $mpi $warn $how "$file" >"$build/style.log" 2>&1 || {
            head -20 "$build/style.log"
            wrong "$cc warns about $file"
        }
    done
done

# some system calls may be used in one file only, which handles their difficult cases
owner() { # PATTERN FILE [EXCEPTION]: only FILE may contain the pattern
    others=$(grep -rlE "$1" espresso_impl codecs backends planner tools bench --include='*.[ch]' | grep -vxF -e "$2" -e "${3:-$2}")
    [ -z "$others" ] || wrong "$2 does what others do again:" $others
}
owner 'pthread_create\(' espresso_impl/base/os.c backends/nccl/plugin.c # a plugin cannot call os.c
owner '\<rename\(' espresso_impl/base/file.c
owner '\<(fsync|mkstemp)\(' espresso_impl/base/file.c
owner '_SC_NPROCESSORS|sched_getaffinity' espresso_impl/base/machine.h

# codecs describe themselves: no codec's name decides anything outside its own file. Exceptions: figures and schemes
# that were published under a name, the default of a flag, words for dtypes, an option's key "warmup", and "none", with
# which strategies say "not compressed"
names=$(for f in codecs/*.c codecs/*/*.c; do basename "$f" .c; done | grep -vx none | tr '\n' '|')
named=$(grep -rnE "[^\\]\"(${names%|})[\":;]" espresso_impl planner tools --include='*.[ch]' | sed 's|/\*.*||' |
    grep -E "[^\\]\"(${names%|})[\":;]" | grep -vE '^[^:]*:[0-9]+: \*|\{"warmup", "a whole number' |
    grep -vE '^(planner/builtin/v100.c|espresso_impl/registry/builtin.h|planner/baselines/ddp.c|tools/advise/inputs.c|tools/plan/artifact.c|tools/replay/replay.c|espresso_impl/base/status.c):')
[ -z "$named" ] || wrong "a codec's name in code that should ask the codec:" "$named"

# private functions that neither the library, nor the command, nor the writer of files calls: as plain statics they are
# warned of. All are one file here, in which the main of the command has another name than the writer's. clang gives its
# other warnings of it, too.
{
    printf '#define _GNU_SOURCE\n#define ESPRESSO_STATIC\n#define ESPRESSO_IMPLEMENTATION\n#include "espresso.h"\n'
    find planner/files -name '*.c' | sort | sed 's/.*/#include "&"/'
    echo '#define main command_main'
    find tools -name '*.c' | sort | sed 's/.*/#include "&"/'
} >"$build/whole.c"
how=$(command -v clang) && how="$how -fsyntax-only $warn -Wno-error=unused-function" || how="gcc -c -o $build/style.o"
LC_ALL=C $how -std=gnu11 -I. "-I$build/gen" -pthread -Wall -DESP__FN=static -DESPRESSO_API=extern "$build/whole.c" >"$build/style.log" 2>&1 || {
    cat "$build/style.log"
    wrong "the sources do not compile as one file with ESP__FN as plain static, or $how warns about them"
}
dead=$(sed -n "s/.*unused function '\([^']*\)'.*/\1/p; s/.*'\([^']*\)' defined but not used.*/\1/p" "$build/style.log" | sort -u)
[ -z "$dead" ] || wrong "nobody calls these, remove them:" $dead

for plugin in "$build"/lib/espresso/*.so; do
    [ "$(nm -D --defined-only "$plugin" | awk '{ print $3 }')" = espresso_plugin_v1 ] ||
        wrong "$plugin must export espresso_plugin_v1 and nothing else"
done
[ "$bad" -eq 0 ] || exit 1
if [ -n "$left_out" ]; then
    echo "skipped: $left_out"
    exit 77
fi
echo "check-style: all is well"
