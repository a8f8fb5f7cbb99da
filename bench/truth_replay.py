"""truth_replay.py: the models that come along as trainers of bench/truth: `espresso replay --compute busy` plays their timing with real
buffers. Its own costs and predictions are not used: the model is scaled here as replay scales it, and then predicted like any other."""
import json
import os

import truth_rows
from truth_costs import Problem, Trainer

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
        """The model as it is played: with a part of its elements, and computing as long as ranks that share cores need for it."""
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


def runs(tools, case, known, steps, codecs):
    """Runs all strategies in turn: {name: (steps, spread, median, {op class: ms}, {lane: ms})}."""
    words = ["replay", "--model", case.trainer.model, "--compute", "busy", *case.place(), "--elements-scale", str(case.trainer.scale(case)),
             "--time-scale", "1", "--strategy", ",".join(p["file"] for p in known.values()), "--steps", str(steps), "--force", "--json"]
    for codec in codecs:
        words += ["--gc", codec]
    found = {s["name"]: s for s in json.loads(tools.call(*words, limit=900))["strategies"]}
    out = {}
    for name, p in known.items():
        s = found.get(p["file"]) or found.get(os.path.basename(p["file"]))
        if not s:
            raise Problem(f"espresso replay said nothing of {p['file']}; it knows {', '.join(found)}")
        at = {k: (v or 0) / 1e3 for k, v in s["measured_us"].items()}
        # half of the distance from the 10th to the 90th percentile is about that of the quartiles
        middle = at["median"] or truth_rows.middle([at["p10"], at["p90"]]) # replay gives no median where it calls the steps noisy
        spread = (at["p90"] - at["p10"]) / 2 / middle
        classes = {}
        for op in s["ops"]:
            if op["op"] != "backward":
                classes[op["op"]] = classes.get(op["op"], 0) + op["measured_us"] / 1e3
        lanes = {k: v / 1e3 for k, v in s["lanes_us"]["measured"].items() if k != "compute"}
        out[name] = (s["steps"], spread, middle, classes, lanes)
    return out
