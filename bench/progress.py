#!/usr/bin/env python3
"""progress.py: who should run the ops, threads of the library or the trainer's calls? Pairs of runs of the two example trainers, which
compute on all cores. Prints a table for bench/results/progress.txt: milliseconds a step with "threads", and how many times as
long a step takes with "caller".
    python3 bench/progress.py [PAIRS]       3 pairs: about ten minutes. build/bin must have espresso, gpt and train."""
import json, os, statistics, subprocess, sys

PAIRS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
TRAINERS = {"gpt": ["--max-steps", "60", "--sample", "0"], "train": ["--max-steps", "80", "--eval", "0"]}


def step_ms(trainer, ranks, link, codec, progress):
    command = ["build/bin/espresso", "run", "-n", str(ranks), "--machines", "2"]
    command += ["--inter", link] if link else []
    command += ["--", "build/bin/" + trainer] + TRAINERS[trainer] + ["--json", "-"]
    command += ["--codec", codec] if codec else []
    env = dict(os.environ, ESPRESSO_PROGRESS=progress, OMP_NUM_THREADS="1")
    out = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    for line in out.stdout.splitlines():
        at = line.find('{"ranks"')
        if at >= 0:
            result = json.loads(line[at:])
            return result.get("settled_step_ms") or result["step_ms"]
    sys.exit(f"progress.py: {' '.join(command)}: no result\n{out.stderr[-800:]}")


print(f"# {os.cpu_count()} cores, {PAIRS} pairs, load {' '.join(f'{x:.2f}' for x in os.getloadavg())}; python3 bench/progress.py {PAIRS}")
print(f"{'trainer':8}{'ranks':>6}  {'link':14}{'codec':18}{'threads, ms':>12}  caller / threads: median (pairs)")
for trainer in TRAINERS:
    for ranks in (2, 4):
        for link in ("", "1gbit,50us", "100mbit,50us"):
            for codec in ("", "topk:ratio=0.01"):
                times = {"threads": [], "caller": []}
                for k in range(PAIRS):
                    for progress in sorted(times, reverse=k % 2 == 0):
                        times[progress].append(step_ms(trainer, ranks, link, codec, progress))
                ratios = [c / t for t, c in zip(times["threads"], times["caller"])]
                print(f"{trainer:8}{ranks:6}  {link or '-':14}{codec or '-':18}{statistics.median(times['threads']):12.2f}  "
                      f"{statistics.median(ratios):.2f} ({' '.join(f'{r:.2f}' for r in ratios)})", flush=True)
