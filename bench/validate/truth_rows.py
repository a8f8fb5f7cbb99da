"""truth_rows.py: the arithmetic of bench/validate/truth: the errors of rows of predicted and measured times, and how
many rows meet the targets. Knows nothing of how either was found. A row is a dict; times are in milliseconds a step:

    trainer ranks link strategy   what ran
    predicted measured            the step; measured is 0 where the run failed
    spread                        quartile distance of the measured steps / their median
    computing                     forward, backward and update, from the model file
    lanes                         {lane: [predicted, measured]}: busy time
    classes                       {op class: [predicted, measured]}: time of all ops of the class
"""
import csv
import math

import tables

NOISY = 0.25 # a spread above this: the measured step is no number to compare with, which is a miss
LEAST = 0.01 # lanes and op classes that take less than this part of the step, predicted and measured, are left out
PAIR = 0.02 # strategies whose measured steps are closer than this have no order
TARGETS = [ # what, target of the median, target of 90% of the cases
    ("step", 0.05, 0.10), ("gain over fp32", 0.05, 0.12), ("busy time of a lane", 0.10, 0.25), ("op class", 0.15, None),
]
RIGHT_ORDER = 0.95
LANES = ("compute", "cpu", "intra", "inter", "outer")


def quantile(values, part):
    """The smallest value that `part` of all values do not exceed; a miss is an infinite value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else math.nan


def middle(values):
    ordered, n = sorted(values), len(values)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2 if n else math.nan


def spread(values):
    """Quartile distance / median."""
    return (quantile(values, 0.75) - quantile(values, 0.25)) / middle(values) if values else math.inf


def noisy(row):
    return not row["measured"] > 0 or not row["spread"] <= NOISY


def ratio(a, b):
    return a / b if b > 0 else 0.0


def error(predicted, measured):
    """predicted / measured - 1. Nothing measured where something was predicted, or the other way round, is a miss."""
    if measured > 0 and predicted > 0:
        return predicted / measured - 1
    return 0.0 if measured == predicted else math.inf


def step_error(row):
    return math.inf if noisy(row) else error(row["predicted"], row["measured"])


def rest_error(row):
    """The error of what is not computing, as a part of what was measured of it; None where that is under 5% of the
    step."""
    predicted, measured = row["predicted"] - row["computing"], row["measured"] - row["computing"]
    if max(predicted, measured) < 0.05 * row["measured"]:
        return None
    return math.inf if noisy(row) or measured <= 0 else predicted / measured - 1


def age(seconds):
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def case_of(row):
    return row["trainer"], row["ranks"], row["link"]


def cases_of(rows):
    cases = {}
    for row in rows:
        cases.setdefault(case_of(row), []).append(row)
    return cases


def fp32_of(rows, row):
    for other in rows:
        if case_of(other) == case_of(row) and other["strategy"] == "fp32":
            return other
    return None


def gains(rows, row):
    """The gain over fp32, predicted and measured: [1.2, 1.1]; None for fp32 itself, and where fp32 did not run."""
    fp32 = fp32_of(rows, row)
    if not fp32 or fp32 is row:
        return None
    return [ratio(fp32["predicted"], row["predicted"]), ratio(fp32["measured"], row["measured"])]


def gain_error(rows, row):
    """The error of the gain; None for fp32."""
    gain = gains(rows, row)
    if not gain:
        return None
    return math.inf if noisy(row) or noisy(fp32_of(rows, row)) else error(*gain)


def parts_of(row, key):
    """Errors of the row's lanes or op classes that count: [(name, error)]."""
    out = []
    for name, (predicted, measured) in sorted(row[key].items()):
        if row["measured"] > 0 and max(predicted, measured) >= LEAST * row["measured"]:
            out.append((name, math.inf if noisy(row) else error(predicted, measured)))
    return out


def pairs(rows):
    """Pairs of strategies of one case that are further apart than PAIR: (right, all). A pair with a noisy step is not
    right."""
    right = total = 0
    for case in cases_of(rows).values():
        for i, a in enumerate(case):
            for b in case[:i]:
                if noisy(a) or noisy(b):
                    total += 1
                    continue
                low, high = sorted((a["measured"], b["measured"]))
                if high / low - 1 <= PAIR:
                    continue
                total += 1
                right += (a["measured"] < b["measured"]) == (a["predicted"]
                                                             < b["predicted"]) and a["predicted"] != b["predicted"]
    return right, total


