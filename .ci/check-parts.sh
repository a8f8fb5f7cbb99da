#!/bin/sh
# check-parts.sh: each folder compiles with the headers of the folders that it may know, and no others, and calls only functions that
# it or one of them defines: layers are checked, not promised. A folder may know those named behind it, which all stand above it
# here: so there is no cycle. Codecs and backends call nobody by name: as plugins they are linked alone.
#   make check-parts        (run in the project's root)
# runs: slow
set -u
build=${BUILD:-build}
cc=${CC:-gcc}
bad=0
parts='
codecs/common:
codecs: codecs/common
espresso_impl/base:
backends/common: codecs/common espresso_impl/base
backends/shm: backends/common codecs/common espresso_impl/base
backends/p2p: backends/common codecs/common espresso_impl/base
backends/nccl: backends/common codecs/common espresso_impl/base
backends: backends/common backends/shm backends/p2p backends/nccl codecs/common espresso_impl/base
espresso_impl/registry: espresso_impl/base codecs/common
espresso_impl/device: espresso_impl/base espresso_impl/registry codecs/common
espresso_impl/job: espresso_impl/base
espresso_impl/strategy: espresso_impl/base espresso_impl/registry espresso_impl/job
planner: espresso_impl/base espresso_impl/strategy planner/problem planner/simulate planner/bound planner/search planner/baselines
planner/builtin: planner espresso_impl/base espresso_impl/registry espresso_impl/strategy
planner/files: planner espresso_impl/base espresso_impl/strategy
espresso_impl/executor: espresso_impl/base espresso_impl/registry espresso_impl/device espresso_impl/job espresso_impl/strategy codecs/common
espresso_impl/observe: espresso_impl/base espresso_impl/registry espresso_impl/device espresso_impl/job espresso_impl/strategy espresso_impl/executor codecs/common
planner/calibrate: espresso_impl/base espresso_impl/registry espresso_impl/device espresso_impl/job espresso_impl/strategy espresso_impl/executor codecs/common planner
planner/auto: espresso_impl/base espresso_impl/registry espresso_impl/device espresso_impl/job espresso_impl/strategy espresso_impl/executor espresso_impl/observe planner/calibrate codecs/common planner
'
# FOLDER FUNCTION (a pattern): calls of what stands below, each with its reason
upward='
espresso_impl/executor esp__observers_[a-z_]*
espresso_impl/observe esp__[a-z]*_observer
espresso_impl/registry espresso_plugin_v1_[a-z]*
'
# the executor tells the observers, of which observe/observers.c has the one list (executor/observer.h);
# observe/observers.inc lists every observer, in whatever folder; plugins/builtin.h lists the built-in plugins
root=$PWD
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT INT TERM
# the .c files of a folder of the library, in the order in which they are read; codecs and backends are units of their own
sources() { # FOLDER
    case $1 in
    codecs | backends) ;; # each is a plugin, too
    planner) sed -n 's|^#include "\(planner/.*\.c\)"|\1|p' espresso.c | grep -v '^planner/builtin/' ;; # one part: they share planner/plan.h
    backends/*) find "$1" -name '*.c' | sort ;; # plugins' parts are not in the list
    planner/files) find planner/files -name '*.c' -not -name write_builtin.c | sort ;;
    *) sed -n "s|^#include \"\($1/[^/]*\.c\)\"|\1|p" espresso.c | grep -v no_autopilot ;;
    esac
}
compiles() { # HOW FILE ...: together, in $tmp/root
    how=$1 && shift
    { echo '#include "espresso.h"'; for f in "$@"; do echo "#include \"$f\""; done; } >"$tmp/root/part.c"
    (cd "$tmp/root" && $cc -std=gnu11 -ffp-contract=off -I. -pthread -DESP__FN= -Wall -Wextra -Wno-unused -Werror \
        -Wno-sign-compare $how part.c) >>"$tmp/log" 2>&1
}
# $tmp/part.o is $part: keeps the names that it defines; those that it needs must be among them and those of the folders in $known
calls() {
    names=$tmp/names && mkdir -p "$names"
    nm "$tmp/part.o" | awk 'NF == 3 && $2 ~ /[A-Z]/ { print $3 }' >"$names/$(echo "$part" | tr / -)"
    for folder in $part $known; do cat "$names/$(echo "$folder" | tr / -)" 2>/dev/null; done >"$tmp/defined"
    echo "$upward" | sed -n "s|^$part ||p" >"$tmp/upward"
    nm "$tmp/part.o" | sed -n 's/^ *U \(\(esp\|files\|backend\|engine\|mesh\|nccl\|shm\)_.*\)/\1/p' | grep -vxFf "$tmp/defined" | grep -vxf "$tmp/upward" |
        sed "s|^|error: calls |; s|\$|, which no folder that it may know defines|" >"$tmp/called"
    cat "$tmp/called" >>"$tmp/log"
    [ ! -s "$tmp/called" ]
}
# no folder may name one that has not been named before
printf '%s' "$parts" | awk -F: 'NF == 2 { n = split($2, k, " "); for (i = 1; i <= n; i++) if (!(k[i] in seen) && k[i] !~ "^" $1 "/") {
    print "check-parts: " $1 " names " k[i] ", which stands below it"; bad = 1 } seen[$1] = 1; for (i = 1; i <= n; i++) if (k[i] ~ "^" $1 "/") seen[k[i]] = 1 } END { exit bad }' || exit 1
printf '%s' "$parts" | while IFS=: read -r part known; do
    [ -n "$part" ] || continue
    rm -rf "$tmp/root" && mkdir -p "$tmp/root"
    ln -s "$root/espresso.h" "$tmp/root/espresso.h"
    mkdir -p "$tmp/root/planner" && ln -sf "$root/planner/api.h" "$tmp/root/planner/api.h"
    mkdir -p "$tmp/root/plugins" && ln -sf "$root/plugins/abi.h" "$tmp/root/plugins/abi.h"
    for folder in $part $known; do
        mkdir -p "$tmp/root/$folder"
        ln -sf "$root/$folder"/*.h "$root/$folder"/*.inc "$tmp/root/$folder/" 2>/dev/null
    done
    # the planner's folders are one part
    case $part in planner*) for f in planner/*/*.c; do ln -sf "$root/$f" "$tmp/root/$f" 2>/dev/null; done ;; esac
    : >"$tmp/log"
    ok=1
    list=$(sources "$part")
    for f in "$part"/*.c; do [ ! -f "$f" ] || ln -sf "$root/$f" "$tmp/root/$f"; done
    if [ -n "$list" ]; then
        compiles "-c -o $tmp/part.o" $list && calls || ok=0
    else
        for f in "$part"/*.[ch]; do
            flags=
            if [ "$f" = backends/p2p/mpi.c ]; then flags=$(mpicc --showme:compile 2>/dev/null) || continue; fi # no MPI here
            compiles "-fsyntax-only $flags" "$f" || ok=0
        done
    fi
    [ "$ok" -eq 1 ] || {
        echo "check-parts: $part needs more than it may know (${known:-nothing else}):"
        grep 'error' "$tmp/log" | head -"${MOST:-6}"
        : >"$tmp/bad"
    }
done
[ ! -e "$tmp/bad" ] || exit 1
echo "check-parts: every folder knows only what it may"
