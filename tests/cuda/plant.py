#!/usr/bin/env python3
"""Plants faults in the CUDA kernels, one at a time, and checks whether the tests on the host detect them. A test tool;
`make plant` runs it.

    plant.py [--jobs N] [--seconds N] [--quick] [--renew FILE] [PATTERN]
        PATTERN: only faults whose line in the table has it
        FILE: an earlier output. Faults in lines that are still the same keep their verdict, so a run can be done in
        pieces. --quick runs only the tests that find most; what they do not find stays undecided

The faults are a barrier or a fence that is missing, a mask that lacks lane 31, an element too few at a tail. All of
them are in one copy of the sources, $BUILD/plant, where the variable PLANT of the environment turns one of them on, so
the tests are built once. Tests of the file's codecs run first, then these with nvcc's PTX (ptx/ptx.mk), where nvcc is,
then those of all codecs that use the file, then the first ones under the address sanitizer. The PTX alone sees fences.
A test that needs ten times its usual processor time and ten seconds has found the fault, too.

Prints CSV (file, line, function, kind, the test that found it, why none does, the line), and which kernels have no
fault of their own, because all their work is in functions that have. Ends with status 1 if a fault is found by no test
and KNOWN does not say why."""
import argparse
import concurrent.futures
import csv
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
TESTS = ["test_select", "test_rounds", "test_norm", "test_lowrank", "test_scan", "test_cuda_steps"]  # after test_codecs
# by file: the codecs that test_codecs tests first, and a test for the file
FIRST = {"half.cu": ("fp16", "bf16"), "quant.cu": ("int8", "int4"), "blocks.h": ("int4", "maxmin", "qsgd", "onebit"), "sign.cu": ("signum", "mxnet1bit"), "dense.h": ("fp16", "int4", "twobit"),
         "tile.h": ("efsignsgd", "twobit"), "codec.h": ("none", "efsignsgd"), "memory.h": ("none", "topk"),
         "norm.h": ("test_norm", "efsignsgd"), "select.h": ("topk", "test_select"), "block.h": ("test_scan", "topk", "dgc", "chunktopk"),
         "serial.h": ("threelc", "inceptionn"), "adaptive_add.h": ("adaptive",),
         "sparse.h": ("topk", "dgc"), "lowrank.h": ("test_lowrank", "powersgd", "test_rounds"), "powersgd.cu": ("powersgd", "test_rounds"), "device.cu": ("test_cuda_steps",)}
