"""accuracy_plot.py: draws accuracy.csv: accuracy.svg, loss by steps and by time on two links, of the rows that show
most, and codecs-time.svg, a part of it for docs/use/codecs.md; and accuracy-ends.csv: codecs.svg, the final loss by the
bits an element, of all codecs."""
import math
import os

from converge_plot import ticks
from svg import Svg, legend

ROWS = {
    "fp32": "#8a8a8a",
    "int4": "#1f5fbf",
    "terngrad": "#000000",
    "threelc": "#8a6d00",
    "chunktopk, 64 of 4096": "#b00060",
    "topk 1%": "#e69f00",
    "topk 1%, no momentum": "#d55e00",
    "dgc 10%, its own momentum": "#cc79a7",
    "efsignsgd": "#56b4e9",
    "efsignsgd, no momentum": "#009e73"
}
AXES = [("step", "step"), ("seconds_100mbit", "seconds, 100 Mbit/s"), ("seconds_1gbit", "seconds, 1 Gbit/s")]
TITLES = {
    "gpt-adamw": "small GPT, AdamW",
    "gpt-momentum0.9": "small GPT, SGD with momentum 0.9",
    "lstm-momentum0.5": "LSTM, SGD with momentum 0.5",
    "fashion-momentum0.5": "Fashion-MNIST, SGD with momentum 0.5",
    "fashion-momentum0.9": "Fashion-MNIST, SGD with momentum 0.9"
}
WIDTH, HEIGHT, LEFT, TOP = 270, 170, 60, 132


def panel(svg, x, y, curves, words, low, top, colours=None):
    most = max(points[-1][0] for points in curves.values())

    def at(px, loss):
        return x + WIDTH * px / most, y + HEIGHT * (1 - (min(top, max(low, loss)) - low) / (top - low))

    for t in ticks(most):
        svg.line([(at(t, low)[0], y), (at(t, low)[0], y + HEIGHT)], "#eee", 1)
        svg.text(at(t, low)[0], y + HEIGHT + 14, f"{t:g}", 10, "middle", "#555")
    for k in range(5):
        loss = low + (top - low) * k / 4
        svg.line([(x, at(0, loss)[1]), (x + WIDTH, at(0, loss)[1])], "#eee", 1)
        svg.text(x - 5, at(0, loss)[1] + 3, f"{loss:.2f}", 10, "end", "#555")
    svg.box(x, y, WIDTH, HEIGHT)
    svg.text(x + WIDTH / 2, y + HEIGHT + 30, words, 11, "middle")
    for row, points in curves.items():
        svg.line([at(*p) for p in points], (colours or ROWS)[row], 1.4)


def panels(table, path, trainers, axes, title):
    """A row of panels for each trainer. An axis of time ends when the slowest row but fp32 has done all steps."""
    points = [p for p in table.rows if p["row"] in ROWS and p["loss"] != "nan"]
    width = LEFT + max(2, len(axes)) * (WIDTH + 60)
    svg = Svg(width, TOP + len(trainers) * (HEIGHT + 75), title)
    svg.text(LEFT, 24, title, 14, bold=True)
    words = "training loss of rank 0 (mean of up to 50 steps, and of the seeds); 2 machines x 2 ranks; "
    svg.text(LEFT, 42, words + "computed step times", 11, colour="#555")
    entries = [(row, colour, "") for row, colour in ROWS.items()]
    for k in range(0, len(entries), 4):
        legend(svg, LEFT, 60 + 4 * k, entries[k:k + 4], lambda label: 40 + 6.3 * len(label))
    for i, trainer in enumerate(trainers):
        mine = [p for p in points if p["trainer"] == trainer]
        base = [float(p["loss"]) for p in mine if p["row"] == "fp32"]
        y = TOP + i * (HEIGHT + 75)
        svg.text(LEFT, y - 10, TITLES[trainer], 12, bold=True)
        for j, (column, words) in enumerate(axes):
            curves = {row: [(float(p[column]), float(p["loss"])) for p in mine if p["row"] == row] for row in ROWS}
            curves = {row: c for row, c in curves.items() if c}
            until = max(c[-1][0] for row, c in curves.items() if not row.startswith("fp32"))
            curves = {row: [p for p in c if p[0] <= until] for row, c in curves.items()}
            low = 0.97 * min(min(loss for c in curves.values() for _, loss in c), min(base))
            panel(svg, LEFT + j * (WIDTH + 60), y, curves, words, low, base[0])
    svg.save(path)


def accuracy(table, to):
    trainers = list(dict.fromkeys(p["trainer"] for p in table.rows))
    panels(table, os.path.join(to, "accuracy.svg"), trainers, AXES, "What codecs cost in accuracy")
    panels(table, os.path.join(to, "codecs-time.svg"), ["gpt-adamw", "gpt-momentum0.9", "lstm-momentum0.5"], AXES[1:],
           "Loss against time")


