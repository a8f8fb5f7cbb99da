"""Finds and loads libespresso.so: $ESPRESSO_LIBRARY, the wheel's, the checkout's, or an installed one."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
from pathlib import Path
from typing import Any, List

from ._abi import ESPRESSO_VERSION, FUNCTIONS, STATUS

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "_native"  # in a wheel: bin, lib and share, as `make install` lays them out


class EspressoError(RuntimeError):
    """A call of the library failed. `status` is its number (ESP_E_*), `name` its name; the text says what to do."""

    status = 0
    name = "ESP_OK"


class ArgumentError(EspressoError, ValueError):
    """An argument is wrong (ESP_E_ARG)."""


class StateError(EspressoError):
    """The call is not allowed now (ESP_E_STATE), such as adding a tensor after start()."""


class PeerError(EspressoError):
    """A rank died or left (ESP_E_PEER)."""


class PeerTimeout(EspressoError, TimeoutError):
    """A rank did not answer in time (ESP_E_TIMEOUT)."""


class MismatchError(EspressoError):
    """Ranks disagree, or a saved state belongs to another model (ESP_E_MISMATCH)."""


class CanceledError(EspressoError):
    """The step was canceled (ESP_E_CANCELED)."""


class LibraryMissing(ImportError):
    """libespresso.so is not there, or has another version; the text says how to get it."""


_NAMES = "ESP_E_ARG ESP_E_STATE ESP_E_PEER ESP_E_TIMEOUT ESP_E_MISMATCH ESP_E_CANCELED".split()
_CLASSES = dict(zip(_NAMES, (ArgumentError, StateError, PeerError, PeerTimeout, MismatchError, CanceledError)))


def roots() -> List[Path]:
    """Returns the folders that may have lib/libespresso.so and bin/espresso: the wheel's, and the checkout's build."""
    checkout = HERE.parent.parent
    return [NATIVE] + ([checkout / "build"] if (checkout / "espresso.h").exists() else [])


def _find() -> str:
    own = os.environ.get("ESPRESSO_LIBRARY")
    if own:
        return str(Path(own) / "libespresso.so") if os.path.isdir(own) else own
    found = [str(path) for root in roots() if (path := root / "lib" / "libespresso.so").exists()]
    return found[0] if found else ctypes.util.find_library("espresso") or "libespresso.so.0"


@functools.lru_cache(maxsize=None)
def library() -> Any:
    """Returns the loaded library, with its functions declared. Raises LibraryMissing."""
    path = _find()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as why:
        raise LibraryMissing(
            f"espresso: the library {path} cannot be loaded: {why}. Run `make lib` in the checkout, install a wheel "
            "(pip install ./python), or set ESPRESSO_LIBRARY to the file libespresso.so"
        ) from None
    for name, (result, *arguments) in FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise LibraryMissing(
                f"espresso: {path} has no function {name}: it is not of version {ESPRESSO_VERSION}, as this package "
                "is. Install both from one checkout, or set ESPRESSO_LIBRARY"
            ) from None
        function.restype, function.argtypes = result, arguments
    return loaded


def library_path() -> str:
    """Returns the path from which the library was loaded. Raises LibraryMissing."""
    return str(library()._name)


def check(status: int, ctx: Any = None) -> int:
    """Raises the exception of a status below 0, with the text of esp_last_error; else returns the status."""
    if status < 0:
        text = library().esp_last_error(ctx) or library().esp_status_text(status)
        name = next((n for n, value in STATUS.items() if value == status), str(status))
        error = _CLASSES.get(name, EspressoError)(f"{text.decode(errors='replace')} ({name})")
        error.status, error.name = status, name
        raise error
    return status
