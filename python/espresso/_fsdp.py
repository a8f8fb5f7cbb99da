"""The all-reduce between machines of FSDP2 models that are sharded inside each machine (HSDP)."""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import torch
import torch.distributed as dist

from ._arrays import DTYPES, memory_of
from ._context import Context
from ._ddp import Averager, gather_in, optimizer_of, several_hosts

_Tensor = Tuple[str, int, str, str]  # name, count, dtype, device


def _like(tensor: _Tensor) -> Any:
    return torch.empty(tensor[1], dtype=getattr(torch, tensor[2]), device=tensor[3])


class FSDP(Averager):
    """Averages the gradients of an FSDP2 model over `group`: the ranks that have the same shard on other machines.

        mesh = init_device_mesh("cuda", (machines, ranks), mesh_dim_names=("replicate", "shard"))
        for layer in layers: fully_shard(layer, mesh=mesh["shard"])
        fully_shard(model, mesh=mesh["shard"])
        state = espresso.FSDP(model, codecs="int8", group=mesh["replicate"].get_group())

    Each module of fully_shard is a tensor, known by its name: its shard, flat. The first step is averaged by torch; it
    tells sizes and order. Each module waits for its mean, so strategy "auto" and files that merge tensors do not work:
    leave it out, or use "layerwise" or "fp32". Needs torch 2.8 or newer. Other keywords are those of Context.
    """

    def __init__(
        self,
        model: Any,
        codecs: Union[None, str, Iterable[str]] = None,
        strategy: Optional[str] = None,
        optimizer: Any = None,
        *,
        group: Any,
        **config: Union[str, int, None],
    ) -> None:
        if strategy is not None and strategy.startswith("auto"):
            raise ValueError('espresso.FSDP: strategy "auto" merges tensors, which FSDP cannot await: use "layerwise"')
        modules = [(name, m) for name, m in model.named_modules() if hasattr(m, "set_all_reduce_hook")]
        if not modules:
            raise ValueError("espresso.FSDP: no module has set_all_reduce_hook: call fully_shard before (torch 2.8)")
        size, (kind, momentum) = dist.get_world_size(group), optimizer_of(optimizer)
        config.setdefault("backend", several_hosts(group, size))
        self._group, self._started = group, False
        self._seen: Dict[str, _Tensor] = {}
        self._pushed: List[str] = []
        super().__init__(
            Context(
                codecs, strategy, rank=dist.get_rank(group), size=size, allgather=gather_in(group, size),
                optimizer=kind, momentum=momentum, discardable=False, **config,
            )
        )  # fmt: skip
        for name, module in modules:
            module.set_all_reduce_hook(functools.partial(self._reduce, name or "root"))

    def _start(self, tensors: Iterable[_Tensor]) -> None:
        self._seen = {tensor[0]: tensor for tensor in tensors}
        for tensor in self._seen.values():
            self.context.add(tensor[0], _like(tensor))
        self.context.start()
        self._started = True

    def _reduce(self, name: str, x: Any) -> None:
        if not self._started and name in self._seen:
            self._start(list(self._seen.values()))
        if not self._started:
            dtype = memory_of(x, f"the shard of {name}", DTYPES).dtype
            self._seen[name] = (name, x.numel(), dtype, str(x.device))
            dist.all_reduce(x, group=self._group)
            x.div_(self.context.size)
            return
        if name in self._pushed:  # modules that this step did not use: zeros on all ranks
            self._end()
        self.context.push(name, x)
        self.context.wait(name)
        self._pushed.append(name)
        if len(self._pushed) == len(self._seen):
            self._end()

    def _end(self) -> None:
        for name, tensor in self._seen.items():
            if name not in self._pushed:
                self.context.push_zero(name, _like(tensor))
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
