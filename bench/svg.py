"""svg.py: pictures of results (standard library only)."""
import os

FONT = 'font-family="sans-serif"'


class Svg:
    def __init__(self, width, height, title):
        self.out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">',
            f"<title>{title}</title>", f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def text(self, x, y, words, size=11, anchor="start", colour="#222", bold=False):
        weight = ' font-weight="bold"' if bold else ""
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" {FONT} font-size="{size}" text-anchor="{anchor}" '
                        f'fill="{colour}"{weight}>{words}</text>')

    def line(self, points, colour, width=1.4, dash=""):
        at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = f' stroke-dasharray="{dash}"' if dash else ""
        self.out.append(f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>')

    def dot(self, x, y, colour, r=2.0):
        self.out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{colour}"/>')

    def box(self, x, y, w, h):
        self.out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="none" stroke="#bbb"/>')

    def save(self, path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path + ".tmp", "w") as f:
            f.write("\n".join(self.out) + "\n</svg>\n")
        os.replace(path + ".tmp", path)


def legend(svg, x, y, entries, step):
    for label, colour, dash in entries:
        svg.line([(x, y - 4), (x + 24, y - 4)], colour, 2, dash)
        svg.text(x + 29, y, label, 11)
        x += step(label)
