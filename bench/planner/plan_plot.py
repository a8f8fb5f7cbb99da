"""plan_plot.py: draws plan-quality.csv and plan-growth.csv: plan-quality.svg and plan-growth.svg."""
import math
import os

from svg import Svg, legend

LINES = [ # column, label, colour, dash
    ("fp32_us", "fp32", "#9a9a9a", ""), ("ddp_us", "ddp", "#5b5b5b", "3 2"),
    ("byteps-compress_us", "BytePS-Compress", "#c98a2b", ""), ("hitopkcomm_us", "HiTopKComm", "#8a5fb0", ""),
    ("hipress_us", "HiPress", "#2b8a57", ""), ("paper_us", "Algorithms 1 and 2", "#d0473d", "4 2"),
    ("thorough_us", "espresso+ (thorough)", "#1f5fbf", ""),
    ("upper_us", "Upper Bound (compression free)", "#1f5fbf", "1 3"),
]


def quality_panel(svg, x, y, w, h, rows, first_column, last_row):
    """Step time over the bound (log scale), by the number of GPUs."""
    low, top = 0.6, 6.0

    def at(ratio):
        return y + h - h * math.log(min(top, max(low, ratio)) / low) / math.log(top / low)

    svg.box(x, y, w, h)
    for tick in (0.7, 1, 1.5, 2, 3, 4, 6):
        svg.line([(x, at(tick)), (x + w, at(tick))], "#999" if tick == 1 else "#eee", 1)
        if first_column:
            svg.text(x - 4, at(tick) + 3, f"{tick:g}x", 9, "end", "#555")
    for i, gpus in enumerate((8, 16, 32, 64)):
        if last_row:
            svg.text(x + 12 + i * (w - 24) / 3, y + h + 12, str(gpus), 9, "middle", "#555")
    for column, _, colour, dash in LINES:
        points = []
        for i, row in enumerate(rows):
            points.append((x + 12 + i * (w - 24) / 3, at(float(row[column]) / float(row["bound_us"]))))
        svg.line(points, colour, 2.0 if column == "thorough_us" else 1.3, dash)
        if column == "thorough_us":
            for px, py in points:
                svg.dot(px, py, colour)


def gaps_panel(svg, x, y, w, h, rows):
    """Share of cases whose gap is at most this."""
    most = 16.0
    svg.box(x, y, w, h)
    for tick in range(0, 17, 2):
        svg.line([(x + w * tick / most, y), (x + w * tick / most, y + h)], "#eee", 1)
        svg.text(x + w * tick / most, y + h + 13, f"{tick}%", 9, "middle", "#555")
    for tick in (0, 0.25, 0.5, 0.75, 0.9, 1):
        svg.line([(x, y + h - h * tick), (x + w, y + h - h * tick)], "#eee", 1)
        svg.text(x - 4, y + h - h * tick + 3, f"{tick:.0%}", 9, "end", "#555")
    kinds = (("thorough_given_us", "#c98a2b", "tensors as given", ()),
             ("thorough_us", "#1f5fbf", "merging and splitting", (2, 9)))
    for k, (step, colour, label, targets) in enumerate(kinds):
        gaps = sorted(100 * (float(r[step]) / float(r["bound_us"]) - 1) for r in rows)
        points = [(x, y + h)]
        for i, gap in enumerate(gaps):
            px = x + w * min(most, max(0.0, gap)) / most
            points += [(px, points[-1][1]), (px, y + h - h * (i + 1) / len(gaps))]
        svg.line(points, colour, 2)
        for share, target in zip((0.5, 0.9), targets):
            px, py = x + w * target / most, y + h - h * share
            svg.line([(px - 5, py - 5), (px + 5, py + 5)], colour, 2)
            svg.line([(px - 5, py + 5), (px + 5, py - 5)], colour, 2)
        svg.line([(x + w - 290, y + h - 40 + 16 * k), (x + w - 266, y + h - 40 + 16 * k)], colour, 2)
        svg.text(x + w - 260, y + h - 36 + 16 * k, label, 11)
    svg.text(x + w - 260, y + h - 56, "crosses: what 50% and 90% of cases must reach", 11)


