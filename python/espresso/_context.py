"""A context: this rank's place in a job, its tensors, and their means over all ranks. Codecs for single arrays."""

from __future__ import annotations

import atexit
import ctypes
import io
import math
import os
import queue
import threading
from collections import namedtuple
from contextlib import AbstractContextManager
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Union

from . import _abi
from ._arrays import DTYPES, REDUCED, Memory, matrix_of, memory_of
from ._library import EspressoError, StateError, check, library

# Gathers bytes from each rank of a group: gets this rank's, returns all ranks' in rank order.
Allgather = Callable[[bytes], Sequence[bytes]]

_OPTIMIZERS = ("unknown", "sgd", "momentum", "adam")  # by their values ESP_OPTIMIZER_*
_REDUCE = {"sum": _abi.ESP_REDUCE_SUM, "max": _abi.ESP_REDUCE_MAX, "min": _abi.ESP_REDUCE_MIN}
_FLOAT = {"float32": _abi.ESP_F32}
_TEXTS = ("backend", "root", "workers", "place", "progress", "trace", "stats", "plugin_path")
_NUMBERS = ("timeout_ms", "seed", "cpu_workers", "log_level", "machine", "min_compress_elements")
# Compression error and residual of one tensor: esp_tensor_stats in espresso.h explains them.
TensorStats = namedtuple("TensorStats", "samples error feedback pushes zeros")
_open_contexts: "Set[Context]" = set()  # they stay open until close(), or the exit


