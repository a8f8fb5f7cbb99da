# test_exports.sh: libespresso.so exports only esp_* and has its SONAME, and every plugin exports only its entry.
. tests/compile/common.sh
so=$build/lib/libespresso.so
if nm -D --defined-only "$so" | awk '{ print $3 }' | grep -v '^esp_[a-z]'; then
    echo "$so exports more than its API"
    exit 1
fi
nm -D --defined-only "$so" | grep -q ' esp_open$'
readelf -d "$so" | grep -q 'SONAME.*libespresso\.so\.0\]'
for plugin in "$build"/lib/espresso/*.so; do
    if [ "$(nm -D --defined-only "$plugin" | awk '{ print $3 }')" != espresso_plugin_v1 ]; then
        echo "$plugin must export espresso_plugin_v1 and nothing else:"
        nm -D --defined-only "$plugin"
        exit 1
    fi
    if readelf -d "$plugin" | grep NEEDED | grep espresso; then
        echo "$plugin must not link to the library"
        exit 1
    fi
done
