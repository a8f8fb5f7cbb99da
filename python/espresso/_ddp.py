"""The communication hook for torch's DistributedDataParallel."""

from __future__ import annotations

import ctypes
import functools
import os
import socket
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

try:
    import torch
    import torch.distributed as dist
except ImportError as why:
    raise ImportError(
        f"espresso.DDP and espresso.hook need torch ({why}): pip install torch, or Debian's python3-torch"
    ) from None

from ._arrays import matrix_of, memory_of
from ._context import Allgather, Context, Worker
from ._library import StateError, check

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def optimizer_of(optimizer: Any) -> Tuple[str, float]:
    """Returns the name and the momentum by which strategy "auto" rates codecs."""
    kinds = {c.__name__ for c in type(optimizer).__mro__}
    group = optimizer.param_groups[0] if optimizer else {}
    if "SGD" in kinds:
        return ("momentum", float(group["momentum"])) if group.get("momentum") else ("sgd", 0.0)
    if kinds & {"Adam", "AdamW", "NAdam", "RAdam", "Adamax"}:
        return "adam", float(group["betas"][0]) or -1.0
    return ("adam", -1.0) if kinds & {"RMSprop", "Adagrad"} else ("unknown", 0.0)


def several_hosts(gather: Allgather) -> Optional[str]:
    """Returns the backend for ranks on several hosts, or None if they are on one, or $ESPRESSO_BACKEND chooses."""
    here = socket.gethostname() + (_BOOT.read_text() if _BOOT.exists() else "")
    if len(set(gather(here.encode()))) < 2 or "ESPRESSO_BACKEND" in os.environ:
        return None
    iface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    return f"levels:intra=(shm),inter=(gloo{':iface=' + iface if iface else ''})"


def _matrix(p: torch.Tensor) -> Tuple[int, int]:
    """Rows and columns of a parameter's memory: the dimension with the largest stride has the rows."""
    return matrix_of([n for _, n in sorted(zip(p.stride(), p.shape), key=lambda dimension: -dimension[0])])


