# test_ddp.sh: the hook for DistributedDataParallel, on four ranks: torch's own expectations of a hook, and each of DDP's
# features that concerns hooks. With TEST_ALL=1, under each python3 that has torch.
# runs: quiet slow
# time limit: 900 s
. tests/python/common.sh
ran=
for python in "${PYTHON:-python3}" /usr/bin/python3; do
    case " $ran " in *" $(command -v "$python") "*) continue ;; esac
    "$python" -c 'import torch.distributed' 2>/dev/null || continue
    [ -z "$ran" ] || [ -n "${TEST_ALL:-}" ] || continue
    ran="$ran $(command -v "$python")"
    rm -f "$tmp/store"
    try timeout 600 "$espresso" run -n 4 -- "$python" tests/python/check_ddp.py "$tmp/store" ${PART:-all}
    cat "$tmp/output"
    rm -f "$tmp/store"
    if timeout 100 "$espresso" run -n 4 -- "$python" tests/python/check_ddp.py "$tmp/store" dies >"$tmp/output" 2>&1; then
        echo "the death of rank 3 went unnoticed" && exit 1
    fi
    grep -q "RuntimeError.*rank 3 died" "$tmp/output" || { cat "$tmp/output" && exit 1; }
done
if [ -z "$ran" ]; then
    echo "skipped: python3 with torch is not there (Debian: python3-torch)"
    exit 77
fi
