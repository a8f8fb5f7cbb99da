#!/usr/bin/env python3
"""Plants faults in the CUDA kernels, one at a time, and checks whether the tests on the host detect them. A test tool; `make plant` runs it.

    plant.py [--jobs N] [--renew FILE] [PATTERN]     PATTERN: only faults whose line in the table has it
                                                     FILE: an earlier output. What was found then, in a line that is still
                                                     the same, is not planted again. So a run can be done in pieces

Each fault is planted in a copy of the sources: a barrier or a fence that is missing, a mask that lacks lane 31, an element too few at a
tail. The tests of that file's codecs run first, then all tests of the kernels; then, where nvcc is, those with its PTX (ptx/ptx.mk), which
alone see fences. Prints CSV (file, line, function, kind, the test that found it, the line), and which kernels have no fault of their own,
because all their work is in functions that have. Ends with status 1 if a fault does not compile, or is found by no test and KNOWN does not
say why."""
import argparse
import concurrent.futures
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
TESTS = ("test_codecs", "test_select", "test_rounds", "test_norm", "test_lowrank", "test_scan", "test_cuda_steps")
# by file: the codecs that test_codecs tests first, and a test for the file
FIRST = {"half.cu": ("fp16", "bf16"), "quant.cu": ("int8", "int4"), "blocks.h": ("int4", "maxmin", "qsgd", "onebit"), "sign.cu": ("signum", "mxnet1bit"), "dense.h": ("fp16", "int4", "twobit"),
         "tile.h": ("efsignsgd", "twobit"), "codec.h": ("none", "efsignsgd"), "memory.h": ("none", "topk"),
         "norm.h": ("test_norm", "efsignsgd"), "select.h": ("topk", "test_select"), "block.h": ("test_scan", "topk", "dgc", "chunktopk"),
         "serial.h": ("threelc", "inceptionn"), "adaptive_add.h": ("adaptive",),
         "sparse.h": ("topk", "dgc"), "lowrank.h": ("test_lowrank", "powersgd", "test_rounds"), "powersgd.cu": ("powersgd", "test_rounds"), "device.cu": ("test_cuda_steps",)}
WARP = r"(__(?:shfl|ballot|any|all|match|reduce|syncwarp)\w*\()0xFFFFFFFFu"
KINDS = (
    ("no barrier", re.compile(r"__sync(?:threads|warp)\(\);"), ";"),
    ("no barrier", re.compile(r"__syncthreads_or\("), "!!("),
    ("no fence", re.compile(r"__threadfence(?:_system)?\(\);"), ";"),
    ("wrong mask", re.compile(WARP), r"\g<1>0x7FFFFFFFu"),
    ("tail", re.compile(r"\b([a-z]\w*) < ([a-z]\w*); (\1 \+= ([^;()]+)\))"), r"\1 + \4 < \2; \3"),  # not the last step
    ("tail", re.compile(r"\b([\w.\[\]]+(?:->\w+)?) < ((?:p->|d->|a->)?(?:count|units|tiles|pieces|chunks|total|rows|cols))\b"), r"\1 + 1 < \2"),
    ("tail", re.compile(r"\b([a-z]\w*) < ((?:16 \* )?[a-z][^;?&|]*;)(?!\s*[a-z]+\+\+)"), r"\1 + 1 < \2"),  # a loop over elements
)
KERNEL = re.compile(r"\b(\w+)\((?:cuda_parts|cuda_sums|powersgd_parts|void \*dst)\b")
FUNCTION = re.compile(r"\b(\w+)\([^;]*$|\bstruct (\w+) {")  # a struct: what it has for a kernel
# faults that no test finds, and why: by the file's name, the kind, the function or a part of the line
KNOWN = (
    ("codec.h", "no fence", "cuda_found", "orders what the CPU sees, which reads it after the kernel's end"),
    ("codec.h", "tail", "if (stride < zero)", "both are multiples of 64"),
    ("lowrank.h", "tail", "if (left + width < x->n) continue;", "writes sums of all tiles but the last, which the last overwrites"),
    ("select.h", "tail", "CUDA_SELECT_ROOM < count", "a list that has room for all elements, or for 4 k, gives the same"),
    ("select.h", "tail", "root * root < rank", "no result depends on the sample"),
    ("select.h", "tail", "select_sample", "no result depends on the sample"),
    ("powersgd.cu", "tail", "i < p->m * p->r; i += CUDA_THREADS", "what is not finite there is not finite in Q, which is checked too"),
)
PTX, PTX_TESTS = "ptx-sm_90", ("test_codecs", "test_rounds", "test_select")
NO_BUILD = "does not compile"


