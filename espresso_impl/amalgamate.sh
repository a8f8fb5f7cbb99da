#!/bin/sh
# amalgamate.sh: writes the one-file espresso.h to stdout: every #include "..." is replaced by the file, headers once. A header that
# is first included in a part that a define may leave out is there once in that part, and again where it is needed next.
# Run in the project's root. Needs sh and awk. Must not know what the files hold.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^#define ESPRESSO_VERSION "\(.*\)"/\1/p' espresso.h)
id=$(git describe --always --dirty 2>/dev/null || echo "no git")

echo "/* espresso.h $version ($id): the whole library in one file, made by espresso_impl/amalgamate.sh."
echo " * Do not edit: change the project's files and run \`make dist\`. */"
awk '
function dir_of(file) { return sub(/[^\/]*$/, "", file) ? file : "" }
# a file in `done` may be open right now: reading or closing it here would disturb its reader
function there(file,    line, got) {
    if (file in done) return 1
    got = (getline line < file) >= 0
    close(file)
    return got
}
# the file that an include means: beside the includer, or under the root
function find(from, name,    file) {
    file = dir_of(from) name
    while (sub(/[^\/]+\/\.\.\//, "", file)) {}
    if (there(file)) return file
    if (there(name)) return name
    print "amalgamate.sh: " from " includes \"" name "\", which is not there" > "/dev/stderr"
    exit failed = 1
}
# the condition of an #if of a source is over, or its other branch begins: what headers it had need not be there any more.
# (An #if in a header does not count: most are include guards.)
function forget(least,    header) {
    for (header in level_of) if (level_of[header] >= least) delete level_of[header]
}
function condition(file, line) {
    if (file ~ /\.h$/) return
    if (line ~ /^[ \t]*#[ \t]*(endif|else|elif)/) forget(level)
    if (line ~ /^[ \t]*#[ \t]*endif/) level--
    if (line ~ /^[ \t]*#[ \t]*if/) level++
}
function emit(file,    line, name, inner) {
    done[file] = 1
    while ((getline line < file) > 0) {
        condition(file, line)
        if (line !~ /^[ \t]*#[ \t]*include[ \t]*"/) { print line; continue }
        name = line
        sub(/^[^"]*"/, "", name)
        sub(/".*$/, "", name)
        inner = find(file, name)
        if (inner ~ /\.h$/ && (inner in level_of)) continue
        if (inner ~ /\.h$/) level_of[inner] = level
        print "/* ---- " inner " ---- */"
        emit(inner)
        print "/* ---- back in " file " ---- */"
    }
    close(file)
}
BEGIN { print "#define ESPRESSO_ONE_FILE 1"; level_of["espresso.h"] = level = 0; emit("espresso.h"); exit failed }
' </dev/null
