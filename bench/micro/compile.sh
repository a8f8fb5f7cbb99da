#!/bin/sh
# compile.sh: the cost of compiling the library: user time and object size of the whole, of the build without the
# planner, and of each part compiled alone. Rounds are interleaved, and the shortest time of each counts. Writes RESULT.
#   sh bench/micro/compile.sh [ROUNDS]          5 rounds: about five minutes
# A part is compiled with the headers of the whole library, whose own time (row "headers") is subtracted; nothing unused
# is dropped from it. So parts do not add up to the whole exactly: in one unit, the compiler inlines across parts.
# Variables: CC (gcc), OPT (-O2), RESULT (bench/results/micro/compile.csv).
set -eu
cd "$(dirname "$0")/../.."
ROUNDS=${1:-5}
CC=${CC:-gcc}
OPT=${OPT:--O2}
RESULT=${RESULT:-bench/results/micro/compile.csv}
case $ROUNDS in *[!0-9]* | 0) echo "compile.sh: ROUNDS is a whole number from 1 on" >&2; exit 2 ;; esac
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
load=$(cut -d' ' -f1 /proc/loadavg)

# ---- the units: $tmp/NAME.c and $tmp/NAME.flags each
unit() { # NAME FLAGS TEXT
    printf '%s\n' "$3" >"$tmp/$1.c"
    echo "$2" >"$tmp/$1.flags"
    units="$units $1"
}
includes() { printf '#include "%s"\n' "$@"; }
headers=$(includes espresso.h espresso_impl/base/base.h espresso_impl/executor/executor.h codecs/common/simd.h)
part() { # NAME FILE ...
    name=$1
    shift
    parts="$parts $name"
    unit "$name" -DESP__FN= "$headers
#undef ESPRESSO_PLUGIN_ENTRY
#define ESPRESSO_PLUGIN_ENTRY(id) const esp_plugin *entry_##id(const esp_host *h)
$(includes "$@")"
}
units='' parts=''
wholes='everything ESP_NO_PLANNER'
unit everything '' '#include "espresso.c"'
unit ESP_NO_PLANNER -DESP_NO_PLANNER '#include "espresso.c"'
unit headers '' "$headers"
# The parts are the folders of the library; each codec is one, and the planner's other folders are one. In the list's
# order.
sed -n 's/^#include "\(.*\.c\)"/\1/p' espresso.c | awk -F/ '
    $1 == "espresso_impl" { print $2, $0; next }
    $1 == "codecs" { sub("[.]c", "", $2); print "codec:" $2, "codecs/" $2 ".c"; next }
    $1 == "planner" && ($2 == "calibrate" || $2 == "auto") { print $2, $0; next }
    { print $1, $0 }' >"$tmp/list"
for name in $(awk '!seen[$1]++ { print $1 }' "$tmp/list"); do
    # shellcheck disable=SC2046
    part "$name" $(awk -v name="$name" '$1 == name { print $2 }' "$tmp/list")
done

# ---- measure
compile() { # NAME: its user time in seconds
    # shellcheck disable=SC2046
    (
        $CC -std=gnu11 $OPT -ffp-contract=off -I. $(cat "$tmp/$1.flags") -c "$tmp/$1.c" -o "$tmp/$1.o" 2>"$tmp/log" || { cat "$tmp/log" >&2; exit 1; }
        times >"$tmp/times"
    )
    sed -n '2s/^\([0-9]*\)m\([0-9.]*\)s.*/\1 \2/p' "$tmp/times" | awk '{ print $1 * 60 + $2 }'
}
for round in $(seq "$ROUNDS"); do
    [ ! -t 2 ] || printf '\rround %d of %d' "$round" "$ROUNDS" >&2
    for u in $units; do
        seconds=$(compile "$u")
        echo "$u $seconds $(size "$tmp/$u.o" | awk 'NR == 2 { print $1 + $2 }')" >>"$tmp/all"
    done
done
[ ! -t 2 ] || printf '\r%30s\r' '' >&2

# ---- report
{
    echo "# bench/micro/compile.sh: compile time and object size of the library and its parts: $CC $OPT, user seconds," \
        "least of $ROUNDS rounds; bytes: text + data"
    LOAD=$load sh bench/head.sh
    echo "kind,name,seconds,bytes"
    awk -v wholes="$wholes" -v parts="$parts" '
    !($1 in least) || $2 < least[$1] { least[$1] = $2 }
    { bytes[$1] = $3 }
    END {
        n = split(wholes, w, " ")
        for (i = 1; i <= n; i++) printf "whole,%s,%.2f,%d\n", w[i], least[w[i]], bytes[w[i]]
        printf "headers,headers,%.2f,%d\n", least["headers"], bytes["headers"]
        n = split(parts, p, " ")
        for (i = 1; i <= n; i++) {
            own = least[p[i]] - least["headers"]
            printf "part,%s,%.2f,%d\n", p[i], (own > 0 ? own : 0), bytes[p[i]]
        }
    }' "$tmp/all"
} >"$RESULT.tmp"
mv "$RESULT.tmp" "$RESULT"
cat "$RESULT"
