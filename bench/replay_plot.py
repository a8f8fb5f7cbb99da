#!/usr/bin/env python3
"""replay_plot.py: draws bench/results/replay.csv as replay.svg (standard library only): predicted against measured, and the speed of
each strategy over fp32, predicted and measured.

    python3 bench/replay_plot.py [FROM [TO]]        default: bench/results, build/results
"""
import csv
import math
import os
import sys

from plan_plot import Svg, folders

COLOURS = {"fp32": "#8a8f96", "ddp": "#4b4f55", "fp16": "#0072b2", "layerwise": "#56b4e9", "mergecomp": "#009e73",
           "hipress": "#8b8d2f", "hitopkcomm": "#cc79a7", "byteps-compress": "#e69f00",
           # Espresso with one dimension of the tree taken away (the paper's Figures 12 to 15)
           "cpu-only": "#b99a6b",
           "espresso": "#d55e00", "espresso+": "#a11313"}
MODELS = ["vgg16", "resnet101", "ugatit", "bert-base", "gpt2", "lstm"]
LEFT, WIDE = 84, 1180
KINDS = {"4": ("#d55e00", "5 3"), "8": ("#d55e00", "")}


def colour(name):
    return COLOURS.get(name, "#b0a070")


def number(row, key):
    return float(row[key]) if row[key] else None


def polygon(svg, points, fill, opacity):
    at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    svg.out.append(f'<polygon points="{at}" fill="{fill}" fill-opacity="{opacity}"/>')


def bar(svg, x, y, w, h, fill, opacity=1.0):
    svg.out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{max(h, 0.4):.1f}" fill="{fill}" '
                   f'fill-opacity="{opacity}"/>')


def scatter(svg, x, y, side, rows, title):
    """Predicted against measured steps, both logarithmic, with bands of 10% and 20%."""
    times = [number(r, k) / 1000 for r in rows for k in ("predicted_us", "measured_us")]
    low, high = (min(times) / 1.2, max(times) * 1.2) if times else (1, 1000)

    def at(ms):
        return side * math.log(ms / low) / math.log(high / low)

    def clipped(factor):
        """The line measured * factor = predicted, as corners inside the square."""
        points = []
        for ms in (low, high):
            px, py = at(ms), at(ms * factor)
            if py < 0:
                px, py = px - py, 0
            if py > side:
                px, py = px - (py - side), side
            points.append((x + px, y + side - py))
        return points

    svg.text(x, y - 10, title, 12, bold=True)
    polygon(svg, clipped(1.2) + [(x + side, y)] + clipped(1 / 1.2)[::-1] + [(x, y + side)], "#e9edf2", 1)
    polygon(svg, clipped(1.1) + [(x + side, y)] + clipped(1 / 1.1)[::-1] + [(x, y + side)], "#d3dbe6", 1)
    svg.box(x, y, side, side)
    for power in range(-1, 5):
        for digit in (1, 2, 5):
            ms = digit * 10.0 ** power
            if low < ms < high:
                svg.line([(x + at(ms), y), (x + at(ms), y + side)], "#e3e6ea" if digit != 1 else "#c8ccd2", 0.7)
                svg.line([(x, y + side - at(ms)), (x + side, y + side - at(ms))], "#e3e6ea" if digit != 1 else "#c8ccd2", 0.7)
                svg.text(x + at(ms), y + side + 14, f"{ms:g}", 9, "middle", "#555")
                svg.text(x - 5, y + side - at(ms) + 3, f"{ms:g}", 9, "end", "#555")
    svg.line(clipped(1), "#666", 1)
    for r in rows:
        svg.dot(x + at(number(r, "measured_us") / 1000), y + side - at(number(r, "predicted_us") / 1000), colour(r["strategy"]),
                3.2 if r["n"] == "8" else 2.2)
    svg.text(x + side / 2, y + side + 30, "measured step, ms", 11, "middle")
    svg.text(x + 8, y + 18, "predicted step, ms", 11)
    errors = sorted(abs(number(r, "error_percent")) for r in rows)
    if errors:
        svg.text(x + side - 8, y + side - 24, f"{len(errors)} strategies; off by", 11, "end")
        svg.text(x + side - 8, y + side - 9, f"{errors[len(errors) // 2]:.1f}% (median), {errors[int(0.9 * (len(errors) - 1))]:.1f}% (90%)",
                 11, "end")


def errors_panel(svg, x, y, side, known, kinds):
    """Share of strategies that are off by at most this."""
    most = 25.0
    svg.text(x, y - 10, "off by at most", 12, bold=True)
    svg.box(x, y, side, side)
    for tick in (2, 5, 10, 15, 20, 25):
        svg.line([(x + side * tick / most, y), (x + side * tick / most, y + side)], "#eee", 1)
        svg.text(x + side * tick / most, y + side + 14, f"{tick}%", 9, "middle", "#555")
    for tick in (0, 0.25, 0.5, 0.75, 0.9, 1):
        svg.line([(x, y + side - side * tick), (x + side, y + side - side * tick)], "#eee", 1)
        svg.text(x - 5, y + side - side * tick + 3, f"{tick:.0%}", 9, "end", "#555")
    for k, kind in enumerate(kinds):
        stroke, dash = KINDS.get(kind, ("#777", ""))
        errors = sorted(abs(number(r, "error_percent")) for r in known if r["n"] == kind)
        points = [(x, y + side)]
        for i, error in enumerate(errors):
            px = x + side * min(most, error) / most
            points += [(px, points[-1][1]), (px, y + side - side * (i + 1) / len(errors))]
        svg.line(points + [(x + side, points[-1][1])], stroke, 1.8, dash)
        ly = y + side - 16 * (len(kinds) - k) + 6
        svg.line([(x + side - 130, ly - 4), (x + side - 104, ly - 4)], stroke, 1.8, dash)
        svg.text(x + side - 98, ly, f"{kind} ranks", 11)
    svg.text(x + side / 2, y + side + 30, "|predicted - measured| / measured", 11, "middle")