def quality(table, to):
    rows = table.rows
    models, columns = [], []
    for r in rows:
        if r["model"] not in models:
            models.append(r["model"])
        if (r["testbed"], r["codec"]) not in columns:
            columns.append((r["testbed"], r["codec"]))
    left, top, w, h, space = 96, 74, 150, 92, 8
    bottom = top + len(models) * (h + space)
    svg = Svg(left + len(columns) * (w + space) + 10, bottom + 330, "Quality of plans over 144 cases")
    svg.text(
        14, 22, "Step over the certified bound, by GPUs; "
        "1x: no strategy can be faster. NVLink: 100 Gbit/s, PCIe: 25 Gbit/s", 13, bold=True)
    legend(svg, 14, 44, [(label, colour, dash) for _, label, colour, dash in LINES], lambda t: 44 + 6.2 * len(t))
    for c, (testbed, codec) in enumerate(columns):
        net = {"nvlink": "NVLink", "pcie": "PCIe"}[testbed]
        svg.text(left + c * (w + space) + w / 2, top - 8, f"{codec}, {net}", 10.5, "middle")
        for m, model in enumerate(models):
            some = [r for r in rows if (r["model"], r["testbed"], r["codec"]) == (model, testbed, codec)]
            quality_panel(svg, left + c * (w + space), top + m * (h + space), w, h, some, c == 0, m == len(models) - 1)
    for m, model in enumerate(models):
        svg.text(8, top + m * (h + space) + h / 2 + 4, model, 11, bold=True)
    svg.text(
        14, bottom + 40,
        "How far above their certified bound espresso+ plans (thorough) are: share of the 144 cases with at most "
        "this gap", 13, bold=True)
    gaps_panel(svg, left, bottom + 60, 900, 230, rows)
    svg.save(os.path.join(to, "plan-quality.svg"))


def growth(table, to):
    rows = table.rows
    left, top, w, h = 70, 60, 620, 330
    svg = Svg(w + left + 30, h + top + 60, "Planning time by the number of tensors")
    svg.text(14, 22, "Planning time by the number of tensors: everything included, one thread", 13, bold=True)
    low, high, fast, slow = math.log10(8), math.log10(6500), math.log10(0.5), math.log10(3000)

    def at(tensors, ms):
        return (left + w * (math.log10(tensors) - low) / (high - low),
                top + h - h * (math.log10(ms) - fast) / (slow - fast))

    svg.box(left, top, w, h)
    for n in (10, 30, 100, 300, 1000, 2000, 5000):
        x = at(n, 1)[0]
        svg.line([(x, top), (x, top + h)], "#eee", 1)
        svg.text(x, top + h + 14, f"{n:,}", 9, "middle", "#555")
    for ms in (1, 10, 100, 1000):
        y = at(10, ms)[1]
        svg.line([(left, y), (left + w, y)], "#eee", 1)
        svg.text(left - 5, y + 3, f"{ms:,} ms", 9, "end", "#555")
    kinds = (("alike", "1", "#1f5fbf", ""), ("distinct", "1", "#1f5fbf", "4 3"), ("alike", "2", "#d0473d", ""),
             ("distinct", "2", "#d0473d", "4 3"))
    labels = []
    for layers, devices, colour, dash in kinds:
        points = [
            at(int(r["tensors"]), float(r["plan_ms"])) for r in rows if (r["layers"], r["devices"]) == (layers, devices)
        ]
        svg.line(points, colour, 1.8, dash)
        for x, y in points:
            svg.dot(x, y, colour, 2.3)
        name = "one device (174 options)" if devices == "1" else "two (4341)"
        labels.append((f"{name}, {'layers alike' if layers == 'alike' else 'each its own sizes'}", colour, dash))
    for ms, colour in ((100, "#1f5fbf"), (500, "#d0473d")):
        x, y = at(2000, ms)
        svg.line([(x - 6, y - 6), (x + 6, y + 6)], colour, 2)
        svg.line([(x - 6, y + 6), (x + 6, y - 6)], colour, 2)
    for k, entry in enumerate(labels):
        legend(svg, left + 12, top + 20 + 16 * k, [entry], lambda t: 0)
    svg.text(left + 12, top + 20 + 16 * 4, "crosses: targets at 2,000 tensors", 11)
    svg.text(left + w / 2, top + h + 34, "tensors", 11, "middle")
    svg.save(os.path.join(to, "plan-growth.svg"))