def sources():
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split()
    kernels = [f for f in listed if re.match(r"codecs/cuda/(\w+/)?\w+\.(cu|h)$", f)]
    return listed, [f for f in kernels if os.path.basename(f) not in ("device.h", "plugin.cu")]


def functions(text):
    """Each line's function or struct, and whether that is a kernel: they begin and end in column 0."""
    name, kernel, inside = None, False, False
    for line in text:
        if not inside and line[0] not in " }#/\n":
            name, kernel = None, "__global__" in line
        found = None if inside or line.startswith("#") else (KERNEL if kernel else FUNCTION).search(line.split("/*")[0])
        if found and not name:
            name = found.group(1) or found.group(2)
        inside = (inside or line.rstrip().endswith("{")) and not line.startswith("}")
        yield name if inside else None, kernel


def faults(kernels):
    """(file, line number, function, kind, the line with the fault, the line), and the kernels that have none"""
    found, all_kernels = [], set()
    for f in kernels:
        with open(f, encoding="utf-8") as lines:
            text = list(lines)
        for number, (line, (name, kernel)) in enumerate(zip(text, functions(text)), 1):
            code, places = line.split("/*")[0], set()
            if kernel and name:
                all_kernels.add(name)
            if not name:
                continue
            for kind, pattern, instead in KINDS:
                for m in pattern.finditer(code):
                    if m.start() in places:
                        continue
                    places.add(m.start())
                    found.append((f, number, name, kind, line[:m.start()] + m.expand(instead) + line[m.end():], line.strip()))
    return found, sorted(all_kernels - {f[2] for f in found})


def run(folder, test, some, way="tests"):
    env = dict(os.environ, OMP_WAIT_POLICY="passive", TEST_ALL="1")
    if some:
        env["CODECS"] = some
    try:
        done = subprocess.run(["build/%s/cuda/%s" % (way, test)], cwd=folder, env=env, timeout=900, capture_output=True)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def firsts(file):
    name = os.path.basename(file)
    return FIRST.get(name, (name.removesuffix(".cu"),))


def build(folder, names):
    return subprocess.run(["make", "TESTS=1"] + ["build/tests/cuda/" + t for t in names], cwd=folder, capture_output=True).returncode == 0


def found_by(folder, file):
    """The first test that fails; None: none does."""
    if not build(folder, sorted({first if first.startswith("test_") else "test_codecs" for first in firsts(file)})):
        return NO_BUILD
    for first in firsts(file):
        test, some = (first, None) if first.startswith("test_") else ("test_codecs", first)
        if run(folder, test, some):
            return "%s (%s)" % (test, some) if some else test
    if not build(folder, TESTS):
        return NO_BUILD
    for test in TESTS:
        if run(folder, test, None):
            return test
    return found_in_ptx(folder, file) or found_by_asan(folder, file)


def found_in_ptx(folder, file):
    names = ["build/%s/cuda/%s" % (PTX, t) for t in PTX_TESTS]
    if "%s/cuda" % PTX not in subprocess.run(["make", "-n", "ptx-tests"], cwd=folder, capture_output=True, text=True).stdout:
        return None  # no nvcc
    if subprocess.run(["make", "-s"] + names, cwd=folder, capture_output=True).returncode:
        return NO_BUILD
    for first in firsts(file):
        if not first.startswith("test_") and run(folder, "test_codecs", first, PTX):
            return "%s/test_codecs (%s)" % (PTX, first)
    return next(("%s/%s" % (PTX, t) for t in PTX_TESTS if run(folder, t, None, PTX)), None)


