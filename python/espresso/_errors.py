"""Errors of the library as Python exceptions: one class for each status."""

from __future__ import annotations

from typing import Dict, Type

from ._abi import STATUS


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


_classes: Dict[str, Type[EspressoError]] = {
    "ESP_E_ARG": ArgumentError,
    "ESP_E_STATE": StateError,
    "ESP_E_PEER": PeerError,
    "ESP_E_TIMEOUT": PeerTimeout,
    "ESP_E_MISMATCH": MismatchError,
    "ESP_E_CANCELED": CanceledError,
}


def error_of(status: int, text: str) -> EspressoError:
    """Returns the exception for a status below 0."""
    name = next((n for n, value in STATUS.items() if value == status), str(status))
    error = _classes.get(name, EspressoError)(f"{text} ({name})")
    error.status, error.name = status, name
    return error
