# test_fsdp.sh: FSDP2 models on two emulated machines with two ranks each, averaged over machines, and over all ranks: with
# codec none, the result is that of torch; with a codec, fewer bytes; a resumed job computes the same bits.
# runs: quiet slow
. tests/python/common.sh
python_with "torch 2.8 or newer: pip install torch, and set TORCH_PYTHON" \
    "torch.distributed.fsdp; torch.distributed.fsdp.FSDPModule.set_all_reduce_hook"
try job 240 "-n 4 --machines 2" tests/python/check_fsdp.py
