"""A context: this rank's place in a job, its tensors, and their means over all ranks."""

from __future__ import annotations

import atexit
import ctypes
import os
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Union

from . import _abi
from ._arrays import DTYPES, REDUCED, Memory, matrix_of, memory_of
from ._errors import EspressoError, StateError
from ._library import check, library

# Gathers bytes from each rank of a group: gets this rank's, returns all ranks' in rank order.
Allgather = Callable[[bytes], Sequence[bytes]]

_OPTIMIZERS = {
    "unknown": _abi.ESP_OPTIMIZER_UNKNOWN,
    "sgd": _abi.ESP_OPTIMIZER_SGD,
    "momentum": _abi.ESP_OPTIMIZER_MOMENTUM,
    "adam": _abi.ESP_OPTIMIZER_ADAM,
}
_REDUCE = {"sum": _abi.ESP_REDUCE_SUM, "max": _abi.ESP_REDUCE_MAX, "min": _abi.ESP_REDUCE_MIN}
_open_contexts: "Set[Context]" = set()  # they stay open until close(), or the exit


class TensorStats(NamedTuple):
    """Compression error and residual of one tensor; see esp_tensor_stats in espresso.h."""

    samples: int
    error: float
    feedback: float
    pushes: int
    zeros: int


def _text(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else value.encode()


def _fields(struct: ctypes.Structure) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for name, *_ in struct._fields_:  # type: ignore[misc]
        value = getattr(struct, name)
        if name not in ("struct_size", "reserved0"):
            found[name] = list(value) if isinstance(value, ctypes.Array) else value
    return found


class _Exchange:
    """Calls the caller's allgather from esp_open, and keeps the exception that it raised."""

    def __init__(self, gather: Allgather, size: int) -> None:
        self.error: Optional[BaseException] = None
        self.function = _abi.allgather_fn(self._call)
        self._gather, self._size = gather, size

    def _call(self, _user: Any, mine: int, out: int, count: int) -> int:
        try:
            parts = self._gather(ctypes.string_at(mine, count))
            if len(parts) != self._size or any(len(part) != count for part in parts):
                raise ValueError(f"espresso: allgather must return {count} bytes for each of {self._size} ranks")
            ctypes.memmove(out, b"".join(parts), count * self._size)
            return _abi.ESP_OK
        except BaseException as error:  # it must not pass through C
            self.error = error
            return _abi.STATUS["ESP_E_COMM"]


class Context:
    """Averages tensors over all ranks of a job.

    Rank, size and peers come from the launcher's environment (`espresso run`, mpirun, srun, torchrun), or from `rank`,
    `size` and `allgather` (or `root`). A process may have several contexts, such as one for each group of ranks.
    `codecs` are names such as "int4" or "topk:ratio=0.01"; several are for strategy "auto". Other keywords are members
    of esp_config (espresso.h): strategy, backend, root, timeout_ms, seed, cpu_workers, workers, place, progress, trace,
    stats, plugin_path, log_level, machine, min_compress_elements. Opening blocks until all ranks have come.

    Raises LibraryMissing, EspressoError (its subclasses name the status), TypeError and ValueError.
    """

    def __init__(
        self,
        codecs: Union[None, str, Iterable[str]] = None,
        strategy: Optional[str] = None,
        *,
        rank: int = 0,
        size: int = 0,
        allgather: Optional[Allgather] = None,
        optimizer: str = "unknown",
        momentum: float = 0.0,
        discardable: bool = False,
        **config: Union[str, int, None],
    ) -> None:
        self._handle = ctypes.c_void_p()
        self._lib = library()
        self._pid = os.getpid()
        self.names: Dict[str, int] = {}
        self._memories: List[Memory] = []
        cfg = _abi.Config(rank=rank, size=size, momentum=momentum, strategy=_text(strategy))
        if codecs is not None:
            cfg.codec = _text(codecs if isinstance(codecs, str) else ";".join(codecs))
        if optimizer not in _OPTIMIZERS:
            raise ValueError(f"espresso: optimizer '{optimizer}': use one of {', '.join(_OPTIMIZERS)}")
        cfg.optimizer = _OPTIMIZERS[optimizer]
        cfg.flags = _abi.ESP_DISCARDABLE if discardable else 0
        self._set(cfg, config)
        exchange = _Exchange(allgather, size) if allgather else None
        if exchange:
            cfg.oob_allgather = exchange.function
        try:
            check(self._lib.esp_open(ctypes.byref(cfg), ctypes.byref(self._handle)))
        except EspressoError as error:
            raise error from (exchange.error if exchange else None)
        _open_contexts.add(self)

    @staticmethod
    def _set(cfg: _abi.Config, config: Dict[str, Union[str, int, None]]) -> None:
        texts = ("backend", "root", "workers", "place", "progress", "trace", "stats", "plugin_path")
        numbers = ("timeout_ms", "seed", "cpu_workers", "log_level", "machine", "min_compress_elements")
        for name, value in config.items():
            if name in texts:
                setattr(cfg, name, _text(None if value is None else str(value)))
            elif name in numbers:
                setattr(cfg, name, int(value or 0))
            else:
                raise TypeError(f"espresso: no setting '{name}': use one of {', '.join(texts + numbers)}")

    def _ctx(self) -> ctypes.c_void_p:
        if not self._handle:
            raise StateError("espresso: the context is closed")
        return self._handle

    def _call(self, name: str, *arguments: Any) -> int:
        ctx = self._ctx()
        return check(getattr(self._lib, name)(ctx, *arguments), ctx)

    # ---- the job
    rank = property(lambda self: int(self._lib.esp_rank(self._ctx())), doc="This rank's number, from 0.")
    size = property(lambda self: int(self._lib.esp_size(self._ctx())), doc="The number of ranks.")
    machine = property(lambda self: int(self._lib.esp_machine(self._ctx())), doc="Number of this rank's machine.")
    machines = property(lambda self: int(self._lib.esp_machines(self._ctx())), doc="The number of machines.")

    def close(self) -> None:
        """Frees the context. Closing twice is allowed. Contexts that are open at exit are closed then."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        _open_contexts.discard(self)
        if handle and self._pid == os.getpid():
            self._lib.esp_close(handle)

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, kind: Optional[type], *_: Any) -> None:
        if kind is not None and self._handle:  # the library must not use gradients that are freed now
            self._lib.esp_cancel(self._handle)
        self.close()

    # ---- tensors
    def add(
        self,
        name: str,
        like: Any = None,
        *,
        count: int = 0,
        dtype: str = "float32",
        matrix: Optional[Sequence[int]] = None,
        codec: Optional[str] = None,
        option: Optional[str] = None,
        gather: Optional[str] = None,
        sum: bool = False,
        raw: bool = False,
        shard: bool = False,
    ) -> int:
        """Registers a tensor and returns its number: 0, 1, 2, ... Call it before start(), in backward order.

        `like` is an array of the gradient's shape, dtype and device; without it, there are `count` elements of `dtype`
        in host memory. `matrix` (rows, cols) overrides how codecs for matrices see it. Raises StateError after start().
        """
        desc = _abi.TensorDesc(name=name.encode(), codec=_text(codec), option=_text(option), gather=_text(gather))
        if like is not None:
            memory = memory_of(like, f"tensor '{name}'", DTYPES, write=False)
        else:
            memory = Memory(0, count, dtype, (count,), _abi.Device(), _abi.Stream())
            if dtype not in DTYPES:
                raise ValueError(f"espresso: tensor '{name}' has dtype {dtype}: use {', '.join(sorted(DTYPES))}")
        desc.count, desc.dtype, desc.device = memory.elements, DTYPES[memory.dtype], memory.device
        desc.rows, desc.cols = matrix or matrix_of(memory.shape)
        desc.flags = (_abi.ESP_SUM if sum else 0) | (_abi.ESP_RAW if raw else 0) | (_abi.ESP_SHARD if shard else 0)
        number = ctypes.c_uint32()
        self._call("esp_tensor_add", ctypes.byref(desc), ctypes.byref(number))
        self.names[name] = number.value
        self._memories.append(memory)
        return number.value

    def start(self) -> None:
        """Compares the ranks' tensors and allocates all memory. Collective. Raises MismatchError if ranks differ."""
        self._call("esp_start")

    def _number(self, tensor: Union[int, str]) -> int:
        if not isinstance(tensor, str):
            return tensor
        if tensor not in self.names:
            raise ValueError(f"espresso: no tensor '{tensor}': add() it before start()")
        return self.names[tensor]

    def push(self, tensor: Union[int, str], grad: Any) -> None:
        """Starts to average `grad`, and returns. It becomes the mean over all ranks, in place, when it is waited for.

        `grad` has the count and dtype that were given to add(). It must not be changed or freed before. Work that the
        current CUDA stream has is done first. Raises ValueError for another count, dtype, or scattered memory.
        """
        number = self._number(tensor)
        memory = memory_of(grad, f"tensor {tensor!r}", DTYPES)
        if 0 <= number < len(self._memories):
            told = self._memories[number]
            if (told.elements, told.dtype) != (memory.elements, memory.dtype):
                raise ValueError(
                    f"espresso: tensor {tensor!r} was added with {told.elements} elements of {told.dtype}, "
                    f"and pushed with {memory.elements} of {memory.dtype}"
                )
        self._call("esp_push", number, memory.pointer, memory.stream)

    def push_zero(self, tensor: Union[int, str], out: Any) -> None:
        """Like push(), for a rank without a gradient in this step: it contributes zeros, and `out` gets the mean."""
        memory = memory_of(out, f"tensor {tensor!r}", DTYPES)
        self._call("esp_push_zero", self._number(tensor), memory.pointer, memory.stream)

    def wait(self, tensor: Union[int, str]) -> None:
        """Blocks until the tensor has its mean. One thread at a time may wait."""
        self._call("esp_wait", self._number(tensor))

    def wait_all(self) -> None:
        """Blocks until all tensors have their means, and ends the step. Raises StateError if one was not pushed."""
        self._call("esp_wait_all")

    def test(self, tensor: Union[int, str]) -> bool:
        """Would wait() return at once?"""
        return self._call("esp_test", self._number(tensor)) == _abi.ESP_OK

    def cancel(self) -> None:
        """Takes back the gradients of a step that cannot go on. Close the context then."""
        self._call("esp_cancel")

    def discard_step(self) -> None:
        """Takes feedback back to before the last step, which the trainer skips. Needs discardable=True."""
        self._call("esp_discard_step")

    # ---- collectives without compression, between steps
    def broadcast(self, x: Any, root: int = 0) -> None:
        """Replaces array `x` (any dtype) by rank `root`'s."""
        memory = memory_of(x, "the array")
        count = memory.elements * x.element_size() if hasattr(x, "element_size") else x.nbytes
        self._call("esp_broadcast", memory.pointer, count, root)

    def allreduce(self, x: Any, op: str = "sum") -> None:
        """Replaces `x` (float32, float64, int32 or int64) by the "sum", "max" or "min" over all ranks."""
        memory = memory_of(x, "the array", REDUCED)
        self._call("esp_allreduce_as", memory.pointer, memory.elements, REDUCED[memory.dtype], _REDUCE[op])

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self._call("esp_barrier")

    def weight(self, weight: float) -> None:
        """Sets this rank's weight in later means, such as its number of samples. Collective."""
        self._call("esp_weight", weight)

    # ---- sharded tensors
    def part(self, tensor: Union[int, str], rank: Optional[int] = None) -> slice:
        """Returns which elements of a sharded tensor belong to `rank` (this one)."""
        begin, count = ctypes.c_uint64(), ctypes.c_uint64()
        who = self.rank if rank is None else rank
        self._call("esp_part", self._number(tensor), who, ctypes.byref(begin), ctypes.byref(count))
        return slice(begin.value, begin.value + count.value)

    def gather(self, tensor: Union[int, str], params: Any) -> None:
        """Collects the parts of a sharded tensor's parameters, float32 [count], in place. Collective."""
        memory = memory_of(params, "the parameters", {"float32": _abi.ESP_F32})
        self._call("esp_gather", self._number(tensor), memory.pointer, memory.stream)

    # ---- strategy, statistics, state
    @property
    def strategy(self) -> str:
        """The active strategy, as the text of a strategy file. Setting it is collective, between steps."""
        return (self._lib.esp_strategy_text(self._ctx()) or b"").decode()

    @strategy.setter
    def strategy(self, text: str) -> None:
        self._call("esp_strategy_set", text.encode())

    def report_loss(self, loss: float) -> None:
        """Reports the training loss, by which strategy "auto" checks its choice."""
        self._call("esp_report_loss", loss)

    def feedback_scale(self, factor: float) -> None:
        """Multiplies all residuals. When the learning rate changes, pass the old rate divided by the new one."""
        self._call("esp_feedback_scale", factor)

    def feedback_clear(self) -> None:
        """Sets all residuals, and what codecs keep, to zero."""
        self._call("esp_feedback_clear")

    def stats(self) -> Dict[str, Any]:
        """Returns this rank's statistics since start(), by the names of esp_stats in espresso.h."""
        out = _abi.Stats(struct_size=ctypes.sizeof(_abi.Stats))
        self._call("esp_stats_read", ctypes.byref(out))
        return _fields(out)

    def tensor_stats(self, tensor: Union[int, str]) -> TensorStats:
        """Returns compression error and residual of one tensor."""
        out = _abi.TensorStats(struct_size=ctypes.sizeof(_abi.TensorStats))
        self._call("esp_tensor_stats_read", self._number(tensor), ctypes.byref(out))
        return TensorStats(out.samples, out.error, out.feedback, out.pushes, out.zeros)

    def state(self) -> bytes:
        """Returns this rank's step number, strategy, residuals and codec states. Between steps, on all ranks."""
        parts: List[bytes] = []

        def write(_user: Any, data: int, count: int) -> int:
            parts.append(ctypes.string_at(data, count))
            return _abi.ESP_OK

        self._call("esp_state_write", _abi.io_fn(write), None)
        return b"".join(parts)

    def load_state(self, state: bytes) -> None:
        """Loads what state() returned, after start(), on all ranks. Raises MismatchError for another model or size."""
        view, at = memoryview(state), 0

        def read(_user: Any, data: int, count: int) -> int:
            nonlocal at
            if at + count > len(view):
                return _abi.STATUS["ESP_E_CORRUPT"]
            ctypes.memmove(data, bytes(view[at : at + count]), count)
            at += count
            return _abi.ESP_OK

        self._call("esp_state_read", _abi.io_fn(read), None)

    def state_save(self, path: str) -> None:
        """Writes state() to PATH.rRANKofSIZE; state_load() may load it with another number of ranks."""
        self._call("esp_state_save", os.fsencode(path))

    def state_load(self, path: str) -> None:
        """Loads what state_save() has written."""
        self._call("esp_state_load", os.fsencode(path))

    def plugin_load(self, path_or_name: str) -> None:
        """Loads a plugin, before start()."""
        self._call("esp_plugin_load", os.fsencode(path_or_name))

    def shrink(self) -> None:
        """Continues without failed ranks, after a PeerError or PeerTimeout, on every remaining rank."""
        self._call("esp_shrink")


def forget(ctx: Context) -> None:
    """Leaves a context open at exit, because a thread uses it."""
    _open_contexts.discard(ctx)


@atexit.register
def _close_all() -> None:
    for ctx in list(_open_contexts):
        if ctx._handle and ctx._pid == os.getpid():
            ctx._lib.esp_cancel(ctx._handle)
            ctx.close()
