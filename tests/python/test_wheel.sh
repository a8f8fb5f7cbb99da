# test_wheel.sh: a wheel has all that it needs: in an environment of its own, outside of the checkout, the package, the
# library, plugins and the command work; without numpy, torch or the library, messages say what to install. The sdist has
# all that a wheel is built of.
# runs: slow
. tests/python/common.sh
python_with "Debian: python3-setuptools python3-wheel python3-venv" setuptools wheel venv ensurepip
ESPRESSO_BUILD=$root/$build
export ESPRESSO_BUILD
(cd python && try "$python" setup.py -q sdist -d "$tmp") || exit 1
tar xzf "$tmp"/espresso-*.tar.gz -C "$tmp"
rm "$tmp"/espresso-*.tar.gz
cd "$tmp"/espresso-*
(cd source && try make -n NVCC= lib plugins tools) || exit 1
try "$python" setup.py -q bdist_wheel -d "$tmp"
wheel=$(ls "$tmp"/espresso-*-py3-none-linux_*.whl)
unset ESPRESSO_LIBRARY PYTHONPATH ESPRESSO_BUILD
try "$python" -m venv "$tmp/venv"
cd "$tmp"
try venv/bin/python -m pip install -q --no-index "$wheel"
try venv/bin/python -m espresso.info
says() { # TEXT
    grep -q -- "$1" "$tmp/output" || { echo "expected \"$1\" in:" && cat "$tmp/output" && exit 1; }
}
says "^library .*/venv/lib.*/_native/lib/libespresso.so"
says "^plugins .*nccl"
says "^command .*/venv/lib.*/_native/bin/espresso"
says "^numpy .*pip install numpy"
says "^backend  shm"
try venv/bin/espresso --version
try venv/bin/espresso plan --model bert-base --system one-box --gc fp16
cat >one.py <<'END'
import array, espresso
with espresso.Context() as ctx:
    assert ctx.size == 2
    ctx.add("w", count=3), ctx.plugin_load("nccl"), ctx.start()
    for kind, call in ((TypeError, lambda: ctx.push("w", array.array("f", [1, 2, 3]))), (ImportError, lambda: espresso.DDP)):
        try:
            call()
        except kind as error:
            print(error)
        else:
            raise SystemExit(f"no {kind}")
END
try venv/bin/espresso run -n 2 -- venv/bin/python one.py
says "must be a numpy array or a torch tensor, not array"
says "pip install torch"
if [ -n "${TORCH_PYTHON:-}" ]; then # torch finds the backend without an import
    try "$TORCH_PYTHON" -m pip install -q --no-index --no-deps --target site "$wheel"
    cat >two.py <<'END'
import os, torch, torch.distributed as dist
dist.init_process_group("cpu:espresso", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
END
    try env PYTHONPATH=site "$TORCH_PYTHON" two.py
fi
rm venv/lib/python*/site-packages/espresso/_native/lib/libespresso.so
if venv/bin/python -m espresso.info >"$tmp/output"; then echo "no library, and no error" && exit 1; fi
says "set ESPRESSO_LIBRARY"
