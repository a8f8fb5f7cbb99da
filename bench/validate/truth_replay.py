"""truth_replay.py: the models that come along as trainers of bench/validate/truth: `espresso replay` plays their timing
with real buffers. Its own predictions are not used: the model is scaled here as replay scales it, and then predicted
like any other."""
import json
import os

from truth_costs import Problem, Trainer, cost_files

MODELS = ["vgg16", "resnet101", "ugatit", "bert-base", "gpt2", "lstm"]
SCALE = {"100mbit": 0.01} # part of the model's elements; on other links a tenth


class Replay(Trainer):
    """A model whose computing keeps a core of each rank busy."""
    def __init__(self, model, folder="planner/models"):
        super().__init__(f"replay {model}", [])
        self.model, self.path = model, os.path.join(folder, f"{model}.json")

    def scale(self, case):
        return SCALE.get(case.link, 0.1)

    def write_model(self, case, out):
        """The model as it is played: with a part of its elements, and computing as long as ranks that share cores need
        for it."""
        with open(self.path) as f:
            m = json.load(f)
        stretch = max(1.0, case.ranks / len(os.sched_getaffinity(0)))
        m["forward_us"] *= stretch
        for t in m["tensors"]:
            t["elements"] = max(1, int(t["elements"] * self.scale(case) + 0.5))
            t["compute_us"] *= stretch
            for key in ("shape", "rows", "cols"):
                t.pop(key, None)
        m["parameters"] = sum(t["elements"] for t in m["tensors"])
        with open(out, "w") as f:
            json.dump(m, f)


def costs_file(tools, case):
    """The case's costs as one file: its path."""
    place, out = case.place(), os.path.join(tools.work, "replay-costs.json")
    parts = []
    for path in cost_files(tools, case)[1:]:
        with open(path) as f:
            parts.append(json.load(f))
    whole = {"espresso": 1, "costs": os.uname().nodename, "system": parts[0], "codecs": parts[1:]}
    if "--inter" in place:
        whole["inter"] = place[-1]
    with open(out, "w") as f:
        json.dump(whole, f)
    return out


def runs(tools, case, known, steps):
    """Runs all strategies in turn: {name: (steps, spread, median, {op class: ms}, {lane: ms})}."""
    words = [
        "replay", "--model", case.trainer.model, "--costs",
        costs_file(tools, case), *case.place(), "--elements-scale",
        str(case.trainer.scale(case)), "--strategy", ",".join(p["file"] for p in known.values()), "--steps",
        str(steps), "--json"
    ]
    found = {s["name"]: s for s in json.loads(tools.call(*words, limit=900))["strategies"]}
    out = {}
    for name, p in known.items():
        s = found.get(p["file"]) or found.get(os.path.basename(p["file"]))
        if not s:
            raise Problem(f"espresso replay said nothing of {p['file']}; it knows {', '.join(found)}")
        at = {k: v / 1e3 for k, v in s["measured_us"].items()}
        # half of the distance from the 10th to the 90th percentile is about that of the quartiles
        spread = (at["p90"] - at["p10"]) / 2 / at["median"]
        classes = {op["op"]: op["measured_us"] / 1e3 for op in s["ops"] if op["op"] != "backward"}
        lanes = {k: v / 1e3 for k, v in s["lanes_us"]["measured"].items() if k != "compute"}
        out[name] = (s["steps"], spread, at["median"], classes, lanes)
    return out
