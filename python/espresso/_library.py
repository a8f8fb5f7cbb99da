"""Finds and loads libespresso.so: $ESPRESSO_LIBRARY, the wheel's, the checkout's, or an installed one."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from pathlib import Path
from typing import Any, List, Optional

from ._abi import ESPRESSO_VERSION, FUNCTIONS
from ._errors import LibraryMissing, error_of

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "_native"  # in a wheel: bin, lib and share, as `make install` lays them out
_loaded: Optional[ctypes.CDLL] = None
_path = ""


def roots() -> List[Path]:
    """Returns the folders that may have lib/libespresso.so and bin/espresso: the wheel's, and the checkout's build."""
    found = [NATIVE]
    if (HERE.parent.parent / "espresso.h").exists():
        found.append(HERE.parent.parent / "build")
    return found


def _candidates() -> List[str]:
    own = os.environ.get("ESPRESSO_LIBRARY")
    if own:
        return [str(Path(own) / "libespresso.so") if os.path.isdir(own) else own]
    found = [str(root / "lib" / "libespresso.so") for root in roots()]
    found = [path for path in found if os.path.exists(path)]
    return found or [ctypes.util.find_library("espresso") or "libespresso.so.0"]


def library() -> Any:
    """Returns the loaded library, with its functions declared. Raises LibraryMissing."""
    global _loaded, _path
    if _loaded is not None:
        return _loaded
    path = _candidates()[0]
    try:
        loaded = ctypes.CDLL(path)
    except OSError as why:
        raise LibraryMissing(
            f"espresso: the library {path} cannot be loaded: {why}. Run `make lib` in the checkout, install a wheel "
            "(pip install ./python), or set ESPRESSO_LIBRARY to the file libespresso.so"
        ) from None
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise LibraryMissing(
                f"espresso: {path} has no function {name}: it is not of version {ESPRESSO_VERSION}, as this package "
                "is. Install both from one checkout, or set ESPRESSO_LIBRARY"
            ) from None
        function.restype, function.argtypes = result, arguments
    _loaded, _path = loaded, path
    return loaded


def library_path() -> str:
    """Returns the path from which the library was loaded. Raises LibraryMissing."""
    library()
    return _path


def check(status: int, ctx: Any = None) -> int:
    """Raises the exception of a status below 0, with the text of esp_last_error; else returns the status."""
    if status < 0:
        text = library().esp_last_error(ctx) or library().esp_status_text(status)
        raise error_of(status, text.decode(errors="replace"))
    return status
