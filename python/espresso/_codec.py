"""Compresses arrays without other ranks."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Sequence

from . import _abi
from ._arrays import memory_of
from ._context import Context
from ._library import check

_FLOAT = {"float32": _abi.ESP_F32}


class Codec:
    """A codec such as "topk:ratio=0.01" for arrays of `count` float32, or for matrices of shape `matrix`.

    `feedback` is "none", "residual", or None for the codec's default. Use one thread at a time.
    """

    def __init__(
        self,
        spec: str,
        count: int = 0,
        *,
        matrix: Optional[Sequence[int]] = None,
        feedback: Optional[str] = None,
        ctx: Optional[Context] = None,
    ) -> None:
        self._own = None if ctx else Context(rank=0, size=1)
        self._ctx = ctx or self._own
        assert self._ctx is not None
        self._lib, self._handle = self._ctx._lib, ctypes.c_void_p()
        how = None if feedback is None else feedback.encode()
        handle, out = self._ctx._ctx(), ctypes.byref(self._handle)
        if matrix:
            rows, cols = matrix
            self.count = rows * cols
            status = self._lib.esp_codec_open_matrix(handle, spec.encode(), rows, cols, how, out)
        else:
            self.count = count
            status = self._lib.esp_codec_open(handle, spec.encode(), count, how, out)
        try:
            check(status, handle)
        except Exception:
            self.close()
            raise

    def compress(self, x: Any) -> bytes:
        """Compresses float32 [count] as one step (plus the residual), and returns the payload."""
        memory = memory_of(x, "the array", _FLOAT, write=False)
        room = self._lib.esp_compress_bound(self._handle)
        out, used = ctypes.create_string_buffer(room), ctypes.c_uint64()
        check(
            self._lib.esp_compress(self._handle, memory.pointer, memory.elements, out, room, ctypes.byref(used)),
            self._ctx._ctx() if self._ctx else None,
        )
        return out.raw[: used.value]

    def decompress(self, payload: bytes, out: Any, add: bool = False) -> Any:
        """Decodes a payload into `out`, float32 [count], or adds it to `out`. Returns `out`."""
        memory = memory_of(out, "out", _FLOAT)
        mode = _abi.ESP_OUT_SUM if add else _abi.ESP_OUT_SET
        check(
            self._lib.esp_decompress(self._handle, payload, len(payload), memory.pointer, memory.elements, mode),
            self._ctx._ctx() if self._ctx else None,
        )
        return out

    def residual(self, out: Any) -> Any:
        """Copies what the last compress() left out into `out`, float32 [count]; zeros without feedback."""
        memory = memory_of(out, "out", _FLOAT)
        if memory.elements != self.count:
            raise ValueError(f"espresso: out has {memory.elements} elements, the codec {self.count}")
        source = self._lib.esp_codec_residual(self._handle)
        if source:
            ctypes.memmove(memory.pointer, source, memory.nbytes())
        else:
            ctypes.memset(memory.pointer, 0, memory.nbytes())
        return out

    def close(self) -> None:
        """Frees the codec."""
        if self._handle:
            self._lib.esp_codec_close(self._handle)
            self._handle = ctypes.c_void_p()
        if self._own:
            self._own.close()

    def __enter__(self) -> "Codec":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def compress(spec: str, x: Any) -> bytes:
    """Returns the payload of codec `spec` for `x`, a float32 array or tensor; a 2-d one is a matrix. No feedback."""
    memory = memory_of(x, "the array", _FLOAT, write=False)
    matrix = memory.shape if len(memory.shape) == 2 else None
    with Codec(spec, memory.elements, matrix=matrix, feedback="none") as codec:
        return codec.compress(x)


def decompress(spec: str, payload: bytes, out: Any) -> Any:
    """Decodes a payload of compress() with the same `spec` into `out`, of the same shape, and returns `out`."""
    memory = memory_of(out, "out", _FLOAT)
    matrix = memory.shape if len(memory.shape) == 2 else None
    with Codec(spec, memory.elements, matrix=matrix, feedback="none") as codec:
        return codec.decompress(payload, out)
