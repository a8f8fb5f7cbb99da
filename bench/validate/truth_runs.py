"""truth_runs.py: strategies and predictions of bench/validate/truth, from `espresso plan`, and runs with statistics and
a trace. Knows nothing of targets."""
import json
import os
import random
import re

import truth_replay
import truth_rows
from truth_costs import CODECS, Hosts, Others, Problem, call, cost_files, costs_state
from truth_costs import links_of, model_file, model_in, plain

WARM = 3 # first steps of a run that do not count

# ---- strategies and predictions --------------------------------------------------------------------------------------
LANES = {
    0: "compute",
    1: "cpu",
    2: "intra",
    3: "inter",
    4: "outer"
} # the lanes of a plan's trace; others are cores of the library's threads


def plan_times(events):
    """From a plan's trace: {op class: ms} and {lane: ms}, by the rules of op_times. A trace of a run has an op's begin
    when its input and its links are there: from then on it may wait for a core. A plan's trace has it when it has its
    core too, so the wait is added here, to the op and to its links. An op on several lanes is there once for each, for
    as long as it keeps that lane."""
    ops, ended, lanes, classes, free, last = {}, {}, {}, {}, {}, {}
    for e in events:
        end = e["ts"] + e["dur"]
        if e["name"] == "backward":
            ended[e["args"]["tensor"]] = end
            lanes["compute"] = lanes.get("compute", 0) + e["dur"] / 1e3
        elif "unit" in e["args"]:
            op = ops.setdefault((e["ts"], e["args"]["unit"], e["args"]["step"], e["name"]), {
                "keeps": {},
                "args": e["args"],
                "takes": 0
            })
            op["keeps"][e["tid"]] = e["dur"]
            op["takes"] = max(op["takes"], e["args"].get("takes_us", e["dur"]))
    order = sorted(ended, key=ended.get)
    for (start, unit, _, name), op in sorted(ops.items(), key=lambda item: item[0][:3]):
        first = order.index(op["args"]["tensor"])
        links = [tid for tid in op["keeps"] if LANES.get(tid, "") in ("intra", "inter", "outer")]
        begin = max([last.get(unit, ended[order[min(first + op["args"]["tensors"], len(order)) - 1]])] +
                    [free.get(tid, 0) for tid in links])
        wait = max(start - begin, 0) if links else 0 # a codec begins when it has its core
        last[unit] = start + op["takes"]
        classes[name] = classes.get(name, 0) + (wait + op["takes"]) / 1e3
        for tid, keeps in op["keeps"].items():
            free[tid] = start + keeps
            if tid in LANES and tid != 0 and (tid in links or not links):
                lanes[LANES[tid]] = lanes.get(LANES[tid], 0) + (wait + keeps if tid in links else keeps) / 1e3
    return classes, lanes


def plan(tools, case, codecs, strategy, out, link=None):
    """Plans, or predicts a strategy: writes it to `out`, and returns the prediction."""
    model, links, measured = (os.path.abspath(path) for path in cost_files(tools, case, link))
    words = [
        "plan", "--model", model, "--system", links, "--costs", measured, "-o", out, "--json", "--trace", out + ".trace"
    ]
    for codec in codecs:
        words += ["--gc", codec]
    report = json.loads(tools.call(*words, *(["--strategy", strategy] if strategy else [])))
    with open(out + ".trace") as f:
        events = [e for e in json.load(f)["traceEvents"] if e["pid"] == 2 and e["ph"] == "X"]
    computing = sum(e["dur"] for e in events if e["name"] in ("forward", "backward", "update")) / 1e3
    classes, lanes = plan_times(events)
    if not case.trainer.command: # replay computes for a given time: nothing to compare
        lanes.pop("compute", None)
    return {
        "file": out,
        "predicted": report["iteration_us"] / 1e3,
        "lanes": lanes,
        "classes": classes,
        "computing": computing
    }


def alone(tools, case):
    """One rank has no links to be profiled: its step is its computing."""
    m = model_in(model_file(tools, case))
    ms = (m["forward_us"] + m.get("update_us", 0) + sum(t["compute_us"] for t in m["tensors"])) / 1e3
    return {"file": "fp32", "predicted": ms, "lanes": {}, "classes": {}, "computing": ms}


def random_strategy(tools, case, seed, out):
    """Draws an option of the tree for each tensor, and a codec where the option compresses."""
    draw = random.Random(f"{seed} {case.trainer.name} {case.ranks} {case.link}")
    part = "--forbid" if 1 < case.machines < case.ranks else "--match"
    options = tools.call("tree", "--forbid", "@gpu", part, "flat").splitlines()
    tensors = model_in(model_file(tools, case))["tensors"]
    with open(out, "w") as f:
        f.write("espresso-strategy 1\n")
        for t in tensors:
            option = draw.choice(options)
            f.write(
                f"tensor {t['name']} {t['elements']} {draw.choice(CODECS) if 'comp@' in option else 'none'} {option}\n")
    return out


