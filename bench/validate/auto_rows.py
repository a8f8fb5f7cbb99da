"""auto_rows.py: the rows of bench/validate/auto, how many meet the targets, and the text. A row is a dict; times are in
milliseconds a step."""
import tables
from truth_costs import plain
from truth_rows import middle

TARGETS = [
    "the speed of what auto chose is at least 0.98 of fp32's",
    "what auto chose is within 3% of the best of fp32, the fixed strategies and the plan",
    "measuring and trying cost at most 3% of the first 1,000 steps of the best"
]
WORDS, COUNTS = ("trainer", "link", "choices"), ("ranks", "busy", "rounds", "steps")


def error(values):
    """The standard error of the median, from the quartiles."""
    v = sorted(values)
    return 1.253 * (v[3 * (len(v) - 1) // 4] - v[(len(v) - 1) // 4]) / 1.349 / len(v)**0.5


def scored(far, rounds, choices, costs):
    """The columns about times. far: {name: ms} of each fixed strategy, alone; rounds: {name: ms} of each round, for the
    strategies that ran in turns; choices: what each run of auto chose; costs: ms and number of its steps
    before that, and ms of a step after it."""
    level = [sum(r.values()) / len(r) for r in rounds] # of the machine, in each round
    ms = {
        name: middle([r[name] / l for r, l in zip(rounds, level)]) * sum(level) / len(level)
        for name in rounds[0]
    }
    first = min(far, key=far.get) # it ran in turns, too: so times alone become times in turns
    fixed = {name: ms.get(name, far[name] * ms[first] / far[first]) for name in far}
    best = min(set(far) & set(ms), key=ms.get)
    chosen = sorted(choices, key=ms.get)[len(choices) // 2]
    return {
        **{plain(name): fixed[name]
           for name in far}, "best": fixed[best],
        "chosen": ms[chosen],
        "error": error([r[chosen] / r[best] for r in rounds]),
        "measuring": middle([(took / (own * ms[best] / ms[name]) - n) / 1000
                             for (took, n, own), name in zip(costs, choices)]),
        "choices": "; ".join(f"{name} {ms[name]:.4f}" for name in choices)
    }


def decisions(row):
    """How much slower than the best each choice is."""
    return [float(choice.rsplit(" ", 1)[1]) / row["best"] - 1 for choice in row["choices"].split("; ")]


def rows_of(cells):
    """The rows from the dicts of a CSV that csv_lines made."""
    return [{k: v if k in WORDS else int(v) if k in COUNTS else float(v) for k, v in r.items()} for r in cells]


def csv_lines(rows, head):
    text = lambda v: f"{v:.4f}" if isinstance(v, float) else str(v)
    return tables.csv_lines(head, list(rows[0]), [[text(v) for v in r.values()] for r in rows])


def report(rows, head):
    good = ([r for r in rows if r["fp32"] / r["chosen"] >= 0.98], [r for r in rows if r["chosen"] <= 1.03 * r["best"]],
            [r for r in rows if r["measuring"] <= 0.03])
    out = head + [""]
    for what, met, part in zip(TARGETS, good, (1, 0.95, 1)):
        out.append(f"{what}: {len(met)} of {len(rows)} cases (target {part:.0%}): "
                   f"{'met' if len(met) >= part * len(rows) else 'missed'}")
    single = [d for r in rows for d in decisions(r)]
    out += [
        f"single choices within 3%: {sum(d <= 0.03 for d in single)} of {len(single)}",
        "",
        "ms a step; best: of fp32, the layerwise strategies and the plan; chosen: what auto chose (the median one of its "
        "runs), behind: by how much it is",
        "slower than the best, with the standard error; measuring: what measuring and trying cost of the first 1,000 steps "
        "of the best; others: part of",
        "the machine that further programs took",
        "",
        f"{'trainer':8} {'ranks':>5} {'link':>8} {'':>6} {'rounds':>6} {'fp32':>8} {'best':>8} {'chosen':>8} {'behind':>6} "
        f"{'error':>5} {'measuring':>9} {'others':>6}  choices"
    ]
    for r in rows:
        out.append(f"{r['trainer']:8} {r['ranks']:5} {r['link']:>8} {'busy' if r['busy'] else 'quiet':>6} {r['rounds']:6} "
                   f"{r['fp32']:8.1f} {r['best']:8.1f} {r['chosen']:8.1f} {r['chosen'] / r['best'] - 1:6.1%} "
                   f"{r['error']:5.1%} {r['measuring']:9.2%} {r['others']:6.1%}  {r['choices']}")
    return out
