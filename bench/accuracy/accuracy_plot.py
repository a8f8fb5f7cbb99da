"""accuracy_plot.py: draws accuracy.csv: accuracy.svg, loss by steps and by time on three links, of the rows that show
most; and accuracy-ends.csv: codecs.svg, the final loss by the bits an element, of all codecs."""
import math
import os

from converge_plot import ticks
from svg import Svg, legend

ROWS = {
    "fp32": "#8a8a8a",
    "int4": "#1f5fbf",
    "efsignsgd": "#56b4e9",
    "efsignsgd, no momentum": "#009e73",
    "topk 1%": "#e69f00",
    "topk 1%, no momentum": "#d55e00",
    "dgc 10%, its own momentum": "#cc79a7",
    "powersgd rank 4": "#000000",
    "twobit relative 1.2": "#8a6d00"
}
AXES = [("step", "step"), ("seconds_100mbit", "seconds, 100 Mbit/s"), ("seconds_1gbit", "seconds, 1 Gbit/s"),
        ("seconds_unshaped", "seconds, no link emulated")]
WIDTH, HEIGHT, LEFT, TOP = 270, 170, 60, 110


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


def accuracy(table, to):
    points = [p for p in table.rows if p["row"] in ROWS and p["loss"] != "nan"]
    trainers = list(dict.fromkeys(p["trainer"] for p in points))
    svg = Svg(LEFT + 4 * (WIDTH + 60), TOP + len(trainers) * (HEIGHT + 75),
              "Loss by steps and by time, with several codecs")
    svg.text(LEFT, 24, "What codecs cost in accuracy", 14, bold=True)
    svg.text(
        LEFT, 42,
        "training loss of rank 0 (mean of up to 50 steps, and of the seeds); 2 machines x 2 ranks; time = steps x "
        "median step",
        11, colour="#555")
    legend(svg, LEFT, 62, [(row, colour, "") for row, colour in ROWS.items()], lambda label: 43 + 6.3 * len(label))
    for i, trainer in enumerate(trainers):
        mine = [p for p in points if p["trainer"] == trainer]
        base = [float(p["loss"]) for p in mine if p["row"] == "fp32"]
        y = TOP + i * (HEIGHT + 75)
        svg.text(LEFT, y - 10, trainer, 12, bold=True)
        for j, (column, words) in enumerate(AXES):
            curves = {
                row: [(float(p[column]), float(p["loss"])) for p in mine if p["row"] == row and p[column]]
                for row in ROWS
            }
            curves = {row: c for row, c in curves.items() if c}
            if curves:
                panel(svg, LEFT + j * (WIDTH + 60), y, curves, words, 0.97 * min(base), base[0])
    svg.save(os.path.join(to, "accuracy.svg"))


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
    hidden = ("all tensors", "no momentum", "decays", "threshold 0.01") # threshold's size depends on the gradients
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
