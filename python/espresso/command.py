"""The command `espresso`: starts the program that the wheel carries, or the checkout's."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Optional

from ._library import roots

MISSING = (
    "espresso: the command was not built: it needs jansson (Debian: libjansson-dev); then run pip install ./python "
    "again, or make tools in the checkout"
)


def path() -> Optional[str]:
    """Returns the program's path, or None if it is not there."""
    own = os.path.realpath(sys.argv[0])
    for root in roots():
        program = root / "bin" / "espresso"
        if program.exists():
            return str(program)
    found = shutil.which("espresso")
    return found if found and os.path.realpath(found) != own else None


def main() -> int:
    """Replaces this process by the command, with the same arguments."""
    program = path()
    if not program:
        print(MISSING, file=sys.stderr)
        return 127
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
