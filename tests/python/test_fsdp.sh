# test_fsdp.sh: FSDP2 models on two emulated machines with two ranks each: with codec none, the result is that of torch's
# own HSDP; with a codec, fewer bytes; a resumed job computes the same bits.
# runs: quiet slow
. tests/python/common.sh
needs='torch.distributed.fsdp; torch.distributed.fsdp.FSDPModule.set_all_reduce_hook'
for python in "${PYTHON:-python3}" python3 /usr/bin/python3; do
    if "$python" -c "import $needs" 2>/dev/null; then
        try timeout 240 "$espresso" run -n 4 --machines 2 -- "$python" tests/python/check_fsdp.py "$tmp/store"
        exit
    fi
done
echo "skipped: python3 with torch 2.8 or newer is not there (pip install torch, and set PYTHON)"
exit 77