# where a fault is, its kind, and what is written there: @ is the fault's number, and PLANT(@) asks whether it is on
WARP = r"__(?:shfl|ballot|any|all|match|reduce|syncwarp)\w*\((0xFFFFFFFFu)"
KINDS = (
    ("no barrier", re.compile(r"(__sync(?:threads|warp)\(\))(?=;)"), r"(PLANT(@) ? (void)0 : (void)\1)"),
    ("no barrier", re.compile(r"(__syncthreads_or\()"), "PLANT_OR(@, "),
    ("no fence", re.compile(r"(__threadfence(?:_system)?\(\))(?=;)"), r"(PLANT(@) ? (void)0 : (void)\1)"),
    ("wrong mask", re.compile(WARP), r"(PLANT(@) ? 0x7FFFFFFFu : \1)"),
    ("tail", re.compile(r"\b(([a-z]\w*)(?= < [a-z]\w*; \2 \+= ([^;(),]+)[,)]))"), r"\1 + (PLANT(@) ? \3 : 0)"),  # not the last step
    ("tail", re.compile(r"\b([\w.\[\]]+(?:->\w+)?)(?= < (?:(?:p->|d->|a->)?(?:count|units|tiles|pieces|chunks|total|rows|cols))\b)"),
     r"\1 + (PLANT(@) ? 1 : 0)"),
    ("tail", re.compile(r"\b([a-z]\w*)(?= < (?:(?:16 \* )?[a-z][^;?&|]*;)(?!\s*[a-z]+\+\+))"), r"\1 + (PLANT(@) ? 1 : 0)"),  # a loop over elements
)
PLANT_H = """#pragma once
#include <cuda_runtime.h>
#include <stdlib.h>
inline const int plant_fault = getenv("PLANT") ? atoi(getenv("PLANT")) : -1;
static __host__ __device__ __forceinline__ int plant_is(int n) {
#ifdef __CUDA_ARCH__
    int on;
    asm("mov.u32 %0, %%envreg0;" : "=r"(on));
    return on == n;
#else
    return plant_fault == n;
#endif
}
#define PLANT(n) plant_is(n)
#define PLANT_OR(n, x) (PLANT(n) ? !!(x) : __syncthreads_or(x))
"""
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
    ("device.cu", "tail", "cuda_copy2d", "for rows that begin 2 GiB apart, which no test has the memory for"),
    ("powersgd.cu", "tail", "i < p->m * p->r; i += CUDA_THREADS", "what is not finite there is not finite in Q, which is checked too"),
)
PTX, PTX_TESTS = "ptx-sm_90", ["test_codecs", "test_rounds", "test_select"]


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
    """(file, line number, function, kind, the line), which are numbered in this order, the kernels that have none, and the files' text with
    all faults"""
    found, all_kernels, planted = [], set(), {}
    for f in kernels:
        with open(f, encoding="utf-8") as lines:
            text = list(lines)
        bad = list(text)
        for number, (line, (name, kernel)) in enumerate(zip(text, functions(text)), 1):
            code, places = line.split("/*")[0], {}
            if kernel and name:
                all_kernels.add(name)
            if not name:
                continue
            for kind, pattern, instead in KINDS:
                for m in pattern.finditer(code):
                    if m.start() not in places:
                        places[m.start()] = (m.span(1), m.expand(instead.replace("@", str(len(found)))))
                        found.append((f, number, name, kind, line.strip()))
            for (begin, end), instead in sorted(places.values(), reverse=True):
                bad[number - 1] = bad[number - 1][:begin] + instead + bad[number - 1][end:]
        planted[f] = '#include "codecs/cuda/plant.h"\n' + "".join(bad)
    return found, sorted(all_kernels - {f[2] for f in found}), planted


class Planted:
    """A copy of the sources with all faults"""

    def __init__(self, folder, listed, texts):
        self.folder, self.texts, self.built, self.usual, self.lock = folder, texts, {}, {}, threading.Lock()
        texts = {**texts, "codecs/cuda/plant.h": PLANT_H}
        for f in listed + ["codecs/cuda/plant.h"]:
            to = os.path.join(folder, f)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            if f not in texts:
                shutil.copy2(f, to)
            elif not os.path.exists(to) or open(to, encoding="utf-8").read() != texts[f]:
                with open(to, "w", encoding="utf-8") as out:
                    out.write(texts[f])

    def make(self, *arguments):
        return subprocess.run(["make", "-s", "TESTS=1"] + list(arguments), cwd=self.folder, stdout=subprocess.DEVNULL).returncode == 0

    def build(self, way, test):
        """Is there such a program? The PTX is left out where nvcc is missing."""
        program = "build/%s/cuda/%s" % (way, test)
        with self.lock:
            if program not in self.built:
                have = way != PTX or bool(shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc"))
                if have and not self.make(program):
                    sys.exit("%s does not compile with the faults" % program)
                self.built[program] = have
            return self.built[program]

    def run(self, fault, way, test, some, every):
        """Does the test fail with this fault? every: with all repetitions"""
        key = (way, test, some, every)
        if not self.build(way, test):
            return False
        if fault >= 0 and key not in self.usual:
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            if self.run(-1, *key):
                sys.exit("%s/%s %s fails without a fault" % (way, test, some or ""))
            self.usual[key] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        env = dict(os.environ, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1", PLANT=str(fault))
        if every:
            env["TEST_ALL"] = "1"
        if some:
            env["CODECS"] = some
        seconds = int(10 * self.usual.get(key, 100) + 10)
        test = subprocess.Popen(["build/%s/cuda/%s" % (way, test)], cwd=self.folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                text=True, errors="replace", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds)))
        late = threading.Timer(900, test.kill)
        late.start()
        for line in test.stderr:
            if "[  FAILED  ]" in line:
                test.kill()  # further tests of the program would say no more
        late.cancel()
        return test.wait() != 0

    def users(self, file):
        """The names of the files whose kernels use this one"""
        using, more = {file}, True
        while more:
            including = {f for f in self.texts for u in using if '#include "%s"' % u in self.texts[f]}
            using, more = using | including, not including <= using
        return sorted(os.path.basename(f) for f in using if f.endswith(".cu"))

    def found_by(self, fault, file, kind, quick):
        """The first test that fails; None: none does. quick: none of the first ones does, without repetitions."""
        first = list(firsts(file))
        others = [n for u in self.users(file) for n in firsts(u) if n not in first]
        own = PTX if kind == "no fence" else "tests"
        looks = [(own, n, False) for n in first]
        if not quick:
            looks += [(PTX, n, False) for n in first if n in PTX_TESTS or not n.startswith("test_")]
            looks += [(own, n, True) for n in first + others + (TESTS if own != PTX else [])]
            looks += [(PTX, n, True) for n in first + others + PTX_TESTS]
            looks += [("asan", n, False) for n in first if own != PTX]
        for way, name, every in dict.fromkeys(looks):
            test, some = (name, None) if name.startswith("test_") else ("test_codecs", name)
            if (way != PTX or test in PTX_TESTS) and self.run(fault, way, test, some, every):
                return (way + "/" if way != "tests" else "") + (test + " (%s)" % some if some else test)
        return None