def speed_panel(svg, x, y, w, h, rows, top, title, labels):
    """Of each strategy the speed over fp32: predicted pale, measured full, with its spread."""
    svg.box(x, y, w, h)
    svg.text(x + 5, y + 13, title, 10, bold=True)
    for tick in range(1, int(top) + 1):
        if top <= 8 or tick % 2 == 0 or tick == 1:
            svg.line([(x, y + h - h * tick / top), (x + w, y + h - h * tick / top)], "#999" if tick == 1 else "#eee", 0.8)
            if labels:
                svg.text(x - 4, y + h - h * tick / top + 3, f"{tick}x", 9, "end", "#555")
    fp32 = next((r for r in rows if r["strategy"] == "fp32"), None)
    if not fp32 or not fp32["measured_us"]:
        why = fp32["outcome"] if fp32 else rows[0]["outcome"] if rows else "not run"
        svg.text(x + w / 2, y + h / 2, why, 10, "middle", "#777")
        return
    order = list(COLOURS)
    some = sorted(rows, key=lambda r: order.index(r["strategy"]) if r["strategy"] in order else 99)
    step = w / max(1, len(some))
    for k, r in enumerate(some):
        px, half = x + k * step + 0.12 * step, 0.38 * step
        if not r["predicted_us"]:
            svg.text(px + half, y + h - 3, "x", 9, "middle", "#777")
            continue
        predicted = number(fp32, "predicted_us") / number(r, "predicted_us")
        bar(svg, px, y + h - h * predicted / top, half, h * predicted / top, colour(r["strategy"]), 0.4)
        if not r["measured_us"]:
            svg.text(px + 1.5 * half, y + h - 3, "?", 9, "middle", "#777")
            continue
        base, middle = number(fp32, "measured_us"), px + 1.5 * half
        measured = base / number(r, "measured_us")
        bar(svg, px + half, y + h - h * measured / top, half, h * measured / top, colour(r["strategy"]))
        svg.line([(middle, y + h - h * base / number(r, "p90_us") / top), (middle, y + h - h * base / number(r, "p10_us") / top)],
                 "#111", 1)
        if r["chosen"] == "1":
            svg.text(middle, y + h - h * max(measured, predicted, base / number(r, "p10_us")) / top - 4, "*", 12, "middle")


def speeds(svg, top, n, rows):
    """Rows of panels: ratios; columns: models."""
    ratios = sorted({r["ratio_asked"] for r in rows}, key=float)
    models = sorted({r["model"] for r in rows}, key=lambda m: (MODELS.index(m) if m in MODELS else 99, m))
    w, h, space = (WIDE - 8 * (max(len(models), 6) - 1)) / max(len(models), 6), 96, 8
    svg.text(14, top, f"Speed over fp32, {n} ranks: predicted (pale) beside measured, lines from the 10th to the 90th "
             "percentile; *: the planner's choice; ?: noisy; x: refused", 12.5, bold=True)
    for i, ratio in enumerate(ratios):
        of_ratio = [r for r in rows if r["ratio_asked"] == ratio]
        most = 1.5
        for model in models:
            steps = {r["strategy"]: r for r in of_ratio if r["model"] == model}
            fp32 = steps.get("fp32")
            for r in steps.values():
                for key in ("predicted_us", "measured_us"):
                    if fp32 and fp32[key] and r[key]:
                        most = max(most, number(fp32, key) / number(r, key))
        for k, model in enumerate(models):
            speed_panel(svg, LEFT + k * (w + space), top + 14 + i * (h + space), w, h,
                        [r for r in of_ratio if r["model"] == model], most * 1.3, model, k == 0)
        svg.text(10, top + 14 + i * (h + space) + h / 2, f"ratio {float(ratio):g}", 10.5)
    return top + 14 + len(ratios) * (h + space) + 30


def main():
    folder, to = folders()
    path = os.path.join(folder, "replay.csv")
    if not os.path.exists(path):
        sys.exit(f"{path}: not there: run bench/replay.sh first")
    with open(path) as f:
        rows = list(csv.DictReader(f))
    known = [r for r in rows if r["outcome"] == "ok"]
    kinds = sorted({r["n"] for r in rows}, key=int)
    ratios = {n: len({r["ratio_asked"] for r in rows if r["n"] == n}) for n in kinds}
    height = 500 + sum(14 + ratios[n] * 104 + 30 for n in kinds)
    svg = Svg(LEFT + WIDE + 20, height, "Replay: predicted and measured steps")
    names = [name for name in COLOURS if any(r["strategy"] == name for r in rows)]
    names += sorted({r["strategy"] for r in known} - set(names))
    svg.text(14, 24, "Predicted and measured steps; bands: 10% and 20%; small dots: 4 ranks, large: 8", 13.5, bold=True)
    x, y = 14.0, 34.0
    for name in names:
        wide = 30 + 6.6 * len(name)
        if x + wide > LEFT + WIDE:
            x, y = 14.0, y + 15
        bar(svg, x, y, 11, 11, colour(name))
        svg.text(x + 15, y + 10, name, 11)
        x += wide
    scatter(svg, LEFT, 84, 350, known, "steps")
    errors_panel(svg, LEFT + 430, 84, 320, known, kinds)
    top = 510.0
    for n in kinds:
        top = speeds(svg, top, n, [r for r in rows if r["n"] == n])
    svg.save(os.path.join(to, "replay.svg"))


if __name__ == "__main__":
    main()
