"""auto_runs.py: the runs of bench/validate/auto: a case's trainer under auto, and under fixed strategies. Knows nothing
of targets."""
import json
import os
import re
import subprocess

import truth_runs
from truth_costs import CODECS, Problem, call, plain
from truth_rows import middle

FIXED = ["fp32"] + [f"layerwise {codec}" for codec in CODECS] + ["plan"]
WARM = truth_runs.WARM
LONGEST = 5000 # steps of a run of auto, which ends when it has made enough of them after its decision


class Stats:
    """A statistics file, which may still grow. samples: dicts; texts: {hash: the text of a strategy}."""
    def __init__(self, path):
        self.path, self.read, self.samples, self.texts = path, 0, [], {}

    def update(self):
        """Reads the lines that are new and whole."""
        if os.path.exists(self.path):
            with open(self.path, "rb") as f:
                f.seek(self.read)
                for line in f:
                    if not line.endswith(b"\n"):
                        break
                    self.read += len(line)
                    self.add(json.loads(line))
        return self

    def add(self, line):
        if line["kind"] == "strategy":
            self.texts[line["strategy"]] = line["text"]
        elif line["kind"] == "sample" and line["steps"]:
            self.samples.append(line)

    def decided(self):
        """The number of steps until auto had decided; None: it has not."""
        for s in self.samples:
            if s.get("phase", "").startswith("watching"):
                return s["step"] + 1
        return None

    def has(self, steps):
        """Whether there are so many steps after the decision."""
        return self.decided() is not None and self.samples[-1]["step"] >= self.decided() + steps

    def text(self):
        """The strategy that auto chose, or the only one that ran."""
        begin = self.decided() or 0
        return next(self.texts[s["strategy"]] for s in self.samples if s["step"] >= begin)

    def total(self, begin, end=1 << 60):
        """(ms, steps) of the samples that lie in the steps from begin up to, but not including, end."""
        use = [s for s in self.samples if s["step"] - s["steps"] + 1 >= begin and s["step"] < end]
        return sum(s["step_us"]["mean"] * s["steps"] for s in use) / 1e3, sum(s["steps"] for s in use)

    def mean(self, begin):
        ms, steps = self.total(begin)
        return ms / steps


def tensors(text):
    """The lines of a strategy without the order of operations."""
    return [line for line in text.split("\n") if not line.startswith("order ")]


class Runs:
    """Runs a case's trainer. texts: {name: text} of the strategies that ran or were chosen."""
    def __init__(self, tools, build, case):
        self.tools, self.build, self.case, self.texts = tools, build, case, {}
        self.stats = self.path(f"{os.getpid()}.stats.jsonl")
        self.plan = self.path("plan")
        truth_runs.plan(tools, case, CODECS, None, self.plan)

    def path(self, name):
        case = self.case
        return os.path.abspath(
            os.path.join(self.tools.work, plain(f"auto-{case.trainer.name}-{case.ranks}-{case.link}-{name}")))

    def run(self, words, env, enough=None):
        """Runs the trainer to its end, or until enough(Stats). Returns (Stats, output)."""
        stats = Stats(self.stats)
        env = {
            "ESPRESSO_STATS": f"{self.stats},every=10ms",
            "ESPRESSO_OPTIMIZER": "unknown", # the trainer's would let auto pass over fast codecs that harm the loss
            **env
        }
        try:
            out = call([self.tools.command, "run", *self.case.place(), "--no-prefix", "--", *words], env, 900,
                       enough and (lambda: enough(stats.update())), errors=True)
            return stats.update(), out
        finally:
            if os.path.exists(self.stats):
                os.remove(self.stats)

    def fixed(self, name, steps):
        """The median of the times of `steps` steps of one of FIXED, in ms."""
        env = {"ESPRESSO_STRATEGY": self.plan if name == "plan" else name.split(" ")[0]}
        if " " in name:
            env["ESPRESSO_CODEC"] = name.split(" ", 1)[1]
        stats, _ = self.run(self.case.trainer.words(WARM + steps), env)
        self.texts[name] = stats.text()
        return middle([s["step_us"]["mean"] / 1e3 for s in stats.samples if s["step"] >= WARM])

    def auto(self, steps):
        """Runs auto until `steps` steps after its decision. Returns (Stats, the name of what it chose)."""
        env = {
            "ESPRESSO_STRATEGY": "auto",
            "ESPRESSO_CODEC": ";".join(CODECS[:2]), # those that round are always allowed
            "ESPRESSO_LOG": "info"
        }
        stats, out = self.run(self.case.trainer.words(LONGEST), env, lambda stats: stats.has(steps))
        said = re.search(r"autopilot: step \d+: (?:chose ([^\n]*?): |(fp32) stays)", out)
        if stats.decided() is None or not said:
            raise Problem(f"{self.case}: auto had not decided after {LONGEST} steps")
        return stats, self.known(said[1] or said[2], stats.text())

    def known(self, said, text):
        """The name of a strategy that auto chose: that of an equal one, or a new one. Two choices count as equal if they
        differ only in the order of operations, which changes with each measurement."""
        name = f"auto's {said}"
        for old, other in self.texts.items():
            if other == text or (old not in FIXED and tensors(other) == tensors(text)):
                return old
        while name in self.texts:
            name += "'"
        self.texts[name] = text
        return name

    def turns(self, names, rounds, steps, draw):
        """Runs strategies in turns, in one job: in each round a block of steps of each, in random order. Returns a dict
        {name: ms} for each round."""
        files = {name: self.path(f"turn-{i}") for i, name in enumerate(names)}
        for name, path in files.items():
            with open(path, "w") as f:
                f.write(self.texts[name])
        order = [name for _ in range(rounds) for name in draw.sample(names, len(names))]
        blocks, times = self.path("blocks"), self.path("times")
        with open(blocks, "w") as f:
            f.write("\n".join([str(steps), *(files[name] for name in order)]) + "\n")
        if os.path.exists(times):
            os.remove(times)
        words = self.case.trainer.words(1 + len(order) * steps)
        own = os.path.join(self.build, "bench", "turns-" + os.path.basename(words[0]))
        self.run([own if os.path.exists(own) else words[0], *words[1:]], {
            "ESPRESSO_STRATEGY": "fp32",
            "TURNS": blocks,
            "TURNS_OUT": times
        })
        if not os.path.exists(times):
            raise Problem(f"{words[0]} ran no strategies in turns (bench/trainers/turns.h): run make bench first")
        with open(times) as f:
            ms = [float(line) for line in f]
        if len(ms) != len(order):
            raise Problem(f"{self.case}: {len(ms)} of {len(order)} blocks of steps ran: {words[0]}")
        n = len(names)
        return [dict(zip(order[i:i + n], ms[i:i + n])) for i in range(0, len(order), n)]


class Busy:
    """Another process that keeps a core busy."""
    def __init__(self, wanted):
        self.process = subprocess.Popen(["sh", "-c", "while :; do :; done"]) if wanted else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
