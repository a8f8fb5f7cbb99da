"""artifact.py [FOLDER]: is our plan ever slower than the strategies that were published with the Espresso paper, by our
simulator? Reads the strategy files of the paper's artifact (default: ../shared/artifact), and plans for the same model,
codec, links and machines, with fp16 allowed, which most of their strategies use, too; for the others, also without.
Writes bench/results/planner/artifact.csv (RESULT). Fails if a plan of ours is slower.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ESPRESSO = ROOT / os.environ.get("BUILD", "build") / "bin/espresso"
RESULT = pathlib.Path(os.environ.get("RESULT", ROOT / "bench/results/planner/artifact.csv"))


def step_ms(*args):
    """Returns the predicted step, or an error text."""
    r = subprocess.run([ESPRESSO, "plan", *args, "--json"], capture_output=True, text=True)
    return r.stderr.strip().split(": ", 2)[-1] if r.returncode else json.loads(r.stdout)["iteration_us"] / 1000


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared/artifact"
    files = sorted(folder.glob("*.json"))
    if not files:
        print(f"skip: the artifact's strategy files are not in {folder}")
        return 0
    head = subprocess.run(["sh", ROOT / "bench/head.sh"], capture_output=True, text=True, check=True).stdout
    lines = ["# bench/planner/artifact.py: steps that the simulator predicts for the strategies of the paper's artifact",
             head.strip(), "file,machines,fp32_ms,theirs_ms,ours_ms,ours_over_theirs,ours_without_fp16_ms"]
    slower, temporary = 0, tempfile.TemporaryDirectory()
    path = pathlib.Path(temporary.name) / "model.json"
    for file in files:
        job = json.loads(file.read_text())
        model = json.loads((ROOT / f"planner/models/{job['model'].replace('bert', 'bert-base')}.json").read_text())
        if len(model["tensors"]) == len(job["options"]):  # some names, and BERT's vocabulary, differ a little
            for t, name, size in zip(model["tensors"], job["tensor names"], job["tensor sizes"]):
                t.update(name=name, elements=size)
                t.pop("shape", None)
        model.pop("parameters", None)
        path.write_text(json.dumps(model))
        sparse = job["compressor"] in ("randomk", "dgc")
        codec = job["compressor"] + (f":ratio={job['comp_ratio'] / 2:g}" if sparse else "")
        for machines in (job["nodes"], 8):  # the paper's testbeds have 8
            inputs = ["--model", str(path), "--system", "paper-pcie" if job["PCIe"] else "paper-nvlink"]
            inputs += ["--machines", str(machines), "--gc", codec]
            both = [*inputs, "--gc", "fp16"]
            theirs = step_ms(*both, "--strategy", str(file))
            if isinstance(theirs, str):
                lines.append(f"# {file.stem}: not read: {theirs}")
                break
            fp32, ours, only = step_ms(*both, "--strategy", "fp32"), step_ms(*both), ""
            slower += ours > theirs
            if 1 not in job["options"]:  # theirs does without fp16, and so must ours
                alone = step_ms(*inputs)
                slower += alone > theirs
                only = f"{alone:.3f}"
            lines.append(f"{file.stem},{machines},{fp32:.3f},{theirs:.3f},{ours:.3f},{ours / theirs:.4f},{only}")
    RESULT.write_text("\n".join(lines) + "\n")
    print(RESULT.read_text() + f"slower than theirs: {slower}")
    return slower > 0


sys.exit(main())
