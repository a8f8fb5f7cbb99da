"""outer_plot.py: draws outer.csv: outer.svg, the loss against the bytes of a step, and against time at 100 Mbit/s."""
import math
import os

from accuracy_plot import HEIGHT, LEFT, WIDTH, panel, place
from svg import Svg, legend

COLOURS = {
    "fp32": "#8a8a8a",
    "int4": "#1f5fbf",
    "efsignsgd": "#56b4e9",
    "average 30": "#8a6d00",
    "diloco 10": "#e69f00",
    "diloco 30": "#d55e00",
    "diloco 30, momentum 0.5": "#b00060",
    "diloco 30, momentum 0.5, int4": "#000000",
    "diloco 100": "#8a2d00",
    "streaming int4": "#009e73",
    "sparseloco": "#cc79a7"
}
MODELS = {"gpt": "small GPT, AdamW with beta1 0.3", "lstm": "LSTM, SGD with momentum 0.5"}
TOP, MOST_TIMES = 128, 3 # the axis of time ends at 3 times the fastest method's end


def volume(svg, x, y, rows):
    """The final loss against bytes a step, on a logarithmic axis."""
    points = {r["method"]: (float(r["bytes_per_step"]), float(r["held_out_bits"])) for r in rows}
    low, top = 0.95 * min(p[1] for p in points.values()), 1.03 * max(p[1] for p in points.values())
    least, most = (math.log10(pick(p[0] for p in points.values())) + more for pick, more in ((min, -0.3), (max, 0.3)))

    def at(value, loss):
        return x + WIDTH * (math.log10(value) - least) / (most - least), y + HEIGHT * (top - loss) / (top - low)

    for k in range(math.ceil(least), math.floor(most) + 1):
        svg.line([(at(10**k, low)[0], y), (at(10**k, low)[0], y + HEIGHT)], "#eee", 1)
        svg.text(at(10**k, low)[0], y + HEIGHT + 14, f"{10**k:,}", 10, "middle", "#555")
    for k in range(5):
        loss = low + (top - low) * k / 4
        svg.line([(x, at(1e3, loss)[1]), (x + WIDTH, at(1e3, loss)[1])], "#eee", 1)
        svg.text(x - 5, at(1e3, loss)[1] + 3, f"{loss:.2f}", 10, "end", "#555")
    svg.box(x, y, WIDTH, HEIGHT)
    svg.text(x + WIDTH / 2, y + HEIGHT + 30, "bytes that a rank receives a step", 11, "middle")
    svg.text(x, y - 8, "held-out bits a character, after the same steps", 10, colour="#555")
    taken = [(at(*p)[0] - 4, at(*p)[1] - 4, at(*p)[0] + 4, at(*p)[1] + 4) for p in points.values()]
    for method, p in points.items():
        box = place(*at(*p), 5.4 * len(method), taken, (x, x + WIDTH))
        taken.append(box)
        svg.dot(*at(*p), COLOURS[method], 3.5)
        svg.text(box[0], box[3] - 2, method, 9, colour=COLOURS[method])


def time(svg, x, y, rows):
    """Training loss against seconds at 100 Mbit/s."""
    curves = {}
    for r in rows:
        steps = [(int(c.rsplit("_", 1)[1]), float(r[c])) for c in r if c.startswith("loss_step_")]
        curves[r["method"]] = [(s * float(r["step_ms_100mbit"]) / 1e3, loss) for s, loss in steps]
    until = MOST_TIMES * min(c[-1][0] for c in curves.values())
    curves = {m: [p for p in c if p[0] <= until] for m, c in curves.items()}
    losses = [p[1] for c in curves.values() for p in c]
    svg.text(x, y - 8, "training loss of rank 0", 10, colour="#555")
    curves = {m: c for m, c in curves.items() if c}
    panel(svg, x, y, curves, "seconds, 100 Mbit/s", 0.97 * min(losses), max(losses), COLOURS)


def outer(table, to):
    svg = Svg(LEFT + 2 * (WIDTH + 60), TOP + len(MODELS) * (HEIGHT + 75), "Outer loops: loss against volume and time")
    svg.text(LEFT, 24, "Outer loops against averaging in every step: 4 workers", 14, bold=True)
    entries = [(method, colour, "") for method, colour in COLOURS.items()]
    for k in range(0, len(entries), 4):
        legend(svg, LEFT, 46 + 4 * k, entries[k:k + 4], lambda label: 44 + 6.3 * len(label))
    for i, (model, words) in enumerate(MODELS.items()):
        rows = [r for r in table.rows if r["model"] == model]
        y = TOP + i * (HEIGHT + 75)
        svg.text(LEFT, y - 22, words, 12, bold=True)
        volume(svg, LEFT, y, rows)
        time(svg, LEFT + WIDTH + 60, y, rows)
    svg.save(os.path.join(to, "outer.svg"))
