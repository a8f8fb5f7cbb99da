# test_truth.sh: the arithmetic of bench/validate/truth with made-up rows: errors, quantiles, pairs, misses; it can come out well and badly.
command -v python3 >/dev/null || {
    echo "skipped: python3 is not there"
    exit 77
}
python3 -B - <<'PYTHON' || exit 1
import math
import sys
sys.path[:0] = ["bench/validate", "bench"]
import truth_rows as t

def row(strategy, predicted, measured, trainer="a", spread=0.01, lanes=None, classes=None):
    return {"trainer": trainer, "ranks": 4, "link": "none", "strategy": strategy, "predicted": predicted, "measured": measured,
            "spread": spread, "steps": 9, "computing": 50.0, "lanes": lanes or {}, "classes": classes or {}, "age_s": 60,
            "noisy_costs": 0, "others": 0.0}

def same(got, wanted):
    assert got == wanted or math.isclose(got, wanted, rel_tol=1e-9), f"{got}, not {wanted}"

# quantiles: a value that is there, the upper one in doubt; of ten, 90% is the ninth
same(t.quantile([3, 1, 2], 0.5), 2)
same(t.quantile([1, 2], 0.5), 1)
same(t.quantile(range(1, 11), 0.9), 9)
same(t.quantile(range(1, 12), 0.9), 10)
same(t.quantile([1, 2, math.inf], 0.9), math.inf)
same(t.middle([4, 1, 2, 3]), 2.5)
same(t.spread([90, 100, 100, 110]), 0.0 + (100 - 90) / 100)
assert math.isinf(t.spread([]))

# errors: a side that is 0 is a miss, both are right
same(t.error(90, 100), -0.1)
assert math.isinf(t.error(1, 0)) and math.isinf(t.error(0, 1))
same(t.error(0, 0), 0)
assert math.isinf(t.step_error(row("x", 100, 100, spread=0.26))) and math.isinf(t.step_error(row("x", 100, 0)))

# what is not computing (here 50 ms): as a part of itself, and left out where it is under 5% of the step
same(t.rest_error(row("x", 90, 100)), -0.2)
assert math.isinf(t.rest_error(row("x", 90, 45))) and math.isinf(t.rest_error(row("x", 90, 100, spread=0.3)))
assert t.rest_error(row("x", 51, 52)) is None

# gains: of the same case; of nothing for fp32; a noisy fp32 spoils them
rows = [row("fp32", 200, 220), row("x", 100, 100), row("fp32", 50, 50, "b"), row("x", 50, 100, "b")]
same(t.gains(rows, rows[1])[0], 2.0)
same(t.gains(rows, rows[1])[1], 2.2)
same(t.gain_error(rows, rows[1]), 2.0 / 2.2 - 1)
same(t.gain_error(rows, rows[3]), 1.0)
assert t.gain_error(rows, rows[0]) is None
rows[0]["spread"] = 0.5
assert math.isinf(t.gain_error(rows, rows[1])) and not math.isinf(t.gain_error(rows, rows[3]))

# pairs: within a case, more than 2% apart, in the same order; equal predictions and noisy rows are wrong
same(t.pairs([row("x", 100, 100), row("y", 90, 101.9)]), (0, 0))
same(t.pairs([row("x", 100, 100), row("y", 90, 102.1)]), (0, 1))
same(t.pairs([row("x", 100, 100), row("y", 101, 102.1)]), (1, 1))
same(t.pairs([row("x", 100, 100), row("y", 100, 110)]), (0, 1))
same(t.pairs([row("x", 100, 100), row("y", 120, 120, spread=0.5)]), (0, 1))
same(t.pairs([row("x", 100, 100), row("y", 120, 120, "b")]), (0, 0))

