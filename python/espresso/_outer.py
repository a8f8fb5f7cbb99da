"""Outer loops for torch: ranks train alone, and now and then average how far their parameters have moved."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from typing import Any, Iterable, List, Optional, Union

import torch
import torch.distributed as dist

from . import _abi
from ._arrays import DTYPES, memory_of
from ._ddp import Averager


class Outer(Averager, AbstractContextManager["Outer"]):
    """Synchronizes a model by outer steps (DiLoCo, Streaming DiLoCo, SparseLoCo) instead of averaging gradients.

        with espresso.Outer(model, optimizer, method="diloco", every=30) as outer:
            for x, y in batches:
                ...; loss.backward(); optimizer.step()  # every 30th step changes the parameters on all ranks
            outer.sync()  # all ranks have the same parameters: to evaluate, to save, and at the end

    All ranks of `group` construct it; then all have the parameters of rank 0. It synchronizes the parameters that
    require gradients: float32, float16 or bfloat16, on the CPU or CUDA. Optimizer states and buffers stay each rank's
    own. `method` and the numbers are those of esp_outer_desc in espresso.h: 0 and None mean the method's, and without
    `method` parameters are averaged. `host` keeps the anchors of CUDA parameters in pinned host memory. `codecs`,
    `strategy` and other keywords are those of Context. Without `optimizer`, or with torch 1, which has no hooks for it,
    call step() after each optimizer step. Raises ArgumentError for numbers out of range. Without torch's process group,
    ranks meet as those of Context do; then all call context.reconfigure() between rounds, and others `join`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optional[torch.optim.Optimizer] = None,
        every: int = 0,
        codecs: Union[None, str, Iterable[str]] = None,
        strategy: Optional[str] = None,
        *,
        method: Optional[str] = None,
        fragments: int = 0,
        delay: int = 0,
        alpha: float = 0.0,
        lr: float = 0.0,
        momentum: float = 0.0,
        nesterov: bool = False,
        host: bool = False,
        group: Any = None,
        join: bool = False,
        **config: Union[str, int, None],
    ) -> None:
        if optimizer is not None and not hasattr(optimizer, "register_step_post_hook"):
            version = f"torch {torch.__version__}"
            raise ValueError(f"espresso: {version} has no optimizer hooks: leave out `optimizer`, and call step()")
        alone = join or not dist.is_initialized()
        super().__init__(codecs, strategy, optimizer, group, alone=alone, join=join, **config)
        self._hook: Any = None
        try:
            desc = _abi.OuterDesc(flags=int(host), method=method.encode() if method else None)
            desc.every, desc.fragments, desc.delay, desc.nesterov = every, fragments, delay, int(nesterov)
            desc.alpha, desc.lr, desc.momentum = alpha, lr, momentum
            self.context._call("esp_outer_open", ctypes.byref(desc))
            self._parameters: List[Any] = []
            for name, p in reversed([(n, p) for n, p in model.named_parameters() if p.requires_grad]):
                memory_of(p.data, f"parameter '{name}'", DTYPES)
                self.context.add(name, p.data)
                self._parameters.append(p)
            if not self._parameters:
                raise ValueError("espresso: the model has no parameter that requires a gradient")
            self.context.start()
            for p in [] if join else self._parameters:
                first = p.data.cpu()
                self.context.broadcast(first)
                p.data.copy_(first)
            self._pointers: List[int] = [0] * len(self._parameters)
            self._locate()
        except BaseException:
            self.context.close()
            raise
        if optimizer is not None:
            self._hook = optimizer.register_step_post_hook(lambda *_: self.step())

    def _locate(self) -> None:
        """Tells the library where parameters are that are new, or got other memory, as by load_state_dict()."""
        for number, p in enumerate(self._parameters):
            if p.data_ptr() != self._pointers[number]:
                pointer = memory_of(p.data, f"parameter {number}").pointer
                self.context._call("esp_outer_add", number, pointer)
                self._pointers[number] = pointer

    def _outer(self, call: str) -> None:
        self._locate()
        cuda = [p for p in self._parameters if p.is_cuda]
        self.context._call(call, memory_of((cuda or self._parameters)[0].data, "the model").stream)

    def step(self) -> None:
        """Counts an optimizer step, which the optimizer's hook does by itself; synchronizes what it is the turn of."""
        self._outer("esp_outer_step")

    def sync(self) -> None:
        """Ends the round early: afterwards all ranks have the same parameters, the same bits. Blocks."""
        self._outer("esp_outer_sync")

    def close(self) -> None:
        """Closes the context. The optimizer goes on alone."""
        if self._hook:
            self._hook.remove()
        self.context.close()

    def __exit__(self, *_: Any) -> None:
        self.close()
