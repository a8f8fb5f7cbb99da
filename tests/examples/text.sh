#!/bin/sh
# text.sh: prints 1600 lines of a small grammar, as training text without a download
awk 'BEGIN {
    split("the a one my", det); split("cat dog bird fish horse", noun); split("sees likes hears follows", verb)
    for (i = 0; i < 1600; i++) {
        r = (r * 1103515245 + 12345) % 2147483648; x = int(r / 65536)
        print det[x % 4 + 1], noun[int(x / 4) % 5 + 1], verb[int(x / 20) % 4 + 1],
            det[int(x / 80) % 4 + 1], noun[int(x / 320) % 5 + 1] "."
    }
}'
