#!/bin/sh
# check-docs.sh: links between the documents work, the README is short, the pages have at most 38,000 words, the picture
# of the folders and the table of codecs are up to date, and `make docs` has no warnings. Exit status 77: nothing is
# wrong, but doxygen is not there.
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
words=$(cat README.md CONTRIBUTING.md SECURITY.md docs/*/*.md | wc -w)
if [ "$words" -gt 38000 ]; then
    echo "README.md, CONTRIBUTING.md, SECURITY.md and docs/ have $words words, more than 38000: cut what is said twice"
    bad=1
fi
folders=$(mktemp) || exit 1
sh docs/design/folders.sh "$folders"
cmp -s "$folders" docs/design/folders.svg || {
    echo "docs/design/folders.svg is out of date: run sh docs/design/folders.sh"
    bad=1
}
if [ -x build/bin/espresso ]; then
    sh docs/use/codecs.sh "$folders"
    cmp -s "$folders" docs/use/using.md || {
        echo "docs/use/using.md: the table of codecs is out of date: run sh docs/use/codecs.sh"
        bad=1
    }
fi
rm -f "$folders"
if command -v doxygen >/dev/null; then
    make -s docs || bad=1
elif [ "$bad" -eq 0 ]; then
    echo "skipped: doxygen is not there: only links were checked"
    exit 77
fi
exit $bad
