"""converge_plot.py: draws converge.csv: converge-train.svg and converge-gpt.svg, loss by step and by time."""
import math
import os

from svg import Svg, legend

COLOURS = {"fp32": "#8a8a8a", "auto": "#1f5fbf"}
TITLES = {"train": "examples/train (Fashion-MNIST)", "gpt": "examples/gpt (characters of a text)"}


def smooth(values, window):
    """Mean of the last `window` values, so that the noise of batches does not hide the difference of two curves."""
    out, total = [], 0.0
    for i, v in enumerate(values):
        total += v - (values[i - window] if i >= window else 0.0)
        out.append(total / min(i + 1, window))
    return out


def ticks(most):
    """About six round numbers from 0 to `most`."""
    step = 10**math.floor(math.log10(most / 6))
    step = next(step * k for k in (1, 2, 5, 10) if most / (step * k) <= 7)
    return [i * step for i in range(int(most / step) + 1)]


def panel(svg, x, y, w, h, curves, column, words, low, top):
    most = max(rows[-1][column] for rows in curves.values())

    def at(px, loss):
        return x + w * px / most, y + h - h * math.log(min(top, max(low, loss)) / low) / math.log(top / low)

    for t in ticks(most):
        svg.line([(at(t, low)[0], y), (at(t, low)[0], y + h)], "#eee", 1)
        svg.text(at(t, low)[0], y + h + 14, f"{t:g}", 10, "middle", "#555")
    for t in (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5):
        if low < t < top:
            svg.line([(x, at(0, t)[1]), (x + w, at(0, t)[1])], "#eee", 1)
            svg.text(x - 5, at(0, t)[1] + 3, f"{t:g}", 10, "end", "#555")
    svg.box(x, y, w, h)
    svg.text(x + w / 2, y + h + 31, words, 11, "middle")
    for kind, rows in curves.items():
        points = [at(r[column], loss) for r, loss in zip(rows, smooth([r[2] for r in rows], 15))]
        svg.line(points, COLOURS[kind], 1.6)
        svg.dot(*points[-1], COLOURS[kind], 3)


def draw(to, example, curves):
    svg = Svg(900, 360, f"Loss of {TITLES[example]}: fp32 and auto")
    svg.text(50, 24, TITLES[example], 14, bold=True)
    svg.text(50, 42, "training loss of rank 0 (mean of 15 steps, log scale); 2 machines x 2 ranks, emulated link", 11,
             colour="#555")
    legend(svg, 690, 24, [(k, COLOURS[k], "") for k in curves], lambda label: 80)
    ends = [smooth([r[2] for r in rows], 15) for rows in curves.values()]
    low, top = min(min(e) for e in ends) * 0.9, max(max(e) for e in ends) * 1.05
    panel(svg, 50, 56, 390, 250, curves, 0, "step", low, top)
    panel(svg, 490, 56, 390, 250, curves, 1, "seconds", low, top)
    svg.save(os.path.join(to, f"converge-{example}.svg"))


def converge(table, to):
    curves = {}
    for r in table.rows:
        rows = curves.setdefault(r["example"], {}).setdefault(r["strategy"], [])
        rows.append((float(r["step"]), float(r["seconds"]), float(r["loss"])))
    for example, kinds in curves.items():
        draw(to, example, kinds)
