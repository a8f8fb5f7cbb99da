# test_nccl.sh: `espresso advise` with files of NCCL's profiler plugins. The files are made here, in the formats of
# backends/nccl_profiler and of NVIDIA's NCCL Inspector 4.2 and 4.3: 8 steps of 60 ms with three all-reduces, after
# others, on 2 machines x 8 ranks.
. tests/cli/lib.sh

steps='function steps(rank) { # calls coll(MB, us)
    coll(96, 60000)
    for (s = 0; s < 8; s++) {
        at = 1748030378000000 + 60000 * s + rank
        coll(8, 3100 + 40 * rank); coll(32, 12300 - 20 * rank); coll(56, 21400)
    }
}'
plugin() { # RANK COMM FUNC
    awk -v rank="$1" -v comm="$2" -v func_="$3" "$steps"'
    function line(event, count) {
        printf "{\"comm\": \"%s\", \"rank\": %d, \"ranks\": 16, \"nodes\": 2, \"event\": \"%s\", \"func\": \"%s\", ", comm, rank, event, func_
        printf "\"seq\": %d, \"count\": %d, \"datatype\": \"ncclFloat32\", \"start_us\": %.1f, \"stop_us\": %.1f}\n", n++, count, at, at + 5
    }
    function coll(mb, us) { line("call", mb * 250000); line("collective", mb * 250000); at += 3000 }
    BEGIN { steps(rank); line("collective", 1); line("collective", 1) }'
}
inspector() { # RANK
    awk -v rank="$1" "$steps"'
    function coll(mb, us) {
        printf "{\"header\":{\"id\":\"0xc0ffee\",\"comm_name\":\"unknown\",\"rank\":%d,\"n_ranks\":16,\"nnodes\":2},", rank
        printf "\"metadata\":{\"inspector_output_format_version\":\"v4.2\",\"hostname\":\"node1\",\"pid\":7},"
        printf "\"coll_perf\":{\"coll\":\"AllReduce\",\"coll_sn\":%d,\"coll_msg_size_bytes\":%d,\"coll_exec_time_us\":%d,", n++, mb * 1e6, us
        printf "\"event_trace_ts\":{\"coll_start_ts\":%.0f,\"kernel_events\":[{\"channel_id\":0,\"kernel_start_ts\":%.0f}]}}}\n", at - 500, at
        at += us + 100
    }
    BEGIN { steps(rank) }'
}
plugin 0 c0ffee AllReduce >plugin0
plugin 1 c0ffee AllReduce >plugin1
inspector 0 >inspector0
inspector 1 >inspector1
changed() { # FILE SED [FLAGS]: advice from a changed file
    sed "$2" "$1" >changed
    shift 2
    run advise changed "$@"
}
# ---- answers ---------------------------------------------------------------------------------------------------------
run advise plugin0 plugin1 --system cloud-h100 --optimizer adam
run advise inspector0 inspector1 --gpu H100 --gc fp16 --gc int4 --out job
cp "$top/1" answer
cat job/model.json
# version 4.3 names the communicator once
for rank in 0 1; do
    head -n 1 inspector$rank | sed 's/"coll_perf.*/"dump_stats":{"coll_records":25,"p2p_records":1}}/' >later$rank
    sed 's/.*"coll_perf"/{"coll_perf"/; s/\[{"channel_id.*}\]/[]/' inspector$rank >>later$rank
    echo '{"p2p_perf":{"p2p":"Send","p2p_sn":1}}' >>later$rank
done
quiet advise later0 later1 --gpu H100 --gc fp16 --gc int4 --out job
sed s/later/inspector/ "$top/1" | cmp - answer
# a count is that of each rank's result; other communicators do not matter
{ plugin 0 beef AllGather && plugin 0 c0ffee ReduceScatter | sed 's/\("count": [0-9]*\)0000,/\1,/'; } >scatter
quiet advise scatter --system cloud-h100
grep ^model "$top/1"
# a file that begins within a step
sed 1,4d plugin0 >late
quiet advise late --system cloud-h100
sed -n "2,4p; /^job/p" "$top/1"
# a size that repeats within a step
sed '/"count": 8000000/{p;p}' plugin0 >alike
quiet advise alike --system cloud-h100
grep ^model "$top/1"
# interface v3 knows neither ranks nor machines
quiet advise plugin0 --system cloud-h100
cp "$top/1" answer
sed 's/"ranks": 16, "nodes": 2/"ranks": 0, "nodes": 0/' plugin0 >v3
quiet advise v3 --system cloud-h100 --machines 2
cmp "$top/1" answer
run advise v3
# ---- what a file may lack --------------------------------------------------------------------------------------------
run advise plugin0
run advise inspector0
run advise inspector0 --gpu "Other 9000"
run advise plugin0 --system cloud-h100 --machines 1
run advise plugin0 --system commodity-10g --machines 4
head -c 9000 plugin0 >cut
quiet advise cut --system cloud-h100
cat "$top/2" && grep ^job "$top/1"
: >empty
run advise empty
changed plugin0 '9s/}/]/'
changed plugin0 '/"collective"/d'
changed plugin0 's/AllReduce/Broadcast/'
changed plugin0 's/ncclFloat32/ncclBfloat16/'
changed plugin0 's/"ranks": 16/"ranks": 0/; s/AllReduce/ReduceScatter/'
changed inspector0 's/"event_trace_ts"/"other"/'
head -n 9 plugin0 | run advise /dev/stdin
awk '{ sub("\"count\": ", "&" NR) } 1' plugin0 >random
run advise random
run advise plugin0 inspector1
plugin 1 beef AllReduce >other
run advise plugin0 other
sed 's/14000000/14000001/' plugin1 >other
run advise plugin0 other
run advise plugin0 "$root/tests/cli/advise/mlp0.json"
