# test_left_out.sh: if a header is not installed, make leaves out only what needs it, and names the package to install.
# A script stands for a compiler that cannot find the header.
# runs: long
. tests/compile/common.sh
hide() { # HEADER: makes $tmp/cc miss it from now on
    rm -rf "$tmp/hidden" "$tmp/build"
    mkdir "$tmp/hidden"
    echo "#error hidden by test_left_out.sh" >"$tmp/hidden/$1"
    printf '#!/bin/sh\nexec %s -I%s "$@"\n' "${CC:-gcc}" "$tmp/hidden" >"$tmp/cc"
    chmod +x "$tmp/cc"
}
makes() { make -s BUILD="$tmp/build" CC="$tmp/cc" OPT=-O0 CUDA_ARCH=sm_90 "$@"; } # for one architecture: faster
differs() { # WHAT EXPECTED FOUND
    echo "$1: expected"
    cat "$2"
    echo "found"
    cat "$3"
    exit 1
}
reports() { # LINE: the line that make reports because of the hidden header
    { cat "$tmp/report"; [ $# -eq 0 ] || echo "$1"; } | sort >"$tmp/expected"
    makes report 2>&1 | sort >"$tmp/found"
    cmp -s "$tmp/expected" "$tmp/found" || differs "make report" "$tmp/expected" "$tmp/found"
}
contents() { (cd "$1" && find bin lib ! -type d | sort); }

# all headers that the Makefile probes must have a test here
probed=$(sed -n 's/.*call have_headers,\([^)]*\)).*/\1/p' Makefile | sed 's/.* //' | sort | tr '\n' ' ')
[ "$probed" = "cmocka.h jansson.h " ] || { echo "the Makefile probes $probed: expected cmocka.h jansson.h"; exit 1; }
make -s CC="${CC:-gcc}" report | grep -v 'cmocka\.h\|jansson\.h' >"$tmp/report" || :

hide nothing.h # the script itself hides nothing
if [ "$(makes -n all | grep -c 'tools/espresso\.c')" -ne 1 ]; then echo "the command is left out for no reason" && exit 1; fi
reports

hide cmocka.h
reports "left out: tests (cmocka.h not found; Debian: libcmocka-dev)"
! makes -n tests | grep -q -e -lcmocka || { echo "make tests: programs are built without cmocka.h" && exit 1; }

hide jansson.h
reports "left out: the command, demo and tests (jansson.h not found; Debian: libjansson-dev)"
try makes -j2
grep -q "^left out: the command" "$tmp/output" || { cat "$tmp/output" && exit 1; }
contents "$build" | grep -v '^bin/espresso$' >"$tmp/expected"
contents "$tmp/build" >"$tmp/found"
cmp -s "$tmp/expected" "$tmp/found" || differs "make without jansson.h" "$tmp/expected" "$tmp/found"
if makes demo >"$tmp/output" 2>&1; then echo "the demo ran without the command" && exit 1; fi
grep -q "bin/espresso is not there: run ./bootstrap build" "$tmp/output" || { cat "$tmp/output" && exit 1; }
