"""The communication hook for torch's DistributedDataParallel."""

from __future__ import annotations

import atexit
import ctypes
import os
import queue
import socket
import threading
import weakref
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

try:
    import torch
    import torch.distributed as dist
except ImportError as why:
    raise ImportError(
        f"espresso.DDP and espresso.hook need torch ({why}): pip install torch, or Debian's python3-torch"
    ) from None

from . import _abi
from ._arrays import DTYPES, matrix_of
from ._context import Context, forget
from ._errors import StateError
from ._library import check

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_states: "weakref.WeakSet[DDP]" = weakref.WeakSet()


class _Bucket(NamedTuple):
    """A pushed bucket, whose future the waiter completes."""

    tensors: List[int]
    buffer: torch.Tensor
    future: Any
    last: bool


def optimizer_of(optimizer: Any) -> Tuple[str, float]:
    """Returns the name and the momentum by which strategy "auto" rates codecs."""
    if optimizer is None:
        return "unknown", 0.0
    group, kinds = optimizer.param_groups[0], {c.__name__ for c in type(optimizer).__mro__}
    if "SGD" in kinds:
        return ("momentum", float(group["momentum"])) if group.get("momentum") else ("sgd", 0.0)
    if kinds & {"Adam", "AdamW", "NAdam", "RAdam", "Adamax"}:
        return "adam", float(group["betas"][0]) or -1.0
    if kinds & {"RMSprop", "Adagrad"}:
        return "adam", -1.0
    return "unknown", 0.0


def gather_in(group: Any, size: int) -> Any:
    def gather(mine: bytes) -> Sequence[bytes]:
        parts: List[Any] = [None] * size
        dist.all_gather_object(parts, mine, group=group)
        return parts

    return gather


def several_hosts(group: Any, size: int) -> Optional[str]:
    """Returns the backend for ranks on several hosts, or None if they are on one, or $ESPRESSO_BACKEND chooses."""
    here = socket.gethostname() + (_BOOT.read_text() if _BOOT.exists() else "")
    hosts: List[Any] = [None] * size
    dist.all_gather_object(hosts, here, group=group)
    if len(set(hosts)) < 2 or "ESPRESSO_BACKEND" in os.environ:
        return None
    iface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    return f"levels:intra=(shm),inter=(gloo{':iface=' + iface if iface else ''})"


def _matrix(p: torch.Tensor) -> Tuple[int, int]:
    """Rows and columns of a parameter's memory: the dimension with the largest stride has the rows."""
    if p.dim() < 2:
        return 0, 0
    strides = p.stride()
    return matrix_of([p.shape[d] for d in sorted(range(p.dim()), key=lambda d: -strides[d])])


class Averager:
    """What espresso.DDP and espresso.FSDP have in common: `context`, and states of their own for each rank."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def state_dict(self) -> Dict[str, Any]:
        """Returns what this rank must save to resume with the same bits: feedback, codec states, strategy.

        All ranks call it together, after backward(), and save their own: {"version", "rank", "size", "state": uint8}.
        Context.state_save(path) writes files that another number of ranks may load.
        """
        state = torch.frombuffer(bytearray(self.context.state()), dtype=torch.uint8)
        return {"version": 1, "rank": self.context.rank, "size": self.context.size, "state": state}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Loads what state_dict() returned on this rank. All ranks call it together, before backward().

        Raises ValueError for the state of another rank or version, MismatchError for another model.
        """
        mine = {"version": 1, "rank": self.context.rank, "size": self.context.size}
        for key, expected in mine.items():
            if state.get(key) != expected:
                raise ValueError(
                    f"espresso: the state has {key} {state.get(key)}, expected {expected}: each rank loads what it "
                    "saved (context.state_load loads files of another number of ranks)"
                )
        saved = state["state"].contiguous()
        self.context.load_state(ctypes.string_at(saved.data_ptr(), saved.numel()))

    def report_loss(self, loss: Any) -> None:
        """Reports the training loss (a number, or a tensor with one), by which strategy "auto" checks its choice."""
        self.context.report_loss(float(loss))

    def close(self) -> None:
        """Closes the context, after backward(). The model cannot train any more."""
        self.context.close()

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("espresso: this cannot be pickled: save state_dict(), and construct it again from the model")


