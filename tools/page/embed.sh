#!/bin/sh
# embed.sh: the pages' sources as C strings, to stdout; make writes them to $(BUILD)/gen/tools/page/page.inc.
# A line a string, as compilers need only take strings of 4095 characters.
set -eu
cd "$(dirname "$0")"
echo "/* page.inc: made by tools/page/embed.sh from the files beside it. Do not edit. */"
names="timeline.html head.html page.css timeline.css common.js plan.js lanes.js paint.js timeline.js"
for name in $names; do
    echo "static const char *const page_file_$(echo "$name" | tr . _)[] = {"
    sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/??/?\\?/g' -e 's/^/    "/' -e 's/$/",/' "$name"
    echo "    NULL};"
done
echo "static const struct {"
echo "    const char *name;"
echo "    const char *const *lines;"
echo "} page_files[] = {"
for name in $names; do echo "    {\"$name\", page_file_$(echo "$name" | tr . _)},"; done
echo "};"
