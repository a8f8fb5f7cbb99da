"""The gradients of FSDP2 models: averages them over the ranks that share them, or over machines (HSDP)."""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import torch
import torch.distributed as dist

from ._arrays import DTYPES, memory_of
from ._ddp import Averager

_Tensor = Tuple[str, int, str, str]  # name, count, dtype, device


class FSDP(Averager):
    """Averages the gradients of an FSDP2 model, in place of torch's reduce-scatter (torch 2.15):

        for layer in layers: fully_shard(layer)
        fully_shard(model)
        state = espresso.FSDP(model, codecs="int8")

    Or, with `group`, averages shards over the ranks that have the same shard on other machines (HSDP; torch 2.8):

        mesh = init_device_mesh("cuda", (machines, ranks), mesh_dim_names=("replicate", "shard"))
        ...  # fully_shard(..., mesh=mesh["shard"])
        state = espresso.FSDP(model, codecs="int8", group=mesh["replicate"].get_group())

    Each module of fully_shard is a flat tensor, known by its name. Torch averages the first step, which tells sizes and
    order. Each module waits for its mean, so strategies that merge tensors, as "auto" does, do not work.
    """

    def __init__(
        self,
        model: Any,
        codecs: Union[None, str, Iterable[str]] = None,
        strategy: Optional[str] = None,
        optimizer: Any = None,
        *,
        group: Any = None,
        **config: Union[str, int, None],
    ) -> None:
        if strategy is not None and strategy.startswith("auto"):
            raise ValueError('espresso.FSDP: strategy "auto" merges tensors, which FSDP cannot await: use "layerwise"')
        setter = "set_custom_reduce_scatter" if group is None else "set_all_reduce_hook"
        modules = [(name or "root", m) for name, m in model.named_modules() if hasattr(m, setter)]
        if not modules:
            raise ValueError(f"espresso.FSDP: no module has {setter}: call fully_shard before (torch 2.8, 2.15)")
        self._sharded, self._started = group is None, False
        self._group = next(model.parameters()).device_mesh.get_group() if group is None else group
        self._seen: Dict[str, _Tensor] = {}
        self._pushed: List[str] = []
        self._order: List[int] = []  # the ranks, in the order of their parts
        super().__init__(codecs, strategy, optimizer, self._group, **config)
        for name, module in modules:
            reduce: Any = functools.partial(self._scatter if self._sharded else self._reduce, name)
            reduce.allocate = torch.empty  # set_custom_reduce_scatter() takes an object with this method
            getattr(module, setter)(reduce)

    def _start(self, tensors: Iterable[_Tensor]) -> None:
        self._seen = {tensor[0]: tensor for tensor in tensors}
        for tensor in self._seen.values():
            self.context.add(tensor[0], self._like(tensor), shard=self._sharded)
        self.context.start()
        self._started, ranks = True, range(self.context.size)
        parts = [self.context.part(0, r) for r in ranks]
        self._order = sorted(ranks, key=lambda r: parts[r].start)
        if self._sharded and len({part.stop - part.start for part in parts}) > 1:
            raise ValueError("espresso.FSDP: machines must have equal numbers of ranks")

    @staticmethod
    def _like(tensor: _Tensor) -> torch.Tensor:
        return torch.empty(tensor[1], dtype=getattr(torch, tensor[2]), device=tensor[3])

    def _first(self, name: str, x: torch.Tensor) -> bool:
        """Is this the first step, which torch averages?"""
        if not self._started and name in self._seen:
            self._start(list(self._seen.values()))
        if not self._started:
            dtype = memory_of(x, f"the gradient of {name}", DTYPES).dtype
            self._seen[name] = (name, x.numel(), dtype, str(x.device))
        return not self._started

    def _average(self, name: str, x: torch.Tensor) -> None:
        if name in self._pushed:  # modules that this step did not use: zeros on all ranks
            self._end()
        self.context.push(name, x)
        self.context.wait(name)
        self._pushed.append(name)
        if len(self._pushed) == len(self._seen):
            self._end()

    def _reduce(self, name: str, x: torch.Tensor) -> None:
        if self._first(name, x):
            dist.all_reduce(x, group=self._group)
            x.div_(self.context.size)
        else:
            self._average(name, x)

    def _scatter(
        self, name: str, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, **_: Any
    ) -> None:
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise ValueError("espresso.FSDP: set_gradient_divide_factor() is not supported")
        x = input_tensor
        if self._first(name, x):
            dist.reduce_scatter_tensor(output_tensor, x, op=op, group=group)
            return
        if self._order != sorted(self._order):  # the library gives ranks other parts than torch does
            x = x.view(self.context.size, -1)[self._order].flatten()
        self._average(name, x)
        output_tensor.copy_(x[self.context.part(name)])
        if op == dist.ReduceOp.SUM:
            output_tensor.mul_(self.context.size)

    def _end(self) -> None:
        for name, tensor in self._seen.items():
            if name not in self._pushed:
                self.context.push_zero(name, self._like(tensor))
        self.context.wait_all()
        self._pushed.clear()

    def state_dict(self) -> Dict[str, Any]:
        """As Averager.state_dict, after the first step."""
        return {"tensors": list(self._seen.values()), **super().state_dict()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """As Averager.load_state_dict, before the first step or between steps."""
        if not self._started:
            self._start([tuple(tensor) for tensor in state["tensors"]])
        super().load_state_dict(state)
