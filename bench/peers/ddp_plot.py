"""ddp_plot.py CURVE.csv OUT.svg: draws the test loss by time of each way of bench/peers/ddp.sh, a panel a link."""

import math
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from svg import Svg, legend  # noqa: E402

COLOURS = ["#8a8a8a", "#c08a2e", "#7a4fa0", "#9cc5e8", "#3f8f5f", "#b03a3a", "#1f5fbf"]


def read(path):
    """{link: {way: [(seconds, loss), ...]}}"""
    links = {}
    with open(path) as file:
        rows = [line.rstrip("\n").split(",") for line in file if not line.startswith("#")]
    for link, way, seconds, _, loss in rows[1:]:
        links.setdefault(link, {}).setdefault(way, []).append((float(seconds), float(loss)))
    return links


def panel(svg, x, y, w, h, link, curves, low, top):
    most = max(points[-1][0] for points in curves.values())

    def at(seconds, loss):
        return x + w * seconds / most, y + h - h * math.log(loss / low) / math.log(top / low)

    for t in range(0, int(most) + 1, 5):
        svg.line([(at(t, low)[0], y), (at(t, low)[0], y + h)], "#eee", 1)
        svg.text(at(t, low)[0], y + h + 14, str(t), 10, "middle", "#555")
    for t in (0.3, 0.4, 0.5, 0.7, 1, 1.5, 2):
        if low < t < top:
            svg.line([(x, at(0, t)[1]), (x + w, at(0, t)[1])], "#eee", 1)
            svg.text(x - 5, at(0, t)[1] + 3, f"{t:g}", 10, "end", "#555")
    svg.box(x, y, w, h)
    svg.text(x + w / 2, y - 8, f"{link} between the hosts", 12, "middle", bold=True)
    svg.text(x + w / 2, y + h + 30, "seconds of training", 11, "middle")
    for colour, points in zip(COLOURS, curves.values()):
        svg.line([at(*p) for p in points], colour, 1.6)
        svg.dot(*at(*points[-1]), colour, 3)


def main():
    links = read(sys.argv[1])
    losses = [loss for curves in links.values() for points in curves.values() for _, loss in points]
    svg = Svg(900, 420, "Test loss by time: PyTorch's DistributedDataParallel with its own hooks and with espresso's")
    for i, (link, curves) in enumerate(links.items()):
        panel(svg, 50 + 440 * i, 90, 390, 270, link, curves, min(losses) * 0.95, max(losses) * 1.02)
    for i, way in enumerate(next(iter(links.values()))):
        legend(svg, 50 + 215 * (i % 4), 26 + 20 * (i // 4), [(way, COLOURS[i], "")], lambda label: 0)
    svg.text(50, 410, "2 hosts x 2 ranks on one machine with 2 cores, Fashion-MNIST, test loss (log scale)", 10, colour="#555")
    svg.save(sys.argv[2])


main()
