"""Averages the gradients of data-parallel training, and compresses them where that saves time.

Context, push and wait work with numpy arrays and torch tensors; DDP and hook with torch's DistributedDataParallel:

    state = espresso.DDP(model, codecs=["int4", "topk:ratio=0.01"], strategy="auto", optimizer=optimizer)
    model.register_comm_hook(state, espresso.hook)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ._abi import ESPRESSO_VERSION as __version__
from ._context import Codec, Context, TensorStats, compress, decompress
from ._library import (
    ArgumentError,
    CanceledError,
    EspressoError,
    LibraryMissing,
    MismatchError,
    PeerError,
    PeerTimeout,
    StateError,
    library_path,
)
from .command import Plan, plan

if TYPE_CHECKING:
    from ._ddp import DDP, hook
    from ._fsdp import FSDP
    from ._outer import Outer

__all__ = [
    "ArgumentError", "CanceledError", "Codec", "Context", "DDP", "EspressoError", "FSDP", "LibraryMissing",
    "MismatchError", "Outer", "PeerError", "PeerTimeout", "Plan", "StateError", "TensorStats", "__version__",
    "compress", "decompress", "hook", "library_path", "plan", "register",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("DDP", "FSDP", "Outer", "hook"):  # they need torch
        from . import _ddp, _fsdp, _outer

        return getattr({"FSDP": _fsdp, "Outer": _outer}.get(name, _ddp), name)
    raise AttributeError(f"module 'espresso' has no attribute '{name}'")


def register() -> None:
    """Tells torch (2.15) of backend "espresso". import does it, if torch was imported before, and an entry point."""
    from torch.distributed import Backend

    from ._group import Group

    Backend.register_backend("espresso", Group, extended_api=True, devices=["cpu"])


if hasattr(getattr(sys.modules.get("torch._C._distributed_c10d"), "Backend", None), "all_gather_single"):
    register()
