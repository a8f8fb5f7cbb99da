"""The command `espresso`: the program that the wheel carries, or the checkout's, and planning with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Union

from ._library import ArgumentError, roots

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


class Plan(NamedTuple):
    """A strategy, as the text of a strategy file, and the prediction for it, by the names of `espresso plan --json`."""

    strategy: str
    report: Dict[str, Any]


def _flags(settings: Dict[str, Any]) -> List[str]:
    flags: List[str] = []
    for name, value in settings.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is not None and one is not False:
                flags += ["--" + name.replace("_", "-")] + ([] if one is True else [str(one)])
    return flags


def plan(
    model: Union[str, Dict[str, Any]],
    codecs: Union[str, Iterable[str]],
    system: Union[str, Dict[str, Any]],
    **flags: Any,
) -> Plan:
    """Finds the fastest strategy for a model on a system, and predicts its step.

    `model` and `system` are names that come along ("bert-base", "paper-pcie"), paths of JSON files, or the contents of
    one. Keywords are the flags of `espresso plan`, with lists for those that may be repeated: machines=8,
    keep=["emb*=fp32"], max_error=0.2, no_merge=True, timeline="step.html" (a page that shows the step lane by lane).
    Set Context.strategy to the text. Raises ArgumentError with the command's message, and FileNotFoundError without it.
    """
    program = path()
    if not program:
        raise FileNotFoundError(MISSING)
    with tempfile.TemporaryDirectory(prefix="espresso-") as folder:
        inputs = []
        for name, value in (("model", model), ("system", system)):
            if isinstance(value, dict):
                file = Path(folder, name + ".json")
                file.write_text(json.dumps(value))
                value = str(file)
            inputs.append(value)
        out = Path(folder, "strategy")
        specs = [codecs] if isinstance(codecs, str) else list(codecs)
        command = [program, "plan", "--model", inputs[0], "--system", inputs[1], "--json", "-o", str(out)]
        done = subprocess.run([*command, *_flags({"gc": specs, **flags})], capture_output=True, text=True)
        if done.returncode:
            raise ArgumentError(done.stderr.strip())
        return Plan(out.read_text(), json.loads(done.stdout))


def main() -> int:
    """Replaces this process by the command, with the same arguments."""
    program = path()
    if not program:
        print(MISSING, file=sys.stderr)
        return 127
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
