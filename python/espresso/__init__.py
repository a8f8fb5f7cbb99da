"""Averages the gradients of data-parallel training, and compresses them where that saves time.

Context, push and wait work with numpy arrays and torch tensors; DDP and hook with torch's DistributedDataParallel:

    state = espresso.DDP(model, codecs=["int4", "topk:ratio=0.01"], strategy="auto", optimizer=optimizer)
    model.register_comm_hook(state, espresso.hook)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._abi import ESPRESSO_VERSION as __version__
from ._codec import Codec, compress, decompress
from ._context import Context, TensorStats
from ._errors import (
    ArgumentError,
    CanceledError,
    EspressoError,
    LibraryMissing,
    MismatchError,
    PeerError,
    PeerTimeout,
    StateError,
)
from ._library import library_path
from ._plan import Plan, plan

if TYPE_CHECKING:
    from ._ddp import DDP, hook
    from ._fsdp import FSDP

__all__ = [
    "ArgumentError", "CanceledError", "Codec", "Context", "DDP", "EspressoError", "FSDP", "LibraryMissing",
    "MismatchError", "PeerError", "PeerTimeout", "Plan", "StateError", "TensorStats", "__version__", "compress",
    "decompress", "hook", "library_path", "plan",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("DDP", "FSDP", "hook"):  # they need torch
        from . import _ddp, _fsdp

        return getattr(_fsdp if name == "FSDP" else _ddp, name)
    raise AttributeError(f"module 'espresso' has no attribute '{name}'")