class DDP(Averager):
    """The state of espresso.hook: averages and compresses the gradients of a DistributedDataParallel model.

        state = espresso.DDP(model, codecs=["int4", "topk:ratio=0.01"], strategy="auto", optimizer=optimizer)
        model.register_comm_hook(state, espresso.hook)

    All ranks of the model's process group construct it. Tensors are the model's parameters (float32, float16,
    bfloat16), known by their names, in the reverse order of named_parameters(). `optimizer` tells strategy "auto" which
    codecs are safe. Pass the GradScaler as `scaler`, if there is one: feedback then follows its scale, and a step whose
    means have an Inf or NaN, which it skips, leaves feedback unchanged. This reads each mean once more, and needs a
    copy of the residuals. Other keywords are those of Context.

    `context` is the Context: strategy, statistics, report_loss, feedback_scale. Raises ValueError for a parameter that
    the library cannot average, and what Context raises. If averaging fails, such as when a rank dies, backward() raises
    a RuntimeError with the text of the exception, which `error` has.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        codecs: Union[None, str, Iterable[str]] = None,
        strategy: Optional[str] = None,
        optimizer: Any = None,
        *,
        group: Any = None,
        scaler: Any = None,
        **config: Union[str, int, None],
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("espresso.DDP: call torch.distributed.init_process_group before")
        group = group if group is not None else getattr(model, "process_group", None)
        size = dist.get_world_size(group)
        kind, momentum = optimizer_of(optimizer)
        scaled = scaler is not None and bool(scaler.is_enabled())
        self._tensors: Dict[int, int] = {}
        self._dtypes: Dict[int, torch.dtype] = {}
        self._parameters: List[torch.Tensor] = []  # keeps their id() from being used again
        parameters = self._named(model)
        config.setdefault("backend", several_hosts(group, size))
        context = Context(
            codecs, strategy, rank=dist.get_rank(group), size=size, allgather=gather_in(group, size),
            optimizer=kind, momentum=momentum, discardable=scaled, **config,
        )  # fmt: skip
        super().__init__(context)
        try:
            self._add(parameters, getattr(model, "mixed_precision", None))
            self.context.start()
        except BaseException:
            self.context.close()
            raise
        self._scaler = scaler if scaled else None
        self._scale = 0.0  # the scale of the residuals
        self._finite, self._in_step = True, False
        self.skipped = 0  # steps whose feedback was taken back
        self.error: Optional[BaseException] = None
        self._pid = os.getpid()
        self._queue: "queue.SimpleQueue[Optional[_Bucket]]" = queue.SimpleQueue()
        self._waiter = threading.Thread(target=_wait, args=(weakref.ref(self), self._queue), daemon=True)
        self._waiter.start()
        weakref.finalize(self, self._queue.put, None).atexit = False
        _states.add(self)

    @staticmethod
    def _named(model: torch.nn.Module) -> List[Tuple[str, torch.Tensor]]:
        module = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        ignored = set(getattr(model, "parameters_to_ignore", ()))
        later = {id(p) for p in getattr(model, "_delay_all_reduce_params", None) or ()}  # torch averages these
        return [
            (name, p)
            for name, p in reversed(list(module.named_parameters()))
            if p.requires_grad and name not in ignored and id(p) not in later
        ]

    def _add(self, parameters: List[Tuple[str, torch.Tensor]], mixed: Any) -> None:
        reduced = getattr(mixed, "reduce_dtype", None) or getattr(mixed, "param_dtype", None)
        for name, p in parameters:
            dtype = reduced or p.dtype
            text = str(dtype).replace("torch.", "")
            if text not in DTYPES:
                raise ValueError(
                    f"espresso.DDP: parameter {name} has dtype {text}: convert it to one of "
                    f"{', '.join(sorted(DTYPES))}, or leave it out of the model's DDP"
                )
            like = torch.empty(p.numel(), dtype=dtype, device=p.device)
            number = self.context.add(name, like, matrix=_matrix(p))
            self._tensors[id(p)], self._dtypes[id(p)] = number, dtype
            self._parameters.append(p)

    # ---- a step
    def _begin(self) -> None:
        self._in_step = True
        if self._scaler is None:
            return
        scale = float(self._scaler.get_scale())
        if self._scale not in (0.0, scale):
            self.context.feedback_scale(scale / self._scale)
        self._scale = scale

    def _push(self, bucket: Any) -> Any:
        if self.error is not None:
            raise self.error
        buffer, ctx, lib = bucket.buffer(), self.context._ctx(), self.context._lib
        if buffer.layout is not torch.strided:
            raise ValueError("espresso.hook: sparse gradients are not supported: use nn.Embedding(sparse=False)")
        cuda = buffer.device.type == "cuda"
        stream = _abi.Stream()
        if cuda:
            device = _abi.Device(_abi.ESP_CUDA, buffer.device.index or 0)
            stream = _abi.Stream(device, torch.cuda.current_stream(buffer.device).cuda_stream)
        if not self._in_step:
            self._begin()
        at, tensors = buffer.data_ptr(), []
        for p in bucket.parameters():
            number = self._tensors.get(id(p))
            if number is None or self._dtypes[id(p)] != buffer.dtype:
                raise ValueError(
                    f"espresso.hook: DDP passed a gradient {tuple(p.shape)} of {buffer.dtype}, which espresso.DDP does "
                    "not know: construct it from this model, after all changes to parameters"
                )
            check(lib.esp_push(ctx, number, at, stream), ctx)
            tensors.append(number)
            at += p.numel() * buffer.element_size()
        future: Any = torch.futures.Future(devices=[buffer.device]) if cuda else torch.futures.Future()
        self._queue.put(_Bucket(tensors, buffer, future, bucket.is_last()))
        return future

    def _complete(self, bucket: _Bucket) -> None:
        try:
            if self.error is not None:
                raise self.error
            for number in bucket.tensors:
                self.context.wait(number)
            if self._scaler is not None:
                self._finite = self._finite and bool(torch.isfinite(bucket.buffer).all())
            if bucket.last:
                self.context.wait_all()
                if not self._finite:
                    self.context.discard_step()
                    self.skipped += 1
                self._finite, self._in_step = True, False
        except BaseException as error:
            self.error = error
            bucket.future.set_exception(error)
        else:
            bucket.future.set_result(bucket.buffer)

    def close(self) -> None:
        """Ends the waiter thread and closes the context, after backward(). The model cannot train any more."""
        if self._pid != os.getpid() or self._waiter is threading.current_thread():
            return
        self._queue.put(None)
        self._waiter.join()
        self.context.close()
        self.error = self.error or StateError("espresso.DDP: closed")


def _wait(state_of: "weakref.ref[DDP]", buckets: "queue.SimpleQueue[Optional[_Bucket]]") -> None:
    """The waiter thread: completes the buckets' futures in the order of their pushes."""
    while True:
        bucket = buckets.get()
        state = state_of()
        if bucket is None or state is None:
            return
        state._complete(bucket)
        del state, bucket


def hook(state: DDP, bucket):  # type: ignore[no-untyped-def]  # torch checks the types of its own build
    """The hook for DistributedDataParallel.register_comm_hook: `state` is an espresso.DDP, `bucket` a dist.GradBucket.

    Returns a Future of the bucket's tensor, which then has the means.
    """
    return state._push(bucket)


@atexit.register
def _close_all() -> None:
    for state in list(_states):
        if state._in_step and state.error is None:
            forget(state.context)  # the waiter uses it: other ranks learn of the exit from the closed connection
        else:
            state.close()
