# test_template_backend.sh: copies plugins/template_backend, renames it, runs make: four ranks on two machines train
# over it, and it leaves no file behind.
# runs: slow
. tests/compile/common.sh
cp -r plugins/template_backend "$tmp/mynet"
cd "$tmp/mynet"
mv example.c mynet.c
sed -i s/example/mynet/g mynet.c Makefile
try make ESPRESSO_INCLUDE="$root" CFLAGS="-O2 -Wall -Wextra -Werror"
[ "$(nm -D --defined-only libespresso-mynet.so | awk '{ print $3 }')" = espresso_plugin_v1 ]
try gcc -O1 -I"$root" "$root/tests/install/use_backend.c" -o use "$root/$build/lib/libespresso.a" -pthread -ldl -lm
mkdir files checked # a job that was aborted, as in one of the checks, leaves files
try "$root/$build/bin/espresso" plugins --check --path "$PWD" "mynet:dir=$PWD/checked"
for machines in 1 2 4; do
    says_ok timeout 60 "$root/$build/bin/espresso" run -n 4 --machines $machines --no-prefix -- ./use "$PWD" mynet:dir="$PWD/files"
done
if [ -n "$(ls files)" ]; then
    echo "left behind: $(ls files)"
    exit 1
fi
