"""accuracy_plot.py: draws accuracy.csv: accuracy.svg, loss by steps and by time on three links, of the rows that show
most."""
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


def panel(svg, x, y, curves, words, low, top):
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
        svg.line([at(*p) for p in points], ROWS[row], 1.4)


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