def strategies(tools, case, seed):
    """What is run in a case: {name: prediction}."""
    base = os.path.abspath(os.path.join(tools.work, plain(f"{case.trainer.name}-{case.ranks}-{case.link}")))
    if case.ranks == 1:
        return {"fp32": alone(tools, case)}
    out = {"fp32": plan(tools, case, CODECS[:1], "fp32", base + "-fp32")}
    for codec in CODECS:
        out[f"layerwise {codec.split(':')[0]}"] = plan(tools, case, [codec], "layerwise", f"{base}-{plain(codec)}")
    for i in (1, 2):
        drawn = random_strategy(tools, case, seed * 2 + i, f"{base}-random{i}.in")
        out[f"random {i}"] = plan(tools, case, CODECS, drawn, f"{base}-random{i}")
    out["plan"] = plan(tools, case, CODECS, None, base + "-plan")
    for link in links_of(case)[1:]:
        other = plan(tools, case, CODECS, None, base + "-other.in", link)
        out[f"plan for {link}"] = plan(tools, case, CODECS, other["file"], base + "-other")
    return out


# ---- runs ------------------------------------------------------------------------------------------------------------
def read_samples(path):
    """The samples of a statistics file that have steps; None: there is no file."""
    try:
        with open(path) as f:
            return [
                s for s in (json.loads(line) for line in f if line.endswith("\n") and '"kind":"sample"' in line)
                if s["steps"]
            ]
    except FileNotFoundError:
        return None


def read_stats(path):
    """Steps from a statistics file: [(number of the last step, steps, their median in ms)]."""
    samples = read_samples(path)
    return samples and [(s["step"], s["steps"], s["step_us"]["median"] / 1e3) for s in samples]


def step_times(samples):
    """The steps that count; a sample of several steps stands for each of them."""
    return [ms for last, n, ms in samples for k in range(n) if last - k > WARM]


def op_times(paths, machines):
    """From the ranks' traces: {step: {op class: ms}} and {step: {lane: ms}}. A collective runs from when its last rank
    began until its last rank ended: before that ranks wait for each other. What ranks compress they do at the same
    time, so their mean counts."""
    events = []
    for path in paths:
        with open(path) as f:
            events += json.load(f)["traceEvents"]
    machine, index, count = {}, {}, {}
    for e in events:
        if e["ph"] == "M" and e["name"] == "process_name":
            rank, m = map(int, re.match(r"rank (\d+) \(machine (\d+)\)", e["args"]["name"]).groups())
            machine[e["pid"]], index[e["pid"]] = m, count.get(m, 0)
            count[m] = count.get(m, 0) + 1
    groups, times, backward = {}, {}, {}
    for e in events:
        if e["ph"] == "X" and e["cat"] == "compute":
            of = backward.setdefault(e["args"]["step"], {})
            of[e["pid"]] = of.get(e["pid"], 0) + e["dur"] / 1e3
    for e in sorted((e for e in events if e["ph"] == "X" and e["cat"] != "compute"), key=lambda e: e["ts"]):
        what, lane, pid, step = e["name"].split(" ")[0], e["cat"], e["pid"], e["args"]["step"]
        who = {"intra": machine[pid], "inter": index[pid]}.get(what.split(".")[0], -1 if "." in what else -2)
        nth = times.setdefault((pid, step, lane, e["name"]), [0])
        groups.setdefault((step, lane, e["name"], who, nth[0]), []).append((e["ts"], e["ts"] + e["dur"]))
        nth[0] += 1
    classes, parts, lanes = {}, {}, {step: {"compute": sum(of.values()) / len(of)} for step, of in backward.items()}
    for (step, lane, name, who, nth), spans in groups.items():
        if who == -2:
            ms = sum(b - a for a, b in spans) / len(spans) / 1e3
        else:
            ms = max(max(b for _, b in spans) - max(a for a, _ in spans), 0) / 1e3
        parts.setdefault((step, lane, name, nth), []).append(ms)
    for (step, lane, name, nth), list_ in parts.items(): # groups of the same op run at the same time: their mean counts
        ms, what = sum(list_) / len(list_), name.split(" ")[0]
        flat = what.startswith(
            "flat.") # it is there once for each lane; there is no intra link between machines of one rank
        if not flat or lane != "intra" or max(count.values()) > 1:
            lanes.setdefault(step, {}).setdefault(lane, 0)
            lanes[step][lane] += ms
        if not flat or lane == "inter" or machines == 1:
            classes.setdefault(step, {}).setdefault(what, 0)
            classes[step][what] += ms
    return classes, lanes


def medians(per_step):
    """{step: {name: ms}} of the steps that count: {name: median}."""
    count = [v for step, v in per_step.items() if step >= WARM]
    names = {name for v in count for name in v}
    return {name: truth_rows.middle([v.get(name, 0) for v in count]) for name in names}


