# test_template_codec.sh: copies plugins/template_codec, renames it, runs make: the codec loads, loses no gradients, and
# refuses damaged payloads.
. tests/compile/common.sh
cp -r plugins/template_codec "$tmp/mycodec"
cd "$tmp/mycodec"
mv example.c mycodec.c
sed -i s/example/mycodec/g mycodec.c Makefile
try make ESPRESSO_INCLUDE="$root" CFLAGS="-O2 -Wall -Wextra -Werror"
[ "$(nm -D --defined-only libespresso-mycodec.so | awk '{ print $3 }')" = espresso_plugin_v1 ]
try gcc -O1 -I"$root" "$root/tests/install/use_codec.c" -o use "$root/$build/lib/libespresso.a" -pthread -ldl -lm
says_ok ./use ./libespresso-mycodec.so mycodec
says_ok ./use "$tmp/mycodec/libespresso-mycodec.so" mycodec:gain=1
for bad in gain=0 gain=x other=1; do
    if ./use ./libespresso-mycodec.so "mycodec:$bad" >output 2>&1 || ! grep -q gain output; then
        echo "mycodec:$bad must be refused with what is right:"
        cat output
        exit 1
    fi
done
