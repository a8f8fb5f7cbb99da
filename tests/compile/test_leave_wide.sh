#!/bin/sh
# test_leave_wide.sh: hand-written kernels clear the upper halves of wide registers before they call a scalar function
# (ESP_LEAVE_WIDE, codecs/common/simd.h): else each SSE instruction after that waits for 100 ns.
. tests/compile/common.sh
need objdump
lib=$build/lib/libespresso.so.0
case $(uname -m) in
x86_64) ;;
*)
    echo "skipped: $(uname -m) has no such registers"
    exit 77
    ;;
esac
[ -e "$lib" ] || try make -s "$lib"
objdump -d --no-show-raw-insn "$lib" | awk '
    /^[0-9a-f]+ <.*>:$/ { name = $2; wide = 0; next }
    /%[yz]mm/ { wide = 1; kernel[name] = 1 }
    /vzeroupper/ { wide = 0 }
    wide && /(jmp|call) .*_(scalar|avx2)>$/ { print "in " name " " $NF " is called without ESP_LEAVE_WIDE()"; found = 1 }
    END {
        n = 0
        for (name in kernel) n++
        if (n < 100) print "only " n " functions use wide registers: the test is blind", found = 1
        exit found
    }' >"$tmp/found" || {
    cat "$tmp/found"
    exit 1
}
checked
