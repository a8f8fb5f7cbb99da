"""The memory of numpy arrays and torch tensors, without copies."""

from __future__ import annotations

import math
import sys
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from . import _abi

DTYPES = {"float32": _abi.ESP_F32, "float16": _abi.ESP_F16, "bfloat16": _abi.ESP_BF16}
REDUCED = {"float32": _abi.ESP_F32, "float64": _abi.ESP_F64, "int32": _abi.ESP_I32, "int64": _abi.ESP_I64}


class Memory(NamedTuple):
    """Where an array's elements are."""

    pointer: int
    elements: int
    dtype: str
    shape: Tuple[int, ...]
    device: _abi.Device
    stream: _abi.Stream


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Do the elements fill one block of memory, in any order of the dimensions?"""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(shape, strides) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _wrong(what: str, found: str, remedy: str) -> Exception:
    return ValueError(f"espresso: {what} {found}: {remedy}")


def _torch_memory(x: Any, what: str) -> Memory:
    device, stream = _abi.Device(), _abi.Stream()
    if x.layout is not sys.modules["torch"].strided:
        raise _wrong(what, f"has layout {x.layout}", "pass a dense tensor")
    if x.device.type == "cuda":
        device = _abi.Device(_abi.ESP_CUDA, x.device.index or 0)
        stream = _abi.Stream(device, sys.modules["torch"].cuda.current_stream(x.device).cuda_stream)
    elif x.device.type != "cpu":
        raise _wrong(what, f"is on device {x.device}", "pass a tensor of the CPU or of CUDA")
    if not x.is_contiguous() and not _dense(x.shape, x.stride()):
        raise _wrong(what, "is not contiguous", "pass x.contiguous()")
    return Memory(x.data_ptr(), x.numel(), str(x.dtype).replace("torch.", ""), tuple(x.shape), device, stream)


def memory_of(x: Any, what: str, dtypes: Optional[Dict[str, int]] = None, write: bool = True) -> Memory:
    """Returns the memory of `x`, a numpy array or torch tensor whose elements fill one block of memory.

    `what` names `x` in messages. Raises TypeError for another type, ValueError for a dtype that is not in `dtypes`, for
    elements that are not in one block, and for a read-only array if `write` is set.
    """
    if "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor):
        memory = _torch_memory(x, what)
    elif hasattr(x, "__array_interface__") and hasattr(x, "dtype"):
        flags, about = x.flags, x.__array_interface__
        if not (flags["C_CONTIGUOUS"] or flags["F_CONTIGUOUS"]):
            raise _wrong(what, "is not contiguous", "pass numpy.ascontiguousarray(x)")
        if write and about["data"][1]:
            raise _wrong(what, "is read-only", "pass a copy")
        if not x.dtype.isnative:
            raise _wrong(what, "has another byte order", "convert it to the machine's")
        memory = Memory(about["data"][0], x.size, x.dtype.name, tuple(x.shape), _abi.Device(), _abi.Stream())
    else:
        raise TypeError(f"espresso: {what} must be a numpy array or a torch tensor, not {type(x).__name__}")
    if dtypes is not None and memory.dtype not in dtypes:
        raise _wrong(what, f"has dtype {memory.dtype}", "use " + ", ".join(sorted(dtypes)))
    return memory


def matrix_of(shape: Sequence[int]) -> Tuple[int, int]:
    """Returns rows and columns of a tensor as the codecs for matrices see it, (0, 0) for fewer than two dimensions."""
    return (0, 0) if len(shape) < 2 or min(shape) == 0 else (shape[0], math.prod(shape[1:]))
