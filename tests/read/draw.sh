#!/bin/sh
# draw.sh: draws the sample for a cold reading: 25 comments of the sources, each with its file and three lines around
# it, and 10 paragraphs of the documents. A reader who does not know the project counts those that are clear at first
# reading. The goal is 23 of the comments and all paragraphs. A seed and a tree give the same sample on every machine.
#   sh tests/read/draw.sh SEED        (run in the project's root)
set -u
seed=${1:?usage: draw.sh SEED}
export LC_ALL=C # lengths are in bytes in every locale

# Park and Miller's random generator: its products stay below 2^53, so every awk computes the same numbers
generator='
function start(seed,    i) {
    state = 1
    for (i = 1; i <= length(seed); i++) state = (state * 31 + index(letters, substr(seed, i, 1)) + 1) % 2147483647
    if (state == 0) state = 1
    for (i = 0; i < 20; i++) below(1)
}
function below(n) { state = state * 16807 % 2147483647; return int(state / 2147483647 * n) }
# Sets drawn[1] to drawn[most] to different numbers from 1 to n.
function draw(n, most,    i, k) {
    if (most > n) most = n
    for (i = 1; i <= most; i++) {
        do k = 1 + below(n); while (k in taken)
        taken[k] = 1
        drawn[i] = k
    }
    return most
}
BEGIN { for (i = 1; i < 256; i++) letters = letters sprintf("%c", i); start(seed) }'

# Successive lines that begin with // are one comment. Its length is that of its text, without marks and dashes.
git ls-files espresso.h espresso_impl planner codecs backends plugins tools bench tests examples |
    grep -E '\.(c|cc|h|inc|cu|cuh)$' | awk -v seed="$seed" "$generator"'
function keep(    bare) {
    bare = text
    gsub(/[ \t*\/]+|--+/, " ", bare)
    gsub(/^ | $/, "", bare)
    if (length(bare) >= 25 && bare !~ /^runs: /) { n++; file[n] = name; first[n] = begin; last[n] = line }
    text = ""
}
# text: the comment read so far, which is a block comment (inside) or successive lines of // (slashes)
function read_line(s,    alone, end) {
    alone = s ~ /^[ \t]*\/\//
    if (slashes && !alone) { line--; keep(); line++; slashes = 0 }
    while (s != "") {
        if (inside) {
            end = index(s, "*/")
            if (!end) { text = text " " s; return }
            text = text " " substr(s, 1, end - 1)
            s = substr(s, end + 2)
            inside = 0
            keep()
        }
        if (!match(s, /["\047]|\/[\/*]/)) return
        if (RLENGTH == 1) { # a string or a character: skip it
            s = substr(s, RSTART)
            if (!match(s, /^"([^"\\]|\\.)*"/) && !match(s, /^\047([^\047\\]|\\.)*\047/)) RLENGTH = 1
            s = substr(s, RLENGTH + 1)
            continue
        }
        end = substr(s, RSTART + 1, 1)
        s = substr(s, RSTART + 2)
        if (!slashes) begin = line
        if (end == "*") { inside = 1; continue }
        text = text " " s
        if (alone) slashes = 1
        else keep()
        return
    }
}
{
    name = $0
    inside = slashes = 0
    text = ""
    for (line = 1; (getline s < name) > 0; line++) read_line(s)
    if (slashes) { line--; keep() }
    close(name)
}
END {
    most = draw(n, 25)
    for (i = 1; i <= most; i++) {
        k = drawn[i]
        printf "%d. %s:%d\n", i, file[k], first[k]
        for (line = 1; (getline s < file[k]) > 0; line++)
            if (line >= first[k] - 3 && line <= last[k] + 3) print (line >= first[k] && line <= last[k] ? "> " : "  ") s
        close(file[k])
        print ""
    }
}'

# A paragraph stands between empty lines, or is an item of a list, and has 25 words or more. Tables, headings and code
# do not count.
git ls-files 'docs/*.md' README.md CONTRIBUTING.md plugins/README.md | awk -v seed="$seed" "$generator"'
function keep(    words) {
    if (split(text, words, " ") >= 25) { n++; at[n] = name ":" begin; paragraph[n] = text }
    text = ""
}
{
    name = $0
    fence = 0
    text = ""
    after_empty = 1
    for (line = 1; (getline s < name) > 0; line++) {
        if (s ~ /^ *```/) { keep(); fence = !fence; continue }
        code = fence || (after_empty && s ~ /^(    |\t)/) || (text == "" && in_code && s ~ /^(    |\t)/)
        after_empty = s ~ /^[ \t]*$/
        in_code = code
        if (code || after_empty || s ~ /^[ \t]*([|#<]|---)/) { keep(); continue }
        if (s ~ /^ *([-*]|[0-9]+\.) /) keep()
        if (text == "") begin = line
        text = text (text == "" ? "" : "\n") s
    }
    keep()
    close(name)
}
END {
    most = draw(n, 10)
    for (i = 1; i <= most; i++) printf "%s%d. %s\n%s\n", (i > 1 ? "\n" : ""), i, at[drawn[i]], paragraph[drawn[i]]
}'
