# test_group.sh: backend espresso of torch.distributed: its operations, DDP and FSDP2 on it, and with TEST_ALL=1 those of
# torch's own tests of a backend that apply.
# runs: quiet slow
# time limit: 900 s
. tests/python/common.sh
python_with "torch 2.15: pip install torch, and set TORCH_PYTHON" \
    "torch.distributed; torch._C._distributed_c10d.Backend.all_gather_single"
try job 200 "-n 4" tests/python/check_group.py all
if job 100 "-n 4" tests/python/check_group.py dies >"$tmp/output" 2>&1; then
    echo "the death of rank 3 went unnoticed" && exit 1
fi
grep -q "PeerError.*rank 3 died" "$tmp/output" || { cat "$tmp/output" && exit 1; }
export TORCH_BACKEND=cpu:espresso
try job 240 "-n 4 --machines 2" tests/python/check_fsdp.py
if [ -z "${TEST_ALL:-}" ]; then
    try job 200 "-n 4" tests/python/check_ddp.py equal unused join groups loader
    exit
fi
try job 600 "-n 4" tests/python/check_ddp.py all
if "$python" -c 'import expecttest' 2>/dev/null; then
    try "$python" tests/python/torch_suite.py
    tail -n 3 "$tmp/output"
else
    leaves_out "torch's own tests ($python -m pip install expecttest)"
fi
checked
