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
# with smaller tensors; with TEST_ALL as in the guide
check=$root/$build/tests/bin/espresso
[ -z "${TEST_ALL:-}" ] && [ -x "$check" ] || check=$root/$build/bin/espresso
try "$check" plugins --check --path "$PWD" "mynet:dir=$PWD/checked"
for machines in 1 2 4; do
    says_ok timeout 60 "$root/$build/bin/espresso" run -n 4 --machines $machines --no-prefix -- ./use "$PWD" mynet:dir="$PWD/files"
done
empty() { [ -z "$(ls files)" ] || { echo "left behind: $(ls files)" && exit 1; }; }
empty
# ranks open and close at the same time: none takes the new directory of another for one that a killed job has left. The
# time in which that could happen is made longer.
sed -i 's/if (!mkdtemp(dir)) break;/& else usleep(20000);/' mynet.c
grep -q usleep mynet.c
try make ESPRESSO_INCLUDE="$root"
jobs=
for job in 1 2 3 4; do
    (for i in 1 2; do says_ok timeout 60 "$root/$build/bin/espresso" run -n 4 --machines 2 --no-prefix -- ./use "$PWD" mynet:dir="$PWD/files"; done) &
    jobs="$jobs $!"
done
for job in $jobs; do wait "$job"; done
empty
# the next job removes the files of a job that was killed, and not those of one that runs
forever() { ESPRESSO_BACKEND=mynet:dir=$PWD/files ESPRESSO_PLUGIN_PATH=$PWD "$root/$build/bin/espresso" run -n 2 -- "$PWD/$1" forever >forever.log 2>&1 & }
runs() { for i in $(seq 100); do [ "$(ls files | wc -l)" -lt "$1" ] || break; sleep 0.1; done; }
cp "$root/$build/tests/jobs/faults/exits" killed
forever killed
launcher=$!
runs 1
sleep 1
for p in /proc/[0-9]*; do [ "$(readlink "$p/exe")" != "$PWD/killed" ] || kill -9 "${p#/proc/}" || :; done
wait $launcher || :
[ -n "$(ls files)" ]
for machines in 1 2; do
    says_ok timeout 60 "$root/$build/bin/espresso" run -n 2 --no-prefix -- ./use "$PWD" mynet:dir="$PWD/files" &
done
wait
says_ok timeout 60 "$root/$build/bin/espresso" run -n 2 --no-prefix -- ./use "$PWD" mynet:dir="$PWD/files"
empty
