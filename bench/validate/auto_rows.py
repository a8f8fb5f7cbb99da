"""auto_rows.py: the rows of bench/validate/auto, how many meet the targets, and the text. A row is a dict; times are in
milliseconds a step."""
import tables

TARGETS = [
    "the speed of auto is at least 0.98 of fp32's",
    "auto is within 3% of the best of fp32, the fixed strategies and the plan",
    "measuring and trying cost at most 3% of the first 1,000 steps of the best"
]
WORDS, COUNTS = ("trainer", "link"), ("ranks", "busy", "pairs", "steps")


def rows_of(cells):
    """The rows from the dicts of a CSV that csv_lines made."""
    return [{k: v if k in WORDS else int(v) if k in COUNTS else float(v) for k, v in r.items()} for r in cells]


def csv_lines(rows, head):
    text = lambda v: f"{v:.4f}" if isinstance(v, float) else str(v)
    return tables.csv_lines(head, list(rows[0]), [[text(v) for v in r.values()] for r in rows])


def report(rows, head):
    close = [r for r in rows if r["auto"] <= 1.03 * r["best"]]
    kept = [r for r in rows if r["speed"] >= 0.98]
    cheap = [r for r in rows if r["measuring"] <= 0.03]
    out = head + [""]
    for what, good, part in zip(TARGETS, (kept, close, cheap), (1, 0.95, 1)):
        met = "met" if len(good) >= part * len(rows) else "missed"
        out.append(f"{what}: {len(good)} of {len(rows)} cases (target {part:.0%}): {met}")
    out += [
        "",
        "ms a step, of auto after its decision, medians over the pairs; speed: fp32 / auto, with the least and the "
        "most of the pairs; best: of fp32, the",
        "layerwise strategies and the plan; measuring: what measuring and trying cost of the first 1,000 steps of the best; others: "
        "part of the machine that further programs took",
        "",
        f"{'trainer':8} {'ranks':>5} {'link':>8} {'':>6} {'pairs':>5} {'steps':>5} {'fp32':>8} {'auto':>8} {'best':>8} "
        f"{'speed':>6} {'least':>6} {'most':>6} "
        f"{'auto/best':>9} {'measuring':>9} {'others':>6}"
    ]
    for r in rows:
        out.append(
            f"{r['trainer']:8} {r['ranks']:5} {r['link']:>8} {'busy' if r['busy'] else 'quiet':>6} {r['pairs']:5} {r['steps']:5} "
            f"{r['fp32']:8.1f} {r['auto']:8.1f} "
            f"{r['best']:8.1f} {r['speed']:6.2f} {r['least']:6.2f} {r['most']:6.2f} {r['auto'] / r['best']:9.2f} "
            f"{r['measuring']:9.2%} {r['others']:6.1%}"
        )
    return out
