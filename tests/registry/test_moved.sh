# test_moved.sh: a copy of the library finds its plugins beside itself, wherever it was built for: the shared library in
# lib/, and the library in a program in bin/ or beside a folder espresso/.
. tests/compile/common.sh
plugin=$root/$build/tests/abi/libespresso-everysecond.so
unset ESPRESSO_PLUGIN_PATH
cat >"$tmp/load.c" <<'END'
#include "espresso.h"
#include <stdio.h>
int main(void) {
    esp_config c = ESP_ZERO;
    esp_ctx *ctx;
    c.size = 1;
    if (esp_open(&c, &ctx)) return 1;
    const int s = esp_plugin_load(ctx, "everysecond");
    puts(s ? esp_last_error(ctx) : "ok");
    esp_close(ctx);
    return 0;
}
END
mkdir -p "$tmp/a/lib/espresso" "$tmp/b/bin" "$tmp/b/lib/espresso" "$tmp/c/espresso" "$tmp/d/bin"
cp -P "$build"/lib/libespresso.so* "$tmp/a/lib"
try gcc -I. "$tmp/load.c" -o "$tmp/a/load" "-L$tmp/a/lib" "-Wl,-rpath,$tmp/a/lib" -lespresso
try gcc -I. "$tmp/load.c" -o "$tmp/b/bin/load" "$build/lib/libespresso.a" -pthread -ldl -lm
cp "$tmp/b/bin/load" "$tmp/c/load"
cp "$tmp/b/bin/load" "$tmp/d/bin/load"
for folder in a/lib/espresso b/lib/espresso c/espresso; do cp "$plugin" "$tmp/$folder/"; done
if gcc -static -I. "$tmp/load.c" -o "$tmp/b/bin/static" "$build/lib/libespresso.a" -pthread -ldl -lm 2>/dev/null; then
    case $("$tmp/b/bin/static") in *"linked statically cannot load plugins"*) ;; *) echo "a static program is not told" && exit 1 ;; esac
else
    leaves_out "a static program: the compiler has no static libc"
fi
cd "$tmp/b"
says_ok "$tmp/a/load"
says_ok bin/load
says_ok env PATH="$tmp/b/bin:$PATH" load
says_ok "$tmp/c/load"
"$tmp/d/bin/load" >"$tmp/output" 2>&1
grep -q 'no plugin "everysecond"; tried [^;]*: no such file; ESPRESSO_PLUGIN_PATH adds folders' "$tmp/output" || { cat "$tmp/output" && exit 1; }
checked
