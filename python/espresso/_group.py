"""Backend "espresso" of torch.distributed for tensors on CPUs: init_process_group("cpu:espresso").

All its operations are exact: what espresso.DDP and espresso.FSDP compress goes through contexts of their own.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any, Callable, List, Optional, Set

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from ._context import Context, Worker
from ._ddp import several_hosts

_FUNCTIONS = {"PRODUCT": "mul", "MIN": "minimum", "MAX": "maximum"}
_FUNCTIONS.update(BAND="bitwise_and", BOR="bitwise_or", BXOR="bitwise_xor")  # of the others, the sum
_Work: Any = dist._Work  # type: ignore[name-defined, attr-defined]
_Tensors = List[torch.Tensor]
_groups: "Set[Group]" = set()  # c10d keeps only their C++ half


class Operation(_Work):
    """An operation under way. c10d asks Python for wait() and get_future() only."""

    def __init__(self, future: Any) -> None:
        super().__init__()
        self.get_future: Callable[[], Any] = lambda: future

    def wait(self, _timeout: Any = None) -> bool:
        self.get_future().wait()
        return True


def _operation(call: Callable[..., None]) -> Callable[..., Operation]:
    """Makes a method the worker's: it returns at once, and its first argument becomes the future's value."""
    return lambda self, *arguments: self._do(self._worker.do, call, *arguments)


class Group(Backend):
    """A process group, whose operations a thread makes in the order of their calls. The first one opens its context."""

    # torch 2.15 recurses without end in the properties of its own class
    supports_splitting = supports_coalescing = supports_shrinking = supports_reconfigure = supports_window = False

    def __init__(self, options: Any, _backend_options: Any = None) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._store, self._timeout = options.store, options.timeout
        self._context: Optional[Context] = None
        self._worker, self._turns = Worker(), Counter[str]()
        _groups.add(self)

    def getBackendName(self) -> str:
        return "espresso"

    def shutdown(self) -> None:
        _groups.discard(self)
        self._worker.close()
        if self._context:
            self._context.close()

    def _do(self, start: Callable[..., Any], call: Callable[..., None], *arguments: Any) -> Operation:
        future: Any = torch.futures.Future()

        def run() -> None:
            try:
                with torch.inference_mode():
                    call(self, *arguments)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(arguments[0])

        # the worker's own thread calls in callbacks of other operations, which may wait for this one
        if threading.current_thread() is self._worker.thread:
            run()
        else:
            start(run)
        return Operation(future)

    def _key(self, *way: Any) -> str:
        """Returns a key of the store that both ends count."""
        self._turns[str(way)] += 1
        return f"{way} {self._turns[str(way)]}"

    def _exchange(self, mine: bytes) -> List[bytes]:
        keys = [self._key(r) for r in range(self.size())]
        self._store.set(keys[self.rank()], mine)
        return [self._get(key) for key in keys]

    def _get(self, key: str) -> bytes:
        end = time.monotonic() + self._timeout.total_seconds()
        while not self._store.check([key]):  # get() would keep other threads from the store
            if time.monotonic() > end:
                raise TimeoutError(f"espresso: after the timeout of {self._timeout}, nothing came for {key}")
            time.sleep(0.0005)
        return bytes(self._store.get(key))

    def _ctx(self) -> Context:
        if self._context is None:
            self._context = Context(
                rank=self.rank(), size=self.size(), allgather=self._exchange, backend=several_hosts(self._exchange),
                timeout_ms=self._timeout // timedelta(milliseconds=1), worker=self._worker,
            )  # fmt: skip
            self._context.add("none", count=1)  # start() wants a tensor
            self._context.start()
        return self._context

    # ---- collectives are made of these
    def _from(self, root: int, x: torch.Tensor) -> torch.Tensor:
        """Returns rank `root`'s `x`. Only there its contents matter."""
        whole = x.contiguous()
        self._ctx().broadcast(whole, root)
        return whole

    def _each(self, x: torch.Tensor) -> _Tensors:
        """Returns every rank's `x`, which has the same size on all."""
        return [self._from(r, x if r == self.rank() else x.new_empty(x.shape)) for r in range(self.size())]

    def _reduced(self, x: torch.Tensor, op: Any) -> torch.Tensor:
        """Returns the reduction of every rank's `x`, for which it may overwrite `x`."""
        name = op.op.name
        if name == "PREMUL_SUM":
            x = x * op.factor
        if name not in _FUNCTIONS and x.dtype in (torch.float32, torch.float16, torch.bfloat16):
            total = x.float().contiguous()
            self._ctx().allreduce(total)
        else:
            total = functools.reduce(getattr(torch, _FUNCTIONS.get(name, "add")), self._each(x))
        return total / self.size() if name == "AVG" else total

    # ---- what c10d calls
    @_operation
    def barrier(self, _opts: Any) -> None:
        self._ctx().barrier()

    @_operation
    def broadcast(self, tensors: _Tensors, opts: Any) -> None:
        for x in tensors:
            x.copy_(self._from(opts.rootRank, x))

    @_operation
    def allreduce(self, tensors: _Tensors, opts: Any) -> None:
        for x in tensors:
            x.copy_(self._reduced(x, opts.reduceOp))

    @_operation
    def allgather(self, outputs: List[_Tensors], inputs: _Tensors, _opts: Any) -> None:
        for i, x in enumerate(inputs):
            parts = self._each(x)
            for out, part in zip(outputs[i] if outputs else (), parts):
                out.copy_(part.view_as(out))

    def allgather_coalesced(self, outputs: List[_Tensors], inputs: _Tensors, opts: Any) -> Operation:
        return self.allgather([[row[i] for row in outputs] for i in range(len(inputs))], inputs, opts)

    def all_gather_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any) -> Operation:
        return self.allgather([list(x.view(self.size(), -1)) for x in outputs], inputs, opts)

    def all_gather_single(self, output: torch.Tensor, x: torch.Tensor, opts: Any) -> Operation:
        return self.all_gather_single_coalesced([output], [x], opts)

    @_operation
    def scatter(self, outputs: _Tensors, inputs: List[_Tensors], opts: Any) -> None:
        for i, out in enumerate(outputs):
            mine = self.rank() == opts.rootRank
            whole = torch.stack(inputs[i]) if mine else out.new_empty((self.size(), *out.shape))
            out.copy_(self._from(opts.rootRank, whole)[self.rank()])

    @_operation
    def reduce_scatter(self, outputs: _Tensors, inputs: List[_Tensors], opts: Any) -> None:
        for out, parts in zip(outputs, inputs):
            total = self._reduced(torch.cat([x.reshape(-1) for x in parts]), opts.reduceOp)
            out.copy_(total.split_with_sizes([x.numel() for x in parts])[self.rank()].view_as(out))

    def reduce_scatter_single_coalesced(self, outputs: _Tensors, inputs: _Tensors, opts: Any) -> Operation:
        return self.reduce_scatter(outputs, [list(x.reshape(self.size(), -1)) for x in inputs], opts)

    def reduce_scatter_single(self, output: torch.Tensor, x: torch.Tensor, opts: Any) -> Operation:
        return self.reduce_scatter_single_coalesced([output], [x], opts)

    @_operation
    def alltoall(self, outputs: _Tensors, inputs: _Tensors, _opts: Any) -> None:
        mine = torch.cat([x.reshape(-1) for x in inputs])
        sizes = self._each(torch.tensor([x.numel() for x in inputs]))
        for r, out in enumerate(outputs):
            whole = self._from(r, mine if r == self.rank() else mine.new_empty(int(sizes[r].sum())))
            out.copy_(whole.split_with_sizes(sizes[r].tolist())[self.rank()].view_as(out))

    def all_to_all_single(self, output: torch.Tensor, x: torch.Tensor, into: Any, of: Any, opts: Any) -> Operation:
        n = self.size()
        parts = [y.split_with_sizes(sizes or [y.size(0) // n] * n) for y, sizes in ((output, into), (x, of))]
        return self.alltoall(list(parts[0]), list(parts[1]), opts)

    def send(self, tensors: _Tensors, to: int, tag: int) -> Operation:
        x = tensors[0].contiguous()
        self._store.set(self._key(self.rank(), to, tag), ctypes.string_at(x.data_ptr(), x.numel() * x.element_size()))
        return self._do(lambda run: run(), lambda *_: None, tensors)

    def recv(self, tensors: _Tensors, source: int, tag: int) -> Operation:
        key = self._key(source, self.rank(), tag)

        def receive(*_: Any) -> None:
            data = bytearray(self._get(key))
            self._store.delete_key(key)
            tensors[0].copy_(torch.frombuffer(data, dtype=tensors[0].dtype).view_as(tensors[0]))

        return self._do(lambda run: threading.Thread(target=run, daemon=True).start(), receive, tensors)

    reduce = allreduce_coalesced = allreduce
    gather = allgather
    _set_sequence_number_for_group: Any = lambda self: None  # these two for TORCH_DISTRIBUTED_DEBUG
    _get_sequence_number_for_group: Any = lambda self: 0
