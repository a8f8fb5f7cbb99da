#!/bin/sh
# codecs.sh: writes the table of codecs in docs/use/using.md from what `espresso plugins` prints.
#   sh docs/use/codecs.sh [FILE]    writes the page with its new table to FILE instead
set -eu
cd "$(dirname "$0")/../.."
command=${ESPRESSO_COMMAND:-build/bin/espresso}
page=docs/use/using.md
table=$(mktemp)
trap 'rm -f "$table" "$table.page"' EXIT
{
    echo '| codec, defaults | class | what it sends | bits an element | method |'
    echo '|---|---|---|---|---|'
    for name in $("$command" plugins | awk '$1 == "codec" { print $2 }'); do
        "$command" plugins "$name" | awk '
            /^codec / { name = $2 }
            NR == 2 { sub(/^ */, ""); what = $0 }
            { key = $1; rest = $0; sub(/^ *[a-z]*: */, "", rest) }
            key == "class:" { class = rest }
            key == "paper:" { paper = rest }
            key == "payload:" { bits = $2 }
            key == "parameters:" { listing = 1 }
            key != "parameters:" && /^  [a-z]/ { listing = 0 }
            listing && rest != "none" {
                sub(/^ */, "", rest); sub(/: .*/, "", rest)
                params = params (params == "" ? ":" : ",") rest
            }
            END { printf "| `%s%s` | %s | %s | %s | %s |\n", name, params, class, what, bits, paper }'
    done
} >"$table"
awk -v table="$table" '
    /^\| codec, defaults/ { while ((getline line <table) > 0) print line; within = 1 }
    !/^\|/ { within = 0 }
    !within' "$page" >"$table.page"
cp "$table.page" "${1:-$page}"
