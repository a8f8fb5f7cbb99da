# test_bootstrap.sh: ./bootstrap on machines where packages are missing: with and without apt, with and without sudo.
# Small scripts stand for apt-get, sudo, id and make; nothing is installed.
. tests/compile/common.sh
mkdir "$tmp/bin"
PATH=$(echo "$PATH" | tr : '\n' | grep -v ccache | paste -sd:) # its compilers need the rest of PATH
for tool in sh grep awk head xargs find basename ln sed cat dirname getconf mktemp mkdir date timeout tr tail rm env dpkg cc gcc g++ clang clang-format pkg-config doxygen true; do
    have $tool && ln -s "$(command -v $tool)" "$tmp/bin/$tool"
done
play() { # NAME SCRIPT
    printf '#!/bin/sh\n%s\n' "$2" >"$tmp/bin/$1"
    chmod +x "$tmp/bin/$1"
}
echo : >"$tmp/pass.sh"
play make 'case $* in *ci-list* | *quick-list*) echo '"$tmp/pass.sh"' ;; *) echo "make $*" ;; esac'
run() { PATH=$tmp/bin ./bootstrap "$@" >"$tmp/output" 2>&1; }
says() {
    grep -q -- "$1" "$tmp/output" && return
    echo "expected \"$1\" in:"
    cat "$tmp/output"
    exit 1
}
rm -f "$tmp/bin/clang-format"

refused() { # TEXT ARGUMENTS...: must exit with status 2, TEXT and usage, and neither install nor build
    text=$1
    shift
    code=0
    run "$@" || code=$?
    says "$text"
    says "./bootstrap demo"
    [ "$code" -eq 2 ] || { echo "bootstrap $*: exit status $code" && exit 1; }
    if grep "^make\|installing" "$tmp/output"; then exit 1; fi
}
run && says "./bootstrap demo"
refused "'nonsense' is not one of demo, test, build" nonsense
refused "'--quikc' is not a flag of demo: expected --quick or --mpi" demo --quikc
refused "'--seed' is not a flag of demo" demo --quick --seed
refused "'--fast' is not a flag of test: expected --quick or --all" test --fast
refused "test takes one flag, found '--quick --all'" test --quick --all
refused "build takes no flags, found '--quick'" build --quick
if run test; then exit 1; fi # cmake and clang-format are missing, and there is no apt
says "please install these.*clang-format.*cmake"
run test --quick || { cat "$tmp/output" && exit 1; } # needs none of both
says "make -s -k -j[0-9]* quick-programs"
says "^1 passed, 0 failed"

play apt-get 'echo "$*" >>'"$tmp/apt"'; case $* in *install*) for t in clang-format cmake mmdebstrap; do ln -sf /bin/true '"$tmp/bin"'/$t; done;; esac'
play id 'echo 1000'
if run test; then exit 1; fi
says "as root: apt-get install.*cmake"

play sudo 'echo "sudo $1" >>'"$tmp/apt"'; exec "$@"'
for tool in clang doxygen python3 g++ mpicc mpirun ip ethtool; do [ -e "$tmp/bin/$tool" ] || play $tool true; done
run test || { cat "$tmp/output" && exit 1; }
says "installing.*clang-format cmake mmdebstrap"
says "make -s -k -j[0-9]* ci-programs"
says "^1 passed, 0 failed"
play apt-get 'case $* in *install*) for t in chromium mpicc.mpich mpirun.mpich; do ln -s /bin/true '"$tmp/bin"'/$t; done;; esac'
run test --all || { cat "$tmp/output" && exit 1; } # only this needs a browser and another MPI
says "installing.*chromium libmpich-dev mpich"
says "make -s -j[0-9]* test-all"
grep -q '^sudo apt-get' "$tmp/apt"
grep -q '^update' "$tmp/apt"
grep -q 'install -y --no-install-recommends .*cmake' "$tmp/apt"

rm "$tmp/apt"
run build || exit 1 # nothing is missing: no message, no call of apt
says "^make"
[ ! -e "$tmp/apt" ]

rm "$tmp/bin/cmake"
play apt-get 'echo "E: no network"; exit 100'
if run test; then exit 1; fi
says "E: no network"
says "could not install"

run demo --quick || exit 1
says "^make -s demo DEMO_FLAGS=--quick"
run demo --mpi --quick || exit 1
says "^make -s demo DEMO_FLAGS=--mpi --quick"
rm "$tmp/bin/mpicc" "$tmp/bin/ip" # only needed for hosts or MPI
play apt-get 'case $* in *install*) for t in mpicc ip; do ln -s /bin/true '"$tmp/bin"'/$t; done;; esac'
ln -s /bin/true "$tmp/bin/cmake"
run test --quick || exit 1
run demo || exit 1
if grep installing "$tmp/output"; then exit 1; fi
run demo --mpi || { cat "$tmp/output" && exit 1; }
says "installing libopenmpi-dev iproute2"
rm "$tmp/bin/cmake"

# each of the three commands installs the package of a missing header, and no other
real=$(readlink "$tmp/bin/gcc")
rm "$tmp/bin/gcc" "$tmp/apt"
play gcc 'exec '"$real"' -I'"$tmp/hidden"' "$@"'
ln -s /bin/true "$tmp/bin/cmake"
mkdir "$tmp/hidden"
for header in "stdio.h libc6-dev libjansson-dev" "jansson.h libjansson-dev"; do
    for what in build demo test; do
        # shellcheck disable=SC2086 # words: a header and its package
        set -- $header
        echo "#error hidden by test_bootstrap.sh" >"$tmp/hidden/$1"
        play apt-get 'case $* in *install*) rm '"$tmp/hidden/$1"';; esac'
        shift
        run $what || { cat "$tmp/output" && exit 1; }
        says "^bootstrap: installing $*\$"
    done
done
play apt-get : # succeeds, but installs nothing
echo "#error hidden by test_bootstrap.sh" >"$tmp/hidden/jansson.h"
if run build; then exit 1; fi
says "still missing after installing: libjansson-dev"

# neither a compiler nor make
rm "$tmp/bin/gcc" "$tmp/bin/make" "$tmp/hidden/jansson.h"
if run build; then exit 1; fi
says "installing gcc make libc6-dev libjansson-dev"
