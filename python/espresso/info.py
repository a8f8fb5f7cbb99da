"""python -m espresso.info: prints the versions, paths, codecs and backends that this installation has."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

from ._abi import ESPRESSO_VERSION
from ._library import LibraryMissing, library, library_path
from .command import path

_USES = {"numpy": "arrays", "torch": "espresso.DDP"}


def _module(name: str) -> str:
    try:
        return str(importlib.import_module(name).__version__)
    except ImportError:
        return f"not there (for {_USES[name]}: pip install {name}, or Debian's python3-{name})"


def main() -> int:
    """Prints the report; returns 1 if the library is missing."""
    print(f"espresso    {ESPRESSO_VERSION}, {Path(__file__).parent}")
    print(f"python      {sys.version.split()[0]}")
    for name in _USES:
        print(f"{name:<11} {_module(name)}")
    try:
        abi = library().esp_abi_version()
    except LibraryMissing as why:
        print(why)
        return 1
    folder = Path(library_path()).resolve().parent / "espresso"
    plugins = sorted(p.name[len("libespresso-") : -3] for p in folder.glob("libespresso-*.so"))
    print(f"library     {library_path()}, plugin ABI {abi >> 16}.{abi & 0xFFFF}")
    print(f"plugins     {' '.join(plugins) or 'none'}")
    program = path()
    print(f"command     {program or 'not there: it needs libjansson-dev when it is built'}", flush=True)
    if program:
        subprocess.run([program, "plugins"], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