def found_by_asan(folder, file):
    # accesses out of bounds may change no result: the first tests again, with the address sanitizer
    looks = firsts(file)
    if subprocess.run(["make", "TESTS=1", "build/asan/cuda/test_codecs"] + ["build/asan/cuda/" + t for t in looks if t.startswith("test_")],
                      cwd=folder, capture_output=True).returncode:
        return NO_BUILD
    for first in looks:
        test, some = (first, None) if first.startswith("test_") else ("test_codecs", first)
        if run(folder, test, some, "asan"):
            return "asan/" + test
    return None


def verdicts(name):
    """What an earlier output says: the tests that found the faults in each line, in the order of the table. None: not found."""
    old = {}
    if name:
        with open(name, encoding="utf-8", newline="") as f:
            for r in csv.DictReader(line for line in f if not line.startswith("#")):
                verdict = None if r["found_by"].lower() == "not found" or r["found_by"] == NO_BUILD else r["found_by"]
                old.setdefault((os.path.basename(r["file"]), r["function"], r["kind"], r["source"]), []).append(verdict)
    return old


def plant(folder, fault):
    file, number, _, kind, bad, _ = fault
    path = os.path.join(folder, file)
    with open(path, encoding="utf-8") as f:
        lines = f.readlines()
    good, lines[number - 1] = lines[number - 1], bad
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(lines)
    result = (found_in_ptx if kind == "no fence" else found_by)(folder, file)
    lines[number - 1] = good
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(lines)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="say what would be planted")
    parser.add_argument("--renew", metavar="FILE", help="do not plant again what this output of plant.py says was found")
    parser.add_argument("pattern", nargs="?", default="")
    args = parser.parse_args()
    listed, kernels = sources()
    planted, without = faults(kernels)
    todo = [f for f in planted if args.pattern in "%s:%d %s %s %s" % (f[:4] + f[5:])]
    if args.list:
        for f in todo:
            print("%s:%d %s, %s: %s" % (f[:4] + f[5:]))
        print("kernels without a fault of their own: " + ", ".join(without))
        return
    if not todo:
        sys.exit("no line has '%s'" % args.pattern)
    work = tempfile.mkdtemp(prefix="plant-")
    try:
        folders = [os.path.join(work, str(k)) for k in range(max(1, min(args.jobs, len(todo))))]
        for folder in folders:
            for f in listed:
                os.makedirs(os.path.join(folder, os.path.dirname(f)), exist_ok=True)
                shutil.copy2(f, os.path.join(folder, f))
            if not build(folder, TESTS):
                sys.exit("the tests of the kernels do not compile as they are")
        free = list(folders)

        old = verdicts(args.renew)

        def one(fault):
            before = old.get((os.path.basename(fault[0]), fault[2], fault[3], fault[5]))
            found = before.pop(0) if before else None
            if found:
                return found
            folder = free.pop()
            try:
                return plant(folder, fault)
            finally:
                free.append(folder)
        missed = known = useless = 0
        print("# make plant: faults planted in the CUDA kernels, one at a time, and the test of the host runtime that found each")
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["file", "line", "function", "kind", "found_by", "why_not", "source"])
        with concurrent.futures.ThreadPoolExecutor(len(folders)) as pool:
            for (file, number, name, kind, _, line), test in zip(todo, pool.map(one, todo)):
                useless += test == NO_BUILD
                why = next((k[3] for k in KNOWN if file.endswith(k[0]) and k[1] == kind and (k[2] == name or k[2] in line)), None)
                if test is None:
                    known, missed = known + (why is not None), missed + (why is None)
                    test = "not found" if why else "NOT FOUND"
                writer.writerow([file, number, name, kind, test, why if why and test == "not found" else "", line])
                sys.stdout.flush()
        print("# %d faults: %d found, %d not found, of which KNOWN says why of %d; %d do not compile"
              % (len(todo), len(todo) - missed - known - useless, missed + known, known, useless))
        print("# kernels without a fault of their own: " + ", ".join(without))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(missed + useless > 0)


if __name__ == "__main__":
    main()