def firsts(file):
    name = os.path.basename(file)
    return FIRST.get(name, (name.removesuffix(".cu"),))


def why_not(file, name, kind, line):
    return next((k[3] for k in KNOWN if file.endswith(k[0]) and k[1] == kind and (k[2] == name or k[2] in line)), None)


def verdicts(name):
    """What an earlier output says: the tests that found the faults in each line, in the order of the table"""
    old = {}
    if name:
        with open(name, encoding="utf-8", newline="") as f:
            for r in csv.DictReader(line for line in f if not line.startswith("#")):
                old.setdefault((os.path.basename(r["file"]), r["function"], r["kind"], r["source"]), []).append(r["found_by"])
    return old


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="say what would be planted")
    parser.add_argument("--renew", metavar="FILE", help="print this earlier output again, with the verdicts that it lacks")
    parser.add_argument("--quick", action="store_true", help="run the first tests only; others' faults stay undecided")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more faults after this time")
    parser.add_argument("pattern", nargs="?", default="")
    args = parser.parse_args()
    listed, kernels = sources()
    all_faults, without, texts = faults(kernels)
    old = verdicts(args.renew)
    todo, kept = [], {}
    for n, (file, number, name, kind, line) in enumerate(all_faults):
        before = old.get((os.path.basename(file), name, kind, line))
        verdict = before.pop(0) if before else None
        if verdict and (verdict.lower() != "not found" or why_not(file, name, kind, line)):
            kept[n] = verdict
        elif args.pattern in "%s:%d %s %s %s" % (file, number, name, kind, line):
            todo.append(n)
    if args.list:
        for n in todo:
            print("%d %s:%d %s, %s: %s" % ((n,) + all_faults[n]))
        print("kernels without a fault of their own: " + ", ".join(without))
        return
    if not todo and not args.renew:
        sys.exit("no line has '%s'" % args.pattern)
    end = time.monotonic() + args.seconds
    copy = Planted(os.path.join(os.environ.get("BUILD", "build"), "plant"), listed, texts)
    missed = known = undecided = 0
    print("# make plant: faults planted in the CUDA kernels, one at a time, and the test of the host runtime that found each")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["file", "line", "function", "kind", "found_by", "why_not", "source"])

    def one(n):
        if n in kept:
            return kept[n]
        if n not in todo or time.monotonic() > end:
            return ""
        return copy.found_by(n, all_faults[n][0], all_faults[n][3], args.quick) or ("" if args.quick else "not found")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for (file, number, name, kind, line), test in zip(all_faults, pool.map(one, range(len(all_faults)))):
            why = why_not(file, name, kind, line) or "" if test == "not found" else ""
            undecided += not test
            known, missed = known + (why != ""), missed + (test == "not found" and not why)
            if test:
                writer.writerow([file, number, name, kind, test if test != "not found" or why else "NOT FOUND", why, line])
            sys.stdout.flush()
    print("# %d faults: %d found, %d not found, of which KNOWN says why of %d; %d are undecided"
          % (len(all_faults), len(all_faults) - missed - known - undecided, missed + known, known, undecided))
    print("# kernels without a fault of their own: " + ", ".join(without))
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