def run(tools, case, prediction, steps, hosts=None):
    """One run under one strategy: (step times, {op class: ms}, {lane: ms})."""
    stats, trace = (os.path.abspath(os.path.join(tools.work, name))
                    for name in (f"run-{os.getpid()}.stats.jsonl", f"run-{os.getpid()}.%r.trace.json"))
    traces = [trace.replace("%r", str(rank)) for rank in range(case.ranks)]
    enough = steps + WARM
    made = lambda: all(map(os.path.exists, traces)) and (read_stats(stats) or [(0, 0, 0)])[-1][0] >= enough
    try:
        job = {
            "ESPRESSO_STRATEGY": prediction["file"],
            "ESPRESSO_STATS": f"{stats},every=100ms",
            "ESPRESSO_TRACE": f"{trace},steps={enough}"
        }
        words = [tools.command, "run", *case.place(), "--no-prefix", "--", *case.trainer.words(enough)]
        words, job = hosts.words(case, case.trainer.words(enough), job) if hosts else (words, job)
        call(words, job, 240, None if case.trainer.counts else made)
        samples = read_stats(stats)
        if samples is None:
            raise Problem(
                f"{case.trainer.command[0]} ended and never called esp_start: is it a program that uses espresso?")
        times = step_times(samples)
        if len(times) < 4:
            raise Problem(
                f"{case.trainer.command[0]} made {samples[-1][0] if samples else 0} steps; {WARM + 4} or more are "
                "needed: "
                "let it train longer, or write {steps} where its command line has their number")
        classes, lanes = op_times(traces, case.machines)
    finally:
        for path in [stats] + traces:
            if os.path.exists(path):
                os.remove(path)
    return times, medians(classes), medians(lanes)


def pair_up(predicted, measured):
    names = set(predicted) | set(measured)
    return {name: [predicted.get(name, 0.0), measured.get(name, 0.0)] for name in names}


def trainer_runs(tools, case, known, asked, log, hosts=None):
    """Each strategy in turn, `asked.rounds` times: {name: (steps, spread, median, {op class: ms}, {lane: ms})}."""
    got, order, out = {name: [] for name in known}, list(known), {}
    for r in range(asked.rounds):
        for name in order[r % len(order):] + order[:r % len(order)]:
            steps = int(min(max(asked.seconds * 1e3 / known[name]["predicted"], 6), 60))
            log(f"{case}: {name}, round {r + 1} of {asked.rounds}")
            got[name].append(run(tools, case, known[name], steps, hosts))
    for name in known:
        times = [ms for run_ in got[name] for ms in run_[0]]
        parts = ({
            n: truth_rows.middle([run_[k].get(n, 0.0) for run_ in got[name]])
            for run_ in got[name]
            for n in run_[k]
        } for k in (1, 2))
        out[name] = (len(times), truth_rows.spread(times), truth_rows.middle(times), *parts)
    return out


def replay_runs(tools, case, known, asked, log):
    log(f"{case}: {len(known)} strategies in turn")
    mean = sum(p["predicted"] for p in known.values()) / len(known)
    return truth_replay.runs(tools, case, known, int(min(max(asked.rounds * asked.seconds * 1e3 / mean, 6), 30)))


def run_case(tools, case, asked, log):
    """All strategies of a case, in turn, `asked.rounds` times: its rows."""
    known = strategies(tools, case, asked.seed)
    if asked.only:
        known = {
            name: p
            for name, p in known.items() if name == "fp32" or any(word in name for word in asked.only.split(","))
        }
    age, bad = costs_state(tools, case)
    others = Others()
    try:
        if not case.trainer.command:
            got = replay_runs(tools, case, known, asked, log)
        elif case.network():
            with Hosts(tools, case.machines, case.network()) as hosts:
                got = trainer_runs(tools, case, known, asked, log, hosts)
        else:
            got = trainer_runs(tools, case, known, asked, log)
    except Problem as problem:
        if asked.trainer:
            raise
        log(f"{case} failed, and counts as missed: {problem}")
        got = {name: (0, 0.0, 0.0, {}, {}) for name in known}
    rows, busy = [], others.share()
    for name, p in known.items():
        steps, spread, measured, classes, lanes = got[name]
        rows.append({
            "trainer": case.trainer.name,
            "ranks": case.ranks,
            "link": case.link,
            "strategy": name,
            "predicted": p["predicted"],
            "measured": measured,
            "spread": spread,
            "steps": steps,
            "computing": p["computing"],
            "lanes": pair_up(p["lanes"], lanes) if lanes else {},
            "classes": pair_up(p["classes"], classes) if classes else {},
            "age_s": age,
            "noisy_costs": bad,
            "others": busy
        })
    return rows