# a CSV that is read again says the same (--keep)
rows = [row("fp32", 200, 220, lanes={"inter": [5, 10]}), row("x", 100, 0, classes={"comp@cpu": [1, 2]}), row("x", 50, 100, "b", 0.5)]
import csv
again = t.rows_of(csv.DictReader(t.csv_lines(rows)))
assert t.csv_lines(again) == t.csv_lines(rows) and t.summary(again) == t.summary(rows)
assert t.table(again) == t.table(rows) and t.short_table(again) == t.short_table(rows)
assert [t.case_of(r) for r in again] == [t.case_of(r) for r in rows]

# lanes and classes: what is under 1% of the step on both sides is left out
r = row("x", 100, 100, lanes={"inter": [5, 10], "cpu": [0.2, 0.9]}, classes={"comp@cpu": [0, 2]})
same(t.parts_of(r, "lanes"), [("inter", -0.5)])
assert math.isinf(t.parts_of(r, "classes")[0][1])

def said(rows, what):
    line = next(l for l in t.summary(rows) if l.strip().startswith(what))
    return "".join(c for c, word in (("m", "met"), ("M", "missed")) for w in line.split() if w == word), line

# all as predicted: every target is met
def good(i, share=1.0):
    out = []
    for strategy, ms in (("fp32", 200), ("x", 150), ("y", 100)):
        out.append(row(strategy, ms * share, ms, f"t{i}", lanes={"inter": [ms / 2 * share, ms / 2]},
                       classes={"inter.allreduce": [ms / 2 * share, ms / 2]}))
    return out
rows = [r for i in range(10) for r in good(i)]
for what in ("step", "gain", "busy time", "op class", "inter.allreduce", "pairs"):
    flags, line = said(rows, what)
    assert "m" in flags and "M" not in flags, line
# a fifth more everywhere: steps, lanes and classes are missed; gains and order are not
rows = [r for i in range(10) for r in good(i, 1.2)]
for what, wanted in (("step", "MM"), ("busy time", "mM"), ("op class", "M"), ("inter.allreduce", "M"), ("gain", "mm"), ("pairs", "m")):
    flags, line = said(rows, what)
    assert flags.count("M") == wanted.count("M"), line
# one case of ten noisy: medians hold, 90% do too; two: they do not
rows = [r for i in range(10) for r in good(i)]
for r in rows[:3]: r["spread"] = 0.9
assert said(rows, "step")[0] == "mm", said(rows, "step")[1]
assert said(rows, "pairs")[0] == "M", said(rows, "pairs")[1]
for r in rows[3:6]: r["spread"] = 0.9
assert said(rows, "step")[0] == "mM", said(rows, "step")[1]
# no rows with a number: nothing is met
assert "m" not in said([row("fp32", 1, 0)], "op class")[0] and "m" not in said([], "pairs")[0]
# the CSV is as wide everywhere; a noisy row says so
widths = {len(l.split(",")) for l in t.csv_lines(rows)}
assert len(widths) == 1 and ",miss," in t.csv_lines(rows)[1], t.csv_lines(rows)
assert any("miss" in l for l in t.table(rows))
short = t.short_table(rows)
assert len(short) == 5 + 10 and "200.0/200.0?" in short[5] and "3/3" in short[14] and "0/3" in short[5], short
# a plan's ops: an op begins when its input and its links are there, as in the trace of a run, and may then wait for a core
import truth_runs
def event(name, tid, ts, dur, tensor, **args):
    return {"ph": "X", "name": name, "tid": tid, "ts": ts * 1e3, "dur": dur * 1e3, "args": {"tensor": tensor, **args}}
plan = [event("backward", 0, 0, 10, "a"), event("backward", 0, 10, 10, "b"), event("backward", 0, 30, 10, "c"),
        event("comp@cpu", 0, 20, 4, "a", unit=0, tensors=2, step=0), event("comp@cpu", 1, 20, 4, "a", unit=0, tensors=2, step=0),
        event("inter.x", 0, 28, 2, "a", unit=0, tensors=2, step=1, takes_us=9e3), event("inter.x", 3, 28, 6, "a", unit=0, tensors=2, step=1, takes_us=9e3),
        event("inter.x", 3, 41, 5, "c", unit=1, tensors=1, step=0)]
