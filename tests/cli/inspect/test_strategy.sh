# test_strategy.sh: `espresso strategy`: prints a valid file as the library reads it, and an error with its line for
# others.
. tests/cli/lib.sh
# Makes a strategy file from standard input.
strategy() {
    cat >s.strategy
    run strategy s.strategy
}

strategy <<END
espresso-strategy 1
# the last layer comes first
tensor  fc2.weight 10240   topk:ratio=0.01   intra.reduce_scatter>comp@cpu > inter.allgather > decomp@cpu > intra.allgather  

tensor fc2.bias 10 none flat.allreduce # small
END
cp "$top/1" normal
run strategy normal
cmp "$top/1" normal # the output is in normal form

# chunks, groups and orders are printed unchanged
cat >units <<END
espresso-strategy 1
tensor fc2.weight 10240 split 2
chunk 10000 topk:ratio=0.01 comp@cpu > flat.allgather > decomp@cpu
chunk 240 none flat.allreduce
tensor fc2.bias 10 group
tensor fc1.bias 20 group
group 30 none flat.reduce > flat.broadcast
order b 0:0d 0:0 0:1 1:0 b b 2:p 2:0 0:2 2:1 2:u
END
run strategy units
cmp "$top/1" units

# an editor may begin a file with a byte order mark, and end lines with CR LF
{ printf '\357\273\277' && sed 's/$/\r/' units; } >marked
run strategy marked
cmp "$top/1" units

refused() { # LINES: of a strategy, after the first one
    printf '%b\n' "--- $1"
    printf 'espresso-strategy 1\n%b\n' "$1" | strategy
}
refused 'tensor a 10 split 2\nchunk 5 none flat.allreduce\nchunk 6 none flat.allreduce'
refused 'tensor a 10 group\ngroup 10 none flat.allreduce'
refused 'tensor a 10 group'
refused 'tensor a 10 none'
refused 'tensor a ten none flat.allreduce'
refused '\nlayer a 10 none flat.allreduce'
refused 'tensor a 10 none flat.allreduec'
refused 'tensor a 10 topkk:ratio=0.1 comp@cpu > flat.allgather > decomp@cpu'
refused 'tensor a 10 topk:ratioo=0.1 comp@cpu > flat.allgather > decomp@cpu'
refused 'tensor a 10 none flat.allreduce\ntensor a 10 none flat.allreduce'
refused 'tensor a 10 none flat.allreduce\norder 1:0'
refused 'tensor a 10 none flat.reduce > flat.broadcast\norder 0:0'
echo espresso-strategy 9 | strategy

run strategy
run strategy /no/such/file
run strategy /
# files of the paper's artifact: a number for each tensor
paper() { # OPTIONS NAMES
    printf '{"compressor": "dgc", "comp_ratio": 0.02, "tensor names": [%s], "tensor sizes": [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110], "options": [%s]}' "$2" "$1" >paper.json
    run strategy paper.json
}
names='"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"'
paper '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10' "$names"
paper '0, 1, 2, 3, 4, 13, 6, 7, 8, 9, 10' "$names"
paper '0, 1, 2, 3, 4, 14, 6, 7, 8, 9, 10' "$names"
paper '0, 1, 2, 3, 4, 11, 6, 7, 8, 9, 10' "$names"
paper '0, 1, 2, 3, 4, "5", 6, 7, 8, 9, 10' "$names"
paper '0, 1, 2' "$names"
paper '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10' '"a b", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"'
head -c 50 paper.json >cut.json
run strategy cut.json