class Averager:
    """What espresso.DDP and espresso.FSDP have in common: `context`, and states of their own for each rank."""

    def __init__(self, codecs: Any, strategy: Optional[str], optimizer: Any, group: Any, **config: Any) -> None:
        def gather(mine: bytes) -> List[bytes]:
            parts: List[Any] = [None] * size
            dist.all_gather_object(parts, mine, group=group)
            return parts

        kind, momentum = optimizer_of(optimizer)
        if not config.pop("alone", False):
            config.update(rank=dist.get_rank(group), size=(size := dist.get_world_size(group)), allgather=gather)
            config.setdefault("backend", several_hosts(gather))
        self.context = Context(codecs, strategy, optimizer=kind, momentum=momentum, **config)

    def state_dict(self) -> Dict[str, Any]:
        """Returns what this rank must save to resume with the same bits. All ranks call it together, after backward().

        Context.state_save(path) writes files that another number of ranks may load.
        """
        state = torch.frombuffer(bytearray(self.context.state()), dtype=torch.uint8)
        return {"version": 1, "rank": self.context.rank, "size": self.context.size, "state": state}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Loads what state_dict() returned on this rank. All ranks call it together, before backward()."""
        mine = {"version": 1, "rank": self.context.rank, "size": self.context.size}
        for key, expected in mine.items():
            if state.get(key) != expected:
                raise ValueError(
                    f"espresso: the state has {key} {state.get(key)}, expected {expected}: each rank loads what it "
                    "saved (context.state_load loads files of another number of ranks)"
                )
        saved = state["state"].contiguous()
        self.context.load_state(ctypes.string_at(saved.data_ptr(), saved.numel()))

    def close(self) -> None:
        """Closes the context, after backward(). The model cannot train any more."""
        self.context.close()

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("espresso: this cannot be pickled: save state_dict(), and construct it again from the model")


class DDP(Averager):
    """The state of espresso.hook: averages and compresses the gradients of a DistributedDataParallel model.

        state = espresso.DDP(model, codecs=["int4", "topk:ratio=0.01"], strategy="auto", optimizer=optimizer)
        model.register_comm_hook(state, espresso.hook)

    All ranks of the model's process group construct it. Tensors are the model's parameters, known by their names.
    `optimizer` tells strategy "auto" which codecs are safe. `scaler` is the GradScaler: feedback then follows its
    scale, and a step that it skips leaves feedback unchanged, for which the library reads each mean once more, and
    keeps a copy of the residuals. Other keywords are those of Context. If averaging fails, backward() raises a
    RuntimeError with the text of the exception, which `error` has.
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
        group = group if group is not None else getattr(model, "process_group", None)
        scaled = scaler is not None and bool(scaler.is_enabled())
        self.error: Optional[BaseException] = None
        # by the id() of parameters, which are kept so that no other object gets it: number, dtype
        self._tensors: Dict[int, Tuple[int, torch.dtype, torch.Tensor]] = {}
        parameters, self._worker = self._named(model), Worker()
        super().__init__(codecs, strategy, optimizer, group, discardable=scaled, worker=self._worker, **config)
        try:
            mixed = getattr(model, "mixed_precision", None)
            reduced = getattr(mixed, "reduce_dtype", None) or getattr(mixed, "param_dtype", None)
            for name, p in parameters:
                like = torch.empty(p.numel(), dtype=reduced or p.dtype, device=p.device)
                self._tensors[id(p)] = self.context.add(name, like, matrix=_matrix(p)), like.dtype, p
            self.context.start()
        except BaseException:
            self.close()
            raise
        self._scaler = scaler if scaled else None
        self._scale = 0.0  # the scale of the residuals
        self._finite, self._in_step = True, False
        self.skipped = 0  # steps whose feedback was taken back

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

    # ---- a step
    def _begin(self) -> None:
        self._in_step = True
        scale = float(self._scaler.get_scale()) if self._scaler else 0.0
        if self._scale not in (0.0, scale):
            self.context.feedback_scale(scale / self._scale)
        self._scale = scale

    def _push(self, bucket: Any) -> Any:
        if self.error is not None:
            raise self.error
        buffer, ctx, lib = bucket.buffer(), self.context._ctx(), self.context._lib
        stream = memory_of(buffer, "the bucket").stream
        if not self._in_step:
            self._begin()
        at, tensors = buffer.data_ptr(), []
        for p in bucket.parameters():
            number, dtype, _ = self._tensors.get(id(p), (0, None, None))
            if dtype != buffer.dtype:
                raise ValueError(
                    f"espresso.hook: DDP passed a gradient {tuple(p.shape)} of {buffer.dtype}, which espresso.DDP does "
                    "not know: construct it from this model, after all changes to parameters"
                )
            check(lib.esp_push(ctx, number, at, stream), ctx)
            tensors.append(number)
            at += p.numel() * buffer.element_size()
        future: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._worker.do(functools.partial(self._complete, tensors, buffer, future, bucket.is_last()))
        return future

    def _complete(self, tensors: List[int], buffer: torch.Tensor, future: Any, last: bool) -> None:
        try:
            if self.error is not None:
                raise self.error
            for number in tensors:
                self.context.wait(number)
            if self._scaler is not None:
                self._finite = self._finite and bool(torch.isfinite(buffer).all())
            if last:
                self.context.wait_all()
                if not self._finite:
                    self.context.discard_step()
                    self.skipped += 1
                self._finite, self._in_step = True, False
        except BaseException as error:
            self.error = error
            future.set_exception(error)
        else:
            future.set_result(buffer)

    def report_loss(self, loss: Any) -> None:
        """Reports the training loss (a number, or a tensor with one), by which strategy "auto" checks its choice."""
        self.context.report_loss(float(loss))

    def close(self) -> None:
        """Closes the context, after backward(). The model cannot train any more."""
        self._worker.close()
        self.context.close()
        self.error = self.error or StateError("espresso.DDP: closed")


def hook(state: DDP, bucket):  # type: ignore[no-untyped-def]  # torch checks the types of its own build
    """The hook for DistributedDataParallel.register_comm_hook: `state` is an espresso.DDP."""
    return state._push(bucket)