classes, lanes = truth_runs.plan_times(plan)
same(classes["comp@cpu"], 4)
same(classes["inter.x"], (28 - 24 + 9) + (41 - 40 + 5)) # the link is free at 34, c is ready at 40
same(lanes["inter"], (28 - 24 + 6) + (41 - 40 + 5))
same(lanes["cpu"], 4)
same(lanes["compute"], 30)

# bench/validate/auto: each target can be met and missed; the CSV and the text agree
import auto_rows, auto_runs
def case(fp32=20.0, chosen=10.0, measuring=0.01):
    return {"trainer": "a", "ranks": 4, "link": "none", "busy": 0, "rounds": 2, "steps": 9, "others": 0.0, "fp32": fp32, "best": 10.0, "chosen": chosen,
            "error": 0.01, "measuring": measuring, "choices": f"plan 10.0000; auto's x, y {chosen:.4f}"}
outcomes = lambda rows: [line.rsplit(" ", 1)[1] for line in auto_rows.report(rows, [])[1:4]]
assert outcomes([case()]) == ["met", "met", "met"], outcomes([case()])
assert outcomes([case(), case(fp32=9.7)]) == ["missed", "met", "met"]
assert outcomes([case(), case(chosen=10.4)]) == ["met", "missed", "met"]
assert outcomes([case()] * 19 + [case(chosen=10.4)]) == ["met", "met", "met"] # 95% of the cases
assert outcomes([case(measuring=0.04)]) == ["met", "met", "missed"]
assert "choices within 3%: 3 of 4" in auto_rows.report([case(), case(chosen=10.4)], [])[4]
assert auto_rows.report(auto_rows.rows_of(csv.DictReader(auto_rows.csv_lines([case()], []))), []) == auto_rows.report([case()], [])
# the second round came while the machine was 1.5 times as slow; b, which auto chose twice, is 4% slower than a
rounds = [{"a": 10.0 * m, "b": 10.4 * m} for m in (1, 1.5, 1)] + [{"a": 12.0, "b": 10.4}]
got = auto_rows.scored({"a": 9.0, "far": 30.0}, rounds, ["a", "b", "b"], [(50.0, 3, 10.0), (80.0, 4, 13.0), (90.0, 5, 13.0)])
same(got["chosen"] / got["best"], 1.04)
assert got["best"] == got["a"] and  [round(d, 3) for d in auto_rows.decisions(got)] == [0, 0.04, 0.04], got
same(got["far"] / got["best"], 30.0 / 9.0) # a and far ran alone, while the machine was faster
same(got["measuring"], (90.0 / 12.5 - 5) / 1000) # of 50 / 10 - 3, 80 / 12.5 - 4 and this
same(auto_rows.error([1, 2, 3, 4, 5]), 1.253 * 2 / 1.349 / 5**0.5)
# what auto chose, and after how many steps
stats = auto_runs.Stats("stats")
for line in [{"kind": "strategy", "strategy": h, "text": f"tensor {h}"} for h in ("one", "two")] + [
        {"kind": "sample", "step": 9 + k, "steps": 1, "step_us": {"mean": 1e3 * (1 + k)}, "phase": "measuring" if k < 3 else "watching",
         "strategy": "one" if k < 4 else "two"} for k in range(6)]:
    stats.add(line)
assert stats.decided() == 13 and stats.text() == "tensor two" and stats.has(1) and not stats.has(2)
assert stats.total(10, 12) == (5.0, 2), stats.total(10, 12)
# it is one that is there already, or a new one
runs = auto_runs.Runs.__new__(auto_runs.Runs)
runs.texts = {"fp32": "tensor t\norder 1\n"}
assert runs.known("fp32", "tensor t\norder 1\n") == "fp32" != runs.known("fp32", "tensor t\norder 2\n")
assert runs.known("x", "tensor u\norder 1\n") == "auto's x" == runs.known("x", "tensor u\norder 2\n")
assert runs.known("x", "tensor v\n") == "auto's x'"
PYTHON
echo ok