CLASSES = {"rounds": "#1f5fbf", "sends some": "#d55e00", "low rank": "#009e73", "signs": "#8a6d00"}
SIDE, HIGH, LEAST_BITS, MOST_BITS, LOWEST, HIGHEST = 560, 400, 0.02, 40, -8, 40


def class_of(row):
    if row.startswith("powersgd"):
        return "low rank"
    if row.split(",")[0].split()[0] in ("efsignsgd", "onebit", "signsgd", "signum", "mxnet1bit", "twobit"):
        return "signs"
    some = ("topk", "chunktopk", "randomk", "dgc", "threshold", "adaptive")
    return "sends some" if row.split()[0].rstrip(",") in some else "rounds"


def place(x, y, width, taken, within):
    """Where a label of the point (x, y) overlaps none of the boxes in `taken`: as near as possible. within: least and
    largest x."""
    for away in range(0, 200, 6):
        for down in (away, -away):
            for left in (x + 6, x - 6 - width):
                box = (left, y + down - 5, left + width, y + down + 5)
                inside = box[0] >= within[0] and box[2] <= within[1]
                if inside and all(box[2] < t[0] or box[0] > t[2] or box[3] < t[1] or box[1] > t[3] for t in taken):
                    return box
    return (x + 6, y - 5, x + 6 + width, y + 5)


def volume(table, to):
    """GRACE's figure: quality against volume, with both optimizers of the GPT."""
    # threshold's size depends on the gradients
    hidden = ("all tensors", "merged", "no momentum", "decays", "threshold 0.01")
    shown = [r for r in table.rows if r["bits"] and not r["row"].endswith(hidden)]
    svg = Svg(LEFT + 2 * (SIDE + 60), 80 + HIGH + 50, "Final loss by the bits an element, of all codecs")
    svg.text(LEFT, 24, "Quality against volume", 14, bold=True)
    words = "small GPT, 300 steps, mean of the seeds; learning rates are fp32's; above the box: more, or diverged"
    svg.text(LEFT, 42, words, 11, colour="#555")
    legend(svg, LEFT + 640, 42, [(name, colour, "") for name, colour in CLASSES.items()],
           lambda label: 43 + 7 * len(label))
    for i, trainer in enumerate(("gpt-adamw", "gpt-momentum0.9")):
        left, top, taken = LEFT + i * (SIDE + 60), 80, []

        def at(bits, loss, left=left, top=top):
            share = math.log(bits / LEAST_BITS) / math.log(MOST_BITS / LEAST_BITS)
            return left + SIDE * share, top + HIGH * (HIGHEST - min(HIGHEST + 1, loss)) / (HIGHEST - LOWEST)

        svg.text(left, top - 10, ["AdamW", "SGD with momentum 0.9"][i], 12, bold=True)
        for bits in (0.03, 0.1, 0.3, 1, 3, 8, 16, 32):
            svg.line([(at(bits, 0)[0], top), (at(bits, 0)[0], top + HIGH)], "#eee", 1)
            svg.text(at(bits, 0)[0], top + HIGH + 14, f"{bits:g}", 10, "middle", "#555")
        for loss in range(0, HIGHEST + 1, 10):
            svg.line([(left, at(1, loss)[1]), (left + SIDE, at(1, loss)[1])], "#bbb" if not loss else "#eee", 1)
            svg.text(left - 5, at(1, loss)[1] + 3, f"{loss:+d}%", 10, "end", "#555")
        svg.box(left, top, SIDE, HIGH)
        svg.text(left + SIDE / 2, top + HIGH + 32, "bits an element (fp32: 32)", 11, "middle")
        points = []
        for r in shown:
            percent = HIGHEST + 1 if r["to_fp32_percent"] == "diverged" else float(r["to_fp32_percent"])
            if r["trainer"] == trainer:
                points.append((*at(float(r["bits"]), percent), r["row"]))
        taken += [(x - 3, y - 3, x + 3, y + 3) for x, y, _ in points]
        for x, y, row in sorted(points, key=lambda p: p[0]):
            box = place(x, y, 5.2 * len(row), taken, (left, left + SIDE))
            taken.append(box)
            near = box[0] if box[0] > x else box[2]
            svg.line([(x, y), (near, (box[1] + box[3]) / 2)], "#ccc", 0.8)
            svg.dot(x, y, CLASSES[class_of(row)], 3.0)
            svg.text(box[0], box[3] - 2, row, 9, colour=CLASSES[class_of(row)])
    svg.save(os.path.join(to, "codecs.svg"))
