"""truth_cases.py: the trainers, ranks and links of bench/validate/truth, auto and progress."""
import os

import truth_replay
from truth_costs import OVER_MPI, Case, Problem, Trainer

LINKS = ["100mbit", "1gbit", "none"]
NETWORKS = [OVER_MPI + rate for rate in LINKS[:2]] # real ones, between hosts of tests/jobs/hosts
MACHINES = {1: 1, 2: 2, 4: 2, 8: 4}


def trainers_of(build):
    bench = os.path.join(build, "bench", "trainer")
    return {
        "train": Trainer("train", [f"{build}/bin/train", "--max-steps", "{steps}", "--epochs", "100", "--eval", "0"]),
        "gpt": Trainer(
            "gpt", [f"{build}/bin/gpt", "--layers", "4", "--width", "128", "--max-steps", "{steps}", "--sample", "0"]),
        "lstm": Trainer("lstm", [bench, "lstm", "--max-steps", "{steps}"]),
        "wide": Trainer("wide", [bench, "wide", "--max-steps", "{steps}"]),
        **{
            f"replay {model}": truth_replay.Replay(model)
            for model in truth_replay.MODELS
        }
    }


def all_cases(build):
    out = []
    for trainer in trainers_of(build).values():
        out += [Case(trainer, 1, 1, "none")] if trainer.command else []
        out += [Case(trainer, n, MACHINES[n], link) for n in (2, 4) for link in LINKS]
        out += [Case(trainer, 4, 2, link) for link in NETWORKS] if trainer.command else []
    return out + [Case(trainers_of(build)["wide"], 8, 4, "none")]


def chosen(cases, words):
    """The cases that fit one word of each kind that was given."""
    known = [{c.trainer.name for c in cases}, {str(c.ranks) for c in cases}, {c.link for c in cases}]
    for word in words:
        if not any(word in k for k in known):
            raise Problem(f"'{word}' is no trainer, number of ranks or link: {', '.join(sorted(set().union(*known)))}")
    asked = [[w for w in words if w in k] for k in known]
    return [
        c for c in cases if all(not a or value in a for a, value in zip(asked, (c.trainer.name, str(c.ranks), c.link)))
    ]