def errors(rows):
    """Errors by what the targets are about."""
    gain = [gain_error(rows, row) for row in rows]
    return {
        "step": [step_error(row) for row in rows],
        "gain over fp32": [e for e in gain if e is not None],
        "busy time of a lane": [e for row in rows for _, e in parts_of(row, "lanes")],
        "op class": [e for row in rows for _, e in parts_of(row, "classes")],
    }


def by_name(rows, key):
    out = {}
    for row in rows:
        for name, e in parts_of(row, key):
            out.setdefault(name, []).append(e)
    return out


def percent(value, signed=False):
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "miss"
    return f"{100 * value:{'+' if signed else ''}.{0 if abs(value) >= 0.1 else 1}f}%"


def met(value, target):
    return "met" if value <= target else "missed"


def summary(rows):
    """The table of targets: a list of lines."""
    out = [f"{'':<26} {'number':>7} {'median':>8} {'target':>7} {'':<7} {'90% of them':>11} {'target':>7}"]
    found = errors(rows)
    for what, median, most in TARGETS:
        sizes = [abs(e) for e in found[what]]
        if not sizes:
            out.append(f"{what:<26} {0:>7} {'-':>8} {percent(median):>7} missed")
            continue
        at, tail = quantile(sizes, 0.5), quantile(sizes, 0.9)
        line = f"{what:<26} {len(sizes):>7} {percent(at):>8} {percent(median):>7} {met(at, median):<7}"
        line += f" {percent(tail):>11}"
        out.append(line + (f" {percent(most):>7} {met(tail, most)}" if most else ""))
    for name, list_ in sorted(by_name(rows, "classes").items()):
        at = quantile([abs(e) for e in list_], 0.5)
        usual = quantile(list_, 0.5)
        out.append(
            f"  {name:<24} {len(list_):>7} {percent(at):>8} {percent(0.15):>7} {met(at, 0.15):<7} predicted / "
            "measured: "
            f"{percent(usual, True)}")
    for name, list_ in sorted(by_name(rows, "lanes").items()):
        out.append(
            f"  lane {name:<19} {len(list_):>7} {percent(quantile([abs(e) for e in list_], 0.5)):>8} {'':>7} {'':<7} "
            "predicted / "
            f"measured: {percent(quantile(list_, 0.5), True)}")
    rest = [abs(e) for e in map(rest_error, rows) if e is not None]
    out.append(
        f"{'not computing':<26} {len(rest):>7} {percent(quantile(rest, 0.5)):>8} {'':>7} {'':<7} "
        f"{percent(quantile(rest, 0.9)):>11}"
    )
    right, total = pairs(rows)
    share = right / total if total else math.nan
    out.append(f"pairs in the right order   {total:>7} {percent(share):>8} {percent(RIGHT_ORDER):>7} "
               f"{'met' if total and share >= RIGHT_ORDER else 'missed'}")
    bad = sum(noisy(row) for row in rows)
    out.append(f"noisy or failed            {bad:>7} of {len(rows)} rows; each of them counts as a miss above")
    return out


def table(rows):
    """A line for each row, case by case: a list of lines."""
    out = []
    for (trainer, ranks, link), case in cases_of(rows).items():
        out.append("")
        out.append(
            f"{trainer}, {ranks} {'rank' if ranks == 1 else 'ranks'}, link {link}; computing "
            f"{case[0]['computing']:.1f} ms; "
            f"costs measured {age(case[0]['age_s'])} before, {case[0]['noisy_costs']} files of them noisy; others "
            f"took {percent(case[0]['others'])} of the machine"
        )
        out.append(f"  {'strategy':<22} {'predicted':>9} {'measured':>9} {'error':>6} {'spread':>6}  {'gain':>11}  "
                   f"{'not computing':>15}  lanes: predicted/measured ms")
        for row in case:
            gain = gains(rows, row)
            rest = f"{row['predicted'] - row['computing']:.1f}/{row['measured'] - row['computing']:.1f}"
            lanes = "  ".join(f"{name} {p:.1f}/{m:.1f}" for name, (p, m) in sorted(row["lanes"].items())
                              if max(p, m) >= 0.05)
            shown = "miss" if noisy(row) else percent(step_error(row), True)
            out.append(
                f"  {row['strategy']:<22} {row['predicted']:>9.1f} {row['measured']:>9.1f} {shown:>6} "
                f"{percent(row['spread']):>6}  {'' if not gain else '%.2f/%.2f' % tuple(gain):>11}  {rest:>15}  {lanes}"
            )
    return out


