# test_blocks.sh: no block of code of a page goes untested. Each is inserted into the file of its name in frames/ (at the
# word BLOCK), and compiled or run; or another test takes the page's blocks; or it is a strategy, which is checked; or it
# has commands: the flags that they name are those of `espresso help`, the targets those of make, and plans that need no
# files are made.
# runs: slow
# time limit: 900 s
. tests/python/common.sh
frames=tests/pages/frames
mkdir "$tmp/blocks"
pages=$(ls README.md CONTRIBUTING.md SECURITY.md docs/*/*.md plugins/README.md examples/README.md examples/*/README.md planner/*/README.md bench/README.md)
# shellcheck disable=SC2086 # several files
awk -v out="$tmp/blocks" -f tests/pages/blocks.awk $pages >"$tmp/list"
[ "$(wc -l <"$tmp/list")" -gt 100 ]
failed=0
fails() {
    echo "$where: $*"
    failed=1
}
taken() { # TEST: it does name the page
    grep -qF "$1" "tests/$2" || fails "tests/$2 does not name this page"
}

# a block in its frame; "..." in it stands for other code of the same kind
framed() {
    awk -v block="$tmp/blocks/$name" '
        match($0, /(^|[ {])BLOCK(;|$)/) {
            print substr($0, 1, RSTART + index(substr($0, RSTART), "BLOCK") - 2)
            while ((getline line < block) > 0) if (line !~ /^ *\.\.\./) print line
            $0 = substr($0, RSTART + RLENGTH)
        }
        { print }' "$frames/$name"
}
compiles() {
    framed >"$tmp/$name"
    set -- ${CC:-gcc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wno-unused-variable -Wno-unused-but-set-variable -Wno-unused-function \
        -Werror -I. -I$frames "$tmp/$name"
    if ! grep -q '^int main' "$tmp/$name"; then
        "$@" -fsyntax-only 2>"$tmp/output" || { fails "does not compile" && cat "$tmp/output"; }
        return 0
    fi
    "$@" "$build/lib/libespresso.a" -o "$tmp/program" -pthread -ldl -lm 2>"$tmp/output" &&
        timeout 60 "$espresso" run --elastic -n 2 -- "$tmp/program" >"$tmp/output" 2>&1 ||
        { fails "does not compile or run" && cat "$tmp/output"; }
}
runs() {
    framed >"$tmp/$name"
    options=$(sed -n '1s/^# \(.*\): .*/\1/p' "$frames/$name") modules=$(sed -n '1s/^# .*: //p' "$frames/$name")
    "${python:=python3}" -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$tmp/$name" || fails "is no Python"
    for python in "${PYTHON:-python3}" python3 /usr/bin/python3 ${TORCH_PYTHON:-} none; do
        [ "$python" = none ] || { "$python" -c "import $modules" 2>/dev/null && break; }
    done
    [ "$python" != none ] || { python=python3 && leaves_out "$where: no python3 has $modules" && return; }
    rm -f "$tmp/store"
    # shellcheck disable=SC2086 # several options
    PYTHONPATH=$PYTHONPATH:$root/$frames STORE=$tmp/store TMPDIR=$tmp \
        timeout 100 "$espresso" run $options -- "$python" "$tmp/$name" >"$tmp/output" 2>&1 || { fails "does not run" && cat "$tmp/output"; }
}
# commands: those of espresso have only flags that exist, those of make only targets that exist
commands() {
    sed -e ':a' -e '/\\$/{N;s/\\\n */ /;ba' -e '}' "$tmp/blocks/$name" >"$tmp/lines"
    while IFS= read -r line; do
        words=$(echo "$line" | sed 's/ #.*//; s/ -- .*//')
        case " $words" in
        *" espresso "[a-z]* | *"bin/espresso "[a-z]*)
            sub=$(echo "$words" | sed 's/.*espresso \([a-z]*\).*/\1/')
            for flag in $(echo "$words" | sed 's/.*espresso [a-z]*//' | grep -oE ' --?[a-zA-Z][a-z-]*'); do
                [ "$sub" = run ] && [ "$flag" = -- ] && break
                "$espresso" help "$sub" 2>/dev/null | grep -qE -- "(^|[ ,])$flag([ ,=]|\$)" || fails "espresso $sub has no $flag"
            done
            ;;
        *" make "[a-z]*)
            for target in $(echo "$words" | sed 's/.*make//' | tr ' ' '\n' | grep -E '^[a-z][a-z-]*$' || :); do
                grep -qE "^([a-z -]* )?$target( [a-z -]*)?:" Makefile tests/tests.mk || fails "make has no target $target"
            done
            ;;
        esac
        case $words in
        *.json* | *./model*) ;;
        "espresso plan "* | "espresso compare "*)
            (cd "$tmp" && PATH=$root/$build/bin:$PATH timeout 100 sh -c "$words") >"$tmp/output" 2>&1 || { fails "$words" && cat "$tmp/output"; }
            ;;
        esac
    done <"$tmp/lines"
}

while read -r page line language name; do
    where="$page:$line"
    case $page,$language in
    README.md,c) taken README.md install/test_readme.sh ;;
    CONTRIBUTING.md,sh)
        taken CONTRIBUTING.md install/test_contributing.sh
        commands
        ;;
    docs/use/wiring.md,c) [ -e "$frames/$name" ] && compiles || taken docs/use/wiring.md examples/test_wiring.sh ;;
    examples/[0-9]*) taken /README.md examples/test_ladder.sh ;;
    plugins/README.md,sh)
        taken plugins/README.md install/test_guide.sh
        commands
        ;;
    *)
        case $language in
        c | py) [ -e "$frames/$name" ] || { fails "no test takes this block: write $frames/$name" && continue; } ;;
        esac
        case $language in
        c) compiles ;;
        py) runs ;;
        sh) commands ;;
        text)
            if grep -q '^espresso-strategy 1' "$tmp/blocks/$name" && ! grep -q NAME "$tmp/blocks/$name"; then
                "$espresso" strategy "$tmp/blocks/$name" >"$tmp/output" 2>&1 || { fails "is no strategy" && cat "$tmp/output"; }
            fi
            ;;
        *) fails "no test takes blocks of $language" ;;
        esac
        ;;
    esac
done <"$tmp/list"
# names of the library in the pages are those of its headers, or of its sources
cat espresso.h plugins/abi.h planner/api.h >"$tmp/headers"
find espresso_impl planner backends codecs -name '*.[ch]' -exec cat {} + >"$tmp/sources"
for within in headers sources; do tr -c 'A-Za-z0-9_' '\n' <"$tmp/$within" | grep -E '^(esp|ESP)_' | sort -u >"$tmp/$within.names"; done
where=pages
# shellcheck disable=SC2086 # several files
for name in $(cat $pages | tr -c 'A-Za-z0-9_' '\n' | grep -E '^(esp|ESP)_' | sort -u); do
    case $name in esp__* | ESP__*) within=sources ;; *) within=headers ;; esac
    grep -qxF -e "$name" "$tmp/$within.names" || [ "$name" = esp__ ] || fails "$name: none of the $within has this name"
done
# no frame without a block
for name in $(ls $frames | grep -E -- '-[0-9]+\.(c|py)$'); do
    [ -e "$tmp/blocks/$name" ] || { where=$frames/$name && fails "no page has this block"; }
done
[ $failed -eq 0 ] || exit 1
checked
