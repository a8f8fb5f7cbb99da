# test_guide.sh: runs every command in the chapters on codecs of plugins/README.md as it is written there. The example
# `hello` stands for the reader's training program.
# runs: slow
. tests/compile/common.sh
mkdir "$tmp/bin" "$tmp/project"
ln -s "$root/espresso.h" "$root/planner" "$root/plugins" "$tmp/project/"
# the command espresso, and an existing program instead of ./train
cat >"$tmp/bin/espresso" <<END
#!/bin/sh
for a do shift; case \$a in ./train) a=$root/$build/bin/hello ;; esac; set -- "\$@" "\$a"; done
exec "$root/$build/bin/espresso" "\$@"
END
chmod +x "$tmp/bin/espresso"
PATH=$tmp/bin:$PATH
unset ESPRESSO_PLUGIN_PATH ESPRESSO_CODEC
# the commands of a chapter: its lines that are indented by four spaces
commands() { # TITLE
    awk -v title="## $1" '/^## / { on = $0 == title } on && /^    / { print substr($0, 5) }' plugins/README.md
}
# runs a chapter's commands in order, and checks their number
follow() { # TITLE COMMANDS FOLDER
    commands "$1" >"$tmp/chapter.sh"
    if [ "$(wc -l <"$tmp/chapter.sh")" -ne "$2" ]; then
        echo "plugins/README.md: \"$1\" should have $2 commands, but has:"
        cat "$tmp/chapter.sh"
        exit 1
    fi
    (cd "$tmp/project/$3" && try sh -eux "$tmp/chapter.sh") || { cat "$tmp/output"; exit 1; }
}
follow "A codec in ten minutes" 7 .
follow "A codec of matrices" 6 .
follow "A codec that wraps another" 6 .
follow "Checks" 2 mycodec
for name in mycodec mymatrix mywrapper; do
    [ "$(nm -D --defined-only "$tmp/project/$name/libespresso-$name.so" | awk '{ print $3 }')" = espresso_plugin_v1 ] ||
        { echo "$name exports more than its entry" && exit 1; }
done
# the wrapper refuses codecs that it cannot wrap
for of in powersgd "warmup:of=(topk)"; do
    if espresso plugins --check --path "$tmp/project/mywrapper" "mywrapper:of=($of)" >"$tmp/output" 2>&1 ||
        ! grep -q "neither a codec of several rounds nor a wrapper" "$tmp/output"; then
        echo "mywrapper:of=($of) must be refused with the reason:"
        cat "$tmp/output"
        exit 1
    fi
done