def short_table(rows):
    """A line for each case: a list of lines."""
    out = [
        "",
        "A line for each case; ms, predicted/measured; error: of the step, median over the case's strategies; best: "
        "the fastest measured of "
        "fp32 and layerwise;",
        "others: part of the machine that other programs took meanwhile; ?: a noisy step. Every strategy is in "
        "truth.csv.",
        "",
        f"{'trainer':<16} {'ranks':>5} {'link':>11} {'computing':>9} {'fp32':>16} {'plan':>16} {'best':>8}  "
        f"{'error':>6} {'in order':>9} "
        f"{'costs':>8} {'others':>6}"
    ]
    for (trainer, ranks, link), case in cases_of(rows).items():
        by = {row["strategy"]: row for row in case}
        both = {
            name: f"{by[name]['predicted']:.1f}/{by[name]['measured']:.1f}{'?' if noisy(by[name]) else ''}"
            if name in by else ""
            for name in ("fp32", "plan")
        }
        plain = [
            row["measured"] for row in case
            if row["strategy"].split()[0] in ("fp32", "layerwise") and row["measured"] > 0
        ]
        right, total = pairs(case)
        off = quantile([abs(step_error(row)) for row in case], 0.5)
        out.append(
            f"{trainer:<16} {ranks:>5} {link:>11} {case[0]['computing']:>9.1f} {both['fp32']:>16} {both['plan']:>16} "
            f"{min(plain, default=0):>8.1f}  {percent(off):>6} {f'{right}/{total}':>9} {age(case[0]['age_s']):>8} "
            f"{percent(case[0]['others']):>6}"
        )
    return out


CSV = [
    "trainer", "ranks", "link", "strategy", "predicted_ms", "measured_ms", "error", "spread", "steps", "computing_ms",
    "gain_predicted", "gain_measured", "age_s", "noisy_costs", "others"
]


def rows_of(cells):
    """The rows from the dicts of a CSV that csv_lines made."""
    out = []
    for r in cells:
        row = {key: r[key] for key in ("trainer", "link", "strategy")}
        row.update({key: int(r[key]) for key in ("ranks", "steps", "age_s", "noisy_costs")})
        row.update({key: float(r[f"{key}_ms"]) for key in ("predicted", "measured", "computing")})
        row.update({key: float(r[key]) for key in ("spread", "others")}, lanes={}, classes={})
        for name in (key[:-len("_predicted_ms")] for key in r
                     if key.endswith("_predicted_ms") and key != "predicted_ms"):
            pair = [float(r[f"{name}_{side}_ms"]) for side in ("predicted", "measured")]
            if any(pair):
                row["lanes" if name in LANES else "classes"][name] = pair
        out.append(row)
    return out


def report(rows, head):
    """What bench/validate/truth prints: a list of lines. Times are rounded as in the CSV, so that both give the same
    text."""
    rows = rows_of(csv.DictReader(csv_lines(rows)))
    return head + [""] + summary(rows) + (table(rows) if len(cases_of(rows)) < 4 else short_table(rows))


def csv_lines(rows):
    """The CSV: fixed columns, then a pair of columns for each lane and op class that any row has."""
    names = [(key, name) for key in ("lanes", "classes") for name in sorted({n for row in rows for n in row[key]})]
    columns, table_ = CSV + [f"{name}_{side}_ms" for _, name in names for side in ("predicted", "measured")], []
    for row in rows:
        gain = gains(rows, row) or ["", ""]
        error_ = step_error(row)
        fixed = [
            row["trainer"], row["ranks"], row["link"], row["strategy"], f"{row['predicted']:.3f}",
            f"{row['measured']:.3f}", "miss" if math.isinf(error_) else f"{error_:.4f}", f"{row['spread']:.4f}",
            row["steps"], f"{row['computing']:.3f}"
        ]
        fixed += [f"{g:.4f}" if g != "" else ""
                  for g in gain] + [round(row["age_s"]), row["noisy_costs"], f"{row['others']:.3f}"]
        pairs_ = [f"{v:.3f}" for key, name in names for v in row[key].get(name, [0, 0])]
        table_.append(fixed + pairs_)
    return tables.csv_lines([], columns, table_)
