#!/bin/sh
# check-docs.sh: links between the documents lead somewhere, the README is short, and `make docs` runs without a warning.
# Exit status 77: nothing is wrong, but doxygen is not there.
set -u
bad=0
for file in *.md plugins/README.md docs/*/*.md; do
    for link in $(grep -o '](\([^)#]*\)' "$file" | sed 's/^](//' | grep -v '^https\?:'); do
        if [ ! -e "$(dirname "$file")/$link" ]; then
            echo "$file: $link is not there"
            bad=1
        fi
    done
done
if [ "$(wc -l <README.md)" -ge 150 ]; then
    echo "README.md has 150 lines or more: deep material belongs in docs/"
    bad=1
fi
if command -v doxygen >/dev/null; then
    make -s docs || bad=1
elif [ "$bad" -eq 0 ]; then
    echo "skipped: doxygen is not there: only links were checked"
    exit 77
fi
exit $bad
