#!/bin/sh
# check-parts.sh: checks the layers: each folder must compile with the headers of the folders listed after its name and
# no others, and call only functions that it or one of those defines. All of them are listed before it, so that there is
# no cycle. Codecs and backends call no functions of the library by name: as plugins they are linked alone.
#   make check-parts        (run in the project's root)
# runs: slow
set -u
build=${BUILD:-build}
cc=${CC:-gcc}
bad=0
# @ stands for espresso_impl/, + for planner/
parts=$(sed 's|@|espresso_impl/|g; s|+|planner/|g' <<END
codecs/common:
codecs: codecs/common
codecs/quantize: codecs/common
codecs/sparsify: codecs/common
codecs/hybrid: codecs/common
codecs/lowrank: codecs/common
@base:
backends/common: codecs/common @base
backends/shm: backends/common codecs/common @base
backends/p2p: backends/common codecs/common @base
backends/nccl: backends/common codecs/common @base
@job: @base
@registry: @base codecs/common
@codec: @base @registry codecs/common
@device: @base @job @registry codecs/common
@strategy: @base @job @registry @codec
@program: @base @job @registry @codec @device @strategy
@executor: @base @job @registry @codec @device @strategy @program codecs/common
@observe: @base @job @registry @codec @device @strategy @program @executor codecs/common
@context: @base @job @registry @codec @device @strategy @program @executor @observe codecs/common
planner: @base @job @registry @codec @strategy +problem +simulate +bound +search +baselines
+builtin: planner @base @job @registry @codec @strategy
+files: planner @base @job @registry @codec @strategy
+calibrate: @base @job @registry @codec @device @strategy @program @executor @context codecs/common planner
+auto: codecs/common @base @job @registry @codec @device @strategy @program @executor @observe @context planner +builtin +calibrate
END
)
# FOLDER FUNCTION (a pattern): the exceptions. espresso_impl/registry/builtin.h lists the built-in plugins;
# context/open.c lists the observers, one of which is strategy auto
upward='
espresso_impl/registry espresso_plugin_v1_[a-z]*
espresso_impl/context esp__auto_observer
'
# files that are compiled alone: the entries of plugins that share a folder
entries='backends/shm/(loop|shm)\.c|backends/p2p/mpi\.c'
root=$PWD
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT INT TERM
# the .c files of a folder of the library, in the order of espresso.c; codecs and backends are units of their own
sources() { # FOLDER
    case $1 in
    codecs* | backends) ;; # each is a plugin, too
    planner) # one part: these folders share planner/plan.h
        sed -n 's|^#include "\(planner/.*\.c\)"|\1|p' espresso.c | grep -vE '^planner/(builtin|calibrate|auto)/' ;;
    backends/*) find "$1" -name '*.c' | grep -vxE "$entries" | sort ;;
    planner/files) find planner/files -name '*.c' -not -name write_builtin.c | sort ;;
    *) sed -n "s|^#include \"\($1/[^/]*\.c\)\"|\1|p" espresso.c ;;
    esac
}
compiles() { # HOW FILE ...: compiles the files as one unit, in $tmp/root
    how=$1 && shift
    { echo '#include "espresso.h"'; for f in "$@"; do echo "#include \"$f\""; done; } >"$tmp/root/part.c"
    (cd "$tmp/root" && $cc -std=gnu11 -ffp-contract=off -I. -pthread -DESP__FN= -Wall -Wextra -Wno-unused -Werror \
        -Wno-sign-compare $how part.c) >>"$tmp/log" 2>&1
}
# checks the calls of $part, whose object is $tmp/part.o: $part or a folder in $known must define each function
calls() {
    names=$tmp/names && mkdir -p "$names"
    nm "$tmp/part.o" | awk 'NF == 3 && $2 ~ /[A-Z]/ { print $3 }' >"$names/$(echo "$part" | tr / -)"
    for folder in $part $known; do cat "$names/$(echo "$folder" | tr / -)" 2>/dev/null; done >"$tmp/defined"
    echo "$upward" | sed -n "s|^$part ||p" >"$tmp/upward"
    nm "$tmp/part.o" | sed -n 's/^ *U \(\(esp\|files\|backend\|nccl\|p2p\|shm\)_.*\)/\1/p' |
        grep -vxFf "$tmp/defined" | grep -vxf "$tmp/upward" |
        sed "s|^|error: calls |; s|\$|, which no folder that it may know defines|" >"$tmp/called"
    cat "$tmp/called" >>"$tmp/log"
    [ ! -s "$tmp/called" ]
}
# a folder may name only folders listed before it
printf '%s' "$parts" | awk -F: 'NF == 2 {
    n = split($2, known, " ")
    for (i = 1; i <= n; i++) if (!(known[i] in listed) && known[i] !~ "^" $1 "/") {
        print "check-parts: " $1 " names " known[i] ", which is not listed before it"
        bad = 1
    }
    listed[$1] = 1
    for (i = 1; i <= n; i++) if (known[i] ~ "^" $1 "/") listed[known[i]] = 1
}
END { exit bad }' || exit 1
printf '%s\n' "$parts" | while IFS=: read -r part known; do
    [ -n "$part" ] || continue
    rm -rf "$tmp/root" && mkdir -p "$tmp/root"
    ln -s "$root/espresso.h" "$tmp/root/espresso.h"
    mkdir -p "$tmp/root/planner" && ln -sf "$root/planner/api.h" "$tmp/root/planner/api.h"
    mkdir -p "$tmp/root/plugins" && ln -sf "$root/plugins/abi.h" "$tmp/root/plugins/abi.h"
    for folder in $part $known; do
        mkdir -p "$tmp/root/$folder"
        ln -sf "$root/$folder"/*.h "$root/$folder"/*.inc "$tmp/root/$folder/" 2>/dev/null
    done
    # the planner's folders are checked as one
    case $part in planner*) for f in planner/*/*.c; do ln -sf "$root/$f" "$tmp/root/$f" 2>/dev/null; done ;; esac
    : >"$tmp/log"
    ok=1
    list=$(sources "$part")
    for f in "$part"/*.c; do [ ! -f "$f" ] || ln -sf "$root/$f" "$tmp/root/$f"; done
    if [ -n "$list" ]; then
        compiles "-c -o $tmp/part.o" $list && calls || ok=0
    fi
    # codecs have different names, so a folder of them is one unit, too
    case $part in codecs*) compiles "-fsyntax-only -DESPRESSO_STATIC_PLUGINS" "$part"/*.[ch] || ok=0 ;; esac
    for f in "$part"/*.[ch]; do
        case $part in codecs*) break ;; esac
        [ -z "$list" ] || echo "$f" | grep -qxE "$entries" || continue
        flags=
        if [ "$f" = backends/p2p/mpi.c ]; then flags=$(mpicc --showme:compile 2>/dev/null) || continue; fi # no MPI here
        compiles "-fsyntax-only $flags" "$f" || ok=0
    done
    [ "$ok" -eq 1 ] || {
        echo "check-parts: $part needs more than it may know (${known:-nothing else}):"
        grep 'error' "$tmp/log" | head -"${MOST:-6}"
        : >"$tmp/bad"
    }
done
[ ! -e "$tmp/bad" ] || exit 1
echo "check-parts: every folder knows only what it may"
