# test_ddp.sh: the hook for DistributedDataParallel, on four ranks: torch's own expectations of a hook, and each of DDP's
# features that concerns hooks. With TEST_ALL=1, under each python3 that has torch, and $TORCH_PYTHON.
# runs: quiet slow
# time limit: 900 s
. tests/python/common.sh
ran=
for python in "${PYTHON:-python3}" /usr/bin/python3 ${TORCH_PYTHON:-}; do
    case " $ran " in *" $(command -v "$python") "*) continue ;; esac
    "$python" -c 'import torch.distributed' 2>/dev/null || continue
    [ -z "$ran" ] || [ -n "${TEST_ALL:-}" ] || continue
    ran="$ran $(command -v "$python")"
    try job 600 "-n 4" tests/python/check_ddp.py ${PART:-all}
    cat "$tmp/output"
    if job 100 "-n 4" tests/python/check_ddp.py dies >"$tmp/output" 2>&1; then
        echo "the death of rank 3 went unnoticed" && exit 1
    fi
    grep -q "RuntimeError.*rank 3 died" "$tmp/output" || { cat "$tmp/output" && exit 1; }
done
[ -d /dev/shm ] || leaves_out "torch's data loaders: /dev/shm is not there"
[ -n "$ran" ] || leaves_out "python3 with torch is not there (Debian: python3-torch)"
[ -z "${TEST_ALL:-}" ] || [ -n "${TORCH_PYTHON:-}" ] || leaves_out "a second release of torch (TORCH_PYTHON)"
checked
