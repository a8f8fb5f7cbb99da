"""tables.py: results as CSV: lines that begin with # describe what was measured and the machine, and the first other
line has the columns (standard library only)."""
import csv
import io
import os
import time


class Table:
    """head: the comment lines without #; columns: names; rows: a dict each."""
    def __init__(self, path):
        self.name = os.path.splitext(os.path.basename(path))[0]
        with open(path, newline="") as f:
            lines = f.read().split("\n")
        self.head = [line[1:].strip() for line in lines if line.startswith("#")]
        reader = csv.DictReader(line for line in lines if line and not line.startswith("#"))
        self.rows = list(reader)
        self.columns = reader.fieldnames


def is_number(text):
    try:
        float(text)
        return True
    except ValueError:
        return False


def text(table):
    """The table as aligned lines below its description."""
    cells = [table.columns] + [[row[column] or "-" for column in table.columns] for row in table.rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(table.columns))]
    right = [all(is_number(row[column] or "0") for row in table.rows) for column in table.columns]
    out = [f"{cell:>{w}}" if r else f"{cell:<{w}}" for line in cells for cell, w, r in zip(line, widths, right)]
    n = len(table.columns)
    return table.head + [""] + ["  ".join(out[i:i + n]).rstrip() for i in range(0, len(out), n)]


def csv_lines(head, columns, rows):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return ["# " + line for line in head] + out.getvalue().splitlines()


def write(path, lines):
    """Replaces the file at once, so that it is always whole."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path + ".tmp", "w") as f:
        f.write("\n".join(lines) + "\n")
    os.replace(path + ".tmp", path)


def machine():
    cpu = "unknown CPU"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":")[1].strip()
    load = " ".join(f"{x:.2f}" for x in os.getloadavg())
    return (
        f"machine: {len(os.sched_getaffinity(0))} cores, {cpu}; {os.uname().sysname} {os.uname().release}; load "
        f"before: {load}; "
        f"{time.strftime('%F')}")