def _text(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else value.encode()


class Worker:
    """A thread that makes calls in order, so that the trainer need not wait for them. They must not raise."""

    def __init__(self) -> None:
        self._calls: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self.do = self._calls.put
        self._pid, self.thread = os.getpid(), threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        atexit.register(self.close, 1)

    def _run(self) -> None:
        for call in iter(self._calls.get, None):
            call()
            del call  # with it, the tensors that it holds

    def close(self, seconds: Optional[float] = None) -> None:
        """Ends the thread after all calls, for which it waits so long, or without limit."""
        if self._pid == os.getpid() and threading.current_thread() is not self.thread:
            self.do(None)
            self.thread.join(seconds)


def _exchange(gather: Allgather, size: int, errors: List[BaseException]) -> Any:
    """Returns the function that esp_open calls for `gather`. What `gather` raises goes to `errors`, not through C."""

    def call(_user: Any, mine: int, out: int, count: int) -> int:
        try:
            parts = gather(ctypes.string_at(mine, count))
            if len(parts) != size or any(len(part) != count for part in parts):
                raise ValueError(f"espresso: allgather must return {count} bytes for each of {size} ranks")
            ctypes.memmove(out, b"".join(parts), count * size)
            return _abi.ESP_OK
        except BaseException as error:
            errors.append(error)
            return _abi.STATUS["ESP_E_COMM"]

    return _abi.allgather_fn(call)


def _simple(function: str, doc: str) -> Callable[..., None]:
    """Returns a method that is one call of espresso.h, with the same arguments: numbers, texts or paths."""

    def method(self: "Context", *arguments: Any) -> None:
        self._call(function, *(os.fsencode(a) if isinstance(a, (str, os.PathLike)) else a for a in arguments))

    method.__doc__ = doc
    return method


class Context(AbstractContextManager["Context"]):
    """Averages tensors over all ranks of a job.

    Rank, size and peers come from the launcher's environment (`espresso run`, mpirun, srun, torchrun), or from `rank`,
    `size` and `allgather` (or `root`). A process may have several contexts, such as one for each group of ranks.
    `codecs` are names such as "int4" or "topk:ratio=0.01"; several are for strategy "auto". Other keywords are members
    of esp_config (espresso.h): strategy, backend, root, timeout_ms, seed, cpu_workers, workers, place, progress, trace,
    stats, plugin_path, log_level, machine, min_compress_elements. Opening blocks until all ranks have come.
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
        join: bool = False,
        worker: Optional[Worker] = None,
        **config: Union[str, int, None],
    ) -> None:
        self._handle = ctypes.c_void_p()
        self._lib = library()
        self._pid, self._worker = os.getpid(), worker
        self.names: Dict[str, int] = {}
        self._memories: List[Memory] = []
        cfg = _abi.Config(rank=rank, size=size, momentum=momentum, strategy=_text(strategy))
        if codecs is not None:
            cfg.codec = _text(codecs if isinstance(codecs, str) else ";".join(codecs))
        if optimizer not in _OPTIMIZERS:
            raise ValueError(f"espresso: optimizer '{optimizer}': use one of {', '.join(_OPTIMIZERS)}")
        cfg.optimizer = _OPTIMIZERS.index(optimizer)
        cfg.flags = (_abi.ESP_DISCARDABLE if discardable else 0) | (_abi.ESP_JOIN if join else 0)
        for name, value in config.items():
            if name not in _TEXTS + _NUMBERS:
                raise TypeError(f"espresso: no setting '{name}': use one of {', '.join(_TEXTS + _NUMBERS)}")
            setattr(cfg, name, int(value or 0) if name in _NUMBERS else _text(None if value is None else str(value)))
        errors: List[BaseException] = []
        if allgather:
            cfg.oob_allgather = _exchange(allgather, size, errors)
        try:
            check(self._lib.esp_open(ctypes.byref(cfg), ctypes.byref(self._handle)))
        except EspressoError as error:
            raise error from (errors[0] if errors else None)
        _open_contexts.add(self)

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

    def __exit__(self, kind: Optional[type], *_: Any) -> None:
        if kind is not None and self._handle:  # the library must not use gradients that are freed now
            self._lib.esp_cancel(self._handle)
        self.close()

    start = _simple("esp_start", "Compares all ranks' tensors, allocates memory. Raises MismatchError if ranks differ.")
    wait_all = _simple("esp_wait_all", "Waits for all means, ends the step. Raises StateError if a tensor is missing.")
    cancel = _simple("esp_cancel", "Takes back the gradients of a step that cannot go on. Close the context then.")
    discard_step = _simple("esp_discard_step", "Takes feedback back to before the last step. Needs discardable=True.")
    barrier = _simple("esp_barrier", "Returns when all ranks have called it.")
    feedback_clear = _simple("esp_feedback_clear", "Sets all residuals, and what codecs keep, to zero.")
    feedback_scale = _simple("esp_feedback_scale", "(factor): multiplies all residuals: old learning rate / new one.")
    weight = _simple("esp_weight", "(weight): sets this rank's weight in later means, such as its number of samples.")
    report_loss = _simple("esp_report_loss", "(loss): reports the training loss, by which auto checks its choice.")
    reconfigure = _simple("esp_reconfigure", "Goes on with the ranks that are there now; join=True in one that joins.")
    shrink = _simple("esp_shrink", "Continues without failed ranks, after a PeerError or PeerTimeout, on all others.")
    state_save = _simple("esp_state_save", "(path): writes state() to PATH.rRANKofSIZE, which state_load() reads.")
    state_load = _simple("esp_state_load", "(path): loads what state_save() of any number of ranks has written.")
    plugin_load = _simple("esp_plugin_load", "(path_or_name): loads a plugin, before start().")

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

    def _number(self, tensor: Union[int, str]) -> int:
        if isinstance(tensor, str) and tensor not in self.names:
            raise ValueError(f"espresso: no tensor '{tensor}': add() it before start()")
        return self.names[tensor] if isinstance(tensor, str) else tensor

    def push(self, tensor: Union[int, str], grad: Any) -> None:
        """Starts to average `grad`, of add()'s count and dtype, after what the current CUDA stream has; then returns.

        When it is waited for, `grad` is the mean over all ranks. Do not change or free it before.
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

    def test(self, tensor: Union[int, str]) -> bool:
        """Would wait() return at once?"""
        return self._call("esp_test", self._number(tensor)) == _abi.ESP_OK

    # ---- collectives without compression, between steps
    def broadcast(self, x: Any, root: int = 0) -> None:
        """Replaces array `x` (any dtype) by rank `root`'s."""
        memory = memory_of(x, "the array")
        count = memory.elements * x.element_size() if hasattr(x, "element_size") else x.nbytes
        self._call("esp_broadcast", memory.pointer, count, root)

    def allreduce(self, x: Any, op: str = "sum") -> None:
        """Replaces `x` (float32, float64, int32 or int64) by the "sum", "max" or "min" over all ranks."""
        memory = memory_of(x, "the array", REDUCED)
        if (memory.dtype, op) == ("float32", "sum"):
            self._call("esp_allreduce", memory.pointer, memory.elements)
        else:
            self._call("esp_allreduce_as", memory.pointer, memory.elements, REDUCED[memory.dtype], _REDUCE[op])

    # ---- sharded tensors
    def part(self, tensor: Union[int, str], rank: Optional[int] = None) -> slice:
        """Returns which elements of a sharded tensor belong to `rank` (this one)."""
        begin, count = ctypes.c_uint64(), ctypes.c_uint64()
        who = self.rank if rank is None else rank
        self._call("esp_part", self._number(tensor), who, ctypes.byref(begin), ctypes.byref(count))
        return slice(begin.value, begin.value + count.value)

    def gather(self, tensor: Union[int, str], params: Any) -> None:
        """Collects the parts of a sharded tensor's parameters, float32 [count], in place. Collective."""
        memory = memory_of(params, "the parameters", _FLOAT)
        self._call("esp_gather", self._number(tensor), memory.pointer, memory.stream)

    # ---- strategy, statistics, state
    @property
    def strategy(self) -> str:
        """The active strategy, as the text of a strategy file. Setting it is collective, between steps."""
        return (self._lib.esp_strategy_text(self._ctx()) or b"").decode()

    @strategy.setter
    def strategy(self, text: str) -> None:
        self._call("esp_strategy_set", text.encode())

    def stats(self) -> Dict[str, Any]:
        """Returns this rank's statistics since start(), by the names of esp_stats in espresso.h."""
        out = _abi.Stats(struct_size=ctypes.sizeof(_abi.Stats))
        self._call("esp_stats_read", ctypes.byref(out))
        found = {name: getattr(out, name) for name, *_ in out._fields_ if name not in ("struct_size", "reserved0")}
        return {name: list(x) if isinstance(x, ctypes.Array) else x for name, x in found.items()}

    def tensor_stats(self, tensor: Union[int, str]) -> TensorStats:
        """Returns compression error and residual of one tensor."""
        out = _abi.TensorStats(struct_size=ctypes.sizeof(_abi.TensorStats))
        self._call("esp_tensor_stats_read", self._number(tensor), ctypes.byref(out))
        return TensorStats(*(getattr(out, name) for name in TensorStats._fields))

    def state(self) -> bytes:
        """Returns this rank's step number, strategy, residuals and codec states. Between steps, on all ranks."""
        file = io.BytesIO()

        def write(_user: Any, data: int, count: int) -> int:
            return _abi.ESP_OK if file.write(ctypes.string_at(data, count)) == count else _abi.STATUS["ESP_E_NOMEM"]

        self._call("esp_state_write", _abi.io_fn(write), None)
        return file.getvalue()

    def load_state(self, state: bytes) -> None:
        """Loads what state() returned, after start(), on all ranks. Raises MismatchError for another model or size."""
        file = io.BytesIO(state)

        def read(_user: Any, data: int, count: int) -> int:
            part = file.read(count)
            ctypes.memmove(data, part, len(part))
            return _abi.ESP_OK if len(part) == count else _abi.STATUS["ESP_E_CORRUPT"]

        self._call("esp_state_read", _abi.io_fn(read), None)


@atexit.register
def _close_all() -> None:
    for ctx in list(_open_contexts):
        if ctx._handle and ctx._pid == os.getpid() and not (ctx._worker and ctx._worker.thread.is_alive()):
            ctx._lib.esp_cancel(ctx._handle)
            ctx.close()


class Codec(AbstractContextManager["Codec"]):
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
        self._ctx, self._own = ctx or Context(rank=0, size=1), ctx is None
        self._lib, self._handle = self._ctx._lib, ctypes.c_void_p()
        shape, name = tuple(matrix or (count,)), "esp_codec_open_matrix" if matrix else "esp_codec_open"
        self.count = math.prod(shape)
        try:
            self._ctx._call(name, spec.encode(), *shape, _text(feedback), ctypes.byref(self._handle))
        except Exception:
            self.close()
            raise

    def compress(self, x: Any) -> bytes:
        """Compresses float32 [count] as one step (plus the residual), and returns the payload."""
        memory = memory_of(x, "the array", _FLOAT, write=False)
        room = self._lib.esp_compress_bound(self._handle)
        out, used = ctypes.create_string_buffer(room), ctypes.c_uint64()
        into = (out, room, ctypes.byref(used))
        check(self._lib.esp_compress(self._handle, memory.pointer, memory.elements, *into), self._ctx._ctx())
        return out.raw[: used.value]

    def decompress(self, payload: bytes, out: Any, add: bool = False) -> Any:
        """Decodes a payload into `out`, float32 [count], or adds it to `out`. Returns `out`."""
        memory = memory_of(out, "out", _FLOAT)
        into = (memory.pointer, memory.elements, _abi.ESP_OUT_SUM if add else _abi.ESP_OUT_SET)
        check(self._lib.esp_decompress(self._handle, payload, len(payload), *into), self._ctx._ctx())
        return out

    def residual(self, out: Any) -> Any:
        """Copies what the last compress() left out into `out`, float32 [count]; zeros without feedback."""
        memory = memory_of(out, "out", _FLOAT)
        if memory.elements != self.count:
            raise ValueError(f"espresso: out has {memory.elements} elements, the codec {self.count}")
        source, count = self._lib.esp_codec_residual(self._handle), 4 * self.count
        ctypes.memmove(memory.pointer, source or bytes(count), count)
        return out

    def close(self) -> None:
        """Frees the codec."""
        if self._handle:
            self._lib.esp_codec_close(self._handle)
            self._handle = ctypes.c_void_p()
        if self._own:
            self._ctx.close()

    def __exit__(self, *_: Any) -> None:
        self.close()


def _codec_for(spec: str, memory: Memory) -> Codec:
    return Codec(spec, memory.elements, matrix=memory.shape if len(memory.shape) == 2 else None, feedback="none")


def compress(spec: str, x: Any) -> bytes:
    """Returns the payload of codec `spec` for `x`, a float32 array or tensor; a 2-d one is a matrix. No feedback."""
    with _codec_for(spec, memory_of(x, "the array", _FLOAT, write=False)) as codec:
        return codec.compress(x)


def decompress(spec: str, payload: bytes, out: Any) -> Any:
    """Decodes a payload of compress() with the same `spec` into `out`, of the same shape, and returns `out`."""
    with _codec_for(spec, memory_of(out, "out", _FLOAT)) as codec:
        return codec.decompress(payload, out)
