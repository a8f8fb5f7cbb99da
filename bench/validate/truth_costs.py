"""truth_costs.py: trainers, cases and the costs of bench/validate/truth: cost files from `espresso profile`, each made
in processes of its own. Knows nothing of strategies."""
import json
import os
import re
import resource
import signal
import subprocess
import time

CODECS = ["efsignsgd", "topk:ratio=0.01", "fp16"]
LATENCY = "50us"
OVER_MPI = "mpi-" # a link of this name and a rate is no emulated one


class Problem(Exception):
    """What the user must change; printed without a traceback."""


class Tools:
    """The command of a build, and where costs and runs are kept."""
    def __init__(self, build, costs):
        self.command, self.costs, self.work = os.path.join(build, "bin",
                                                           "espresso"), costs, os.path.join(build, "truth")
        if not os.access(self.command, os.X_OK):
            raise Problem(f"{self.command} is not there: run make first, or name the build with --build")
        os.makedirs(costs, exist_ok=True)
        os.makedirs(self.work, exist_ok=True)

    def call(self, *words, env=None, limit=300):
        """Runs the command to its end and returns its output."""
        return call([self.command, *words], env, limit)


def clean_env(more=None):
    """This environment without what would override a run's strategy or output."""
    mine = {
        k: v
        for k, v in os.environ.items() if not k.startswith("ESPRESSO_") or k in ("ESPRESSO_BACKEND", "ESPRESSO_MODELS")
    }
    mine["ESPRESSO_LOG"] = "error"
    mine.update(more or {})
    return mine


def call(words, env=None, limit=300, watch=None, errors=False):
    """Runs a command and returns its output, with that to stderr if `errors`; `watch`, called every 100 ms, returns True
    when it is to be ended. Raises Problem if it fails by itself."""
    p = subprocess.Popen(words, env=clean_env(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         start_new_session=True)
    ended, end = False, time.monotonic() + limit
    try:
        while True:
            try:
                out, err = p.communicate(timeout=0.1 if watch else limit)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    raise Problem(f"took over {limit} s: {' '.join(words)}")
                if watch and not ended and watch():
                    ended = True
                    os.kill(p.pid, signal.SIGTERM)
    finally:
        if p.poll() is None:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
    if p.returncode and not ended:
        tail = "\n".join((err + out).strip().splitlines()[-12:])
        raise Problem(f"failed with status {p.returncode}: {' '.join(words)}\n{tail}")
    return err + out if errors else out


class Others:
    """How much of the machine's time other processes, and the host of a virtual machine, take while something runs."""
    def __init__(self):
        self.begin = self.now()

    @staticmethod
    def now():
        with open("/proc/stat") as f:
            t = [int(x) for x in f.readline().split()[1:9]] # user nice system idle iowait irq softirq steal
        mine = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
        return sum(t), sum(t) - t[3] - t[4], sum(u.ru_utime + u.ru_stime for u in mine) * os.sysconf("SC_CLK_TCK")

    def share(self):
        total, busy, mine = (b - a for a, b in zip(self.begin, self.now()))
        return max(0.0, (busy - mine) / total) if total else 0.0


class Trainer:
    """A command line. {steps} in it stands for the number of steps; without it, runs are ended when they have made
    enough."""
    def __init__(self, name, command):
        self.name, self.command = name, command
        self.counts = any("{steps}" in word for word in command)

    def words(self, steps):
        return [word.replace("{steps}", str(steps)) for word in self.command]


class Case:
    """A trainer, its numbers of ranks and machines, and a link between the machines: "none" or a rate."""
    def __init__(self, trainer, ranks, machines, link):
        self.trainer, self.ranks, self.machines, self.link, self.top = trainer, ranks, machines, link, 0

    def __str__(self):
        return f"{self.trainer.name}, {self.ranks} ranks, link {self.link}"

    def network(self, link=None):
        """The rate of the hosts' links where the ranks are on hosts of tests/jobs/hosts, and MPI is between them; else
        None."""
        link = link or self.link
        return link[len(OVER_MPI):] if link.startswith(OVER_MPI) else None

    def place(self, link=None):
        """The flags that place the ranks."""
        link = link or self.link
        if self.network(link): # what does not pass the network runs here
            link = "none"
        rate = link if "," in link else f"{link},{LATENCY}"
        return ["-n", str(self.ranks), "--machines", str(self.machines)] + (["--inter", rate] if link != "none" else [])


def plain(name):
    return re.sub(r"[^A-Za-z0-9.]+", "-", name)


# ---- hosts with a network between them -------------------------------------------------------------------------------
class Hosts:
    """Hosts of tests/jobs/hosts, while a `with` lasts. Jobs of Open MPI run on them."""
    def __init__(self, tools, n, rate):
        self.n, self.rate = n, rate
        self.env = {
            "TESTBED": str(os.getpid()),
            "ESPRESSO_PLUGIN_PATH": os.path.abspath(f"{tools.command}/../../lib/espresso")
        }

    def __enter__(self):
        try:
            call(["sh", "tests/jobs/hosts/hosts.sh", "up", str(self.n), self.rate, "100us"], self.env)
        except Problem as problem:
            raise Problem(f"no hosts with a network between them: {problem}") from None
        return self

    def __exit__(self, *_):
        call(["sh", "tests/jobs/hosts/hosts.sh", "down"], self.env)

    def words(self, case, words, env):
        """The command line that starts `words` as the case's ranks, with `env` in their environment, and its own
        environment."""
        flags = " ".join(f"-x {name}" for name in ["ESPRESSO_PLUGIN_PATH", "ESPRESSO_LOG", *env])
        return (["sh", "tests/jobs/hosts/mpirun.sh",
                 str(self.n), str(case.ranks // self.n), *words], {
                     **self.env,
                     **env, "MPIRUN_FLAGS": flags
                 })


# ---- costs -----------------------------------------------------------------------------------------------------------
def model_in(path):
    """The model of a model file, or of a costs file."""
    with open(path) as f:
        file = json.load(f)
    return file["model"] if "costs" in file else file


def model_file(tools, case):
    played = f"-{plain(case.link)}" if not case.trainer.command else "" # scaled for each link
    return os.path.join(tools.costs, f"model-{plain(case.trainer.name)}-{case.ranks}x{case.machines}{played}.json")


def cost_files(tools, case, link=None):
    """The paths of the case's cost files: model, links, codecs. case.top: the logarithm of the largest size in them."""
    at = f"{case.ranks}x{case.machines}"
    return [model_file(tools, case)] + [
        os.path.join(tools.costs, f"{name}-{case.top}.json")
        for name in (f"links-{at}-{plain(link or case.link)}", f"codecs-{at}")
    ]


def links_of(case):
    """The case's link, and another one: a plan that was made for it is run too."""
    over, rate = (OVER_MPI, case.network()) if case.network() else ("", case.link)
    return [case.link] + ([over + ("1gbit" if rate.startswith("100mbit") else "100mbit")] if case.machines > 1 else [])


def measure_costs(tools, cases, log, fresh, top):
    """Measures what is not there yet, each in processes of its own. top: the logarithm of the most elements, unless a
    model has more."""
    done = set()

    def measure(path, what, part, *words):
        if path not in done and (fresh or not os.path.exists(path)):
            log(what)
            tools.call("profile", "--only", part, "-o", path, *words)
        done.add(path)

    for case in cases:
        if not case.trainer.command:
            case.trainer.write_model(case, model_file(tools, case)) # known, not measured
        else:
            measure(model_file(tools, case),
                    f"costs: when gradients are ready: {case.trainer.name}, {case.ranks} ranks", "model",
                    *case.place("none"), "--steps", "40", "--", *case.trainer.words(10000))
        # a group of tensors has at most all elements
        case.top = max(sum(t["elements"] for t in model_in(model_file(tools, case))["tensors"]).bit_length(), top)
        case.top += case.top % 2 # so that models of about the same size share files
    for case in cases:
        if case.ranks == 1:
            continue
        measure(
            cost_files(tools, case)[2], f"costs: codecs, {case.ranks} ranks", "codecs", "-n", str(case.ranks),
            "--machines", str(case.machines), "--codecs", ";".join(CODECS), "--up-to", str(2**top), "--budget", "45s")
        for link in links_of(case):
            path = cost_files(tools, case, link)[1]
            if case.network(link) and path not in done and (fresh or not os.path.exists(path)):
                log(f"costs: {case.ranks} ranks on {case.machines} hosts, {link}")
                with Hosts(tools, case.machines, case.network(link)) as hosts:
                    call(*hosts.words(case, [
                        os.path.abspath(tools.command), "profile", "--only", "links", "-o",
                        os.path.abspath(path), "--up-to",
                        str(2**(top + 2)), "--budget", "60s"
                    ], {}))
            done.update([path] if case.network(link) else [])
            measure(
                cost_files(tools, case, link)[1], f"costs: {case.ranks} ranks on {case.machines} machines, link {link}",
                "links", *case.place(link), "--up-to", str(2**(top + 2)), "--budget", "30s")


def costs_state(tools, case):
    """(age of the youngest cost file in seconds, how many of them are marked as noisy)."""
    paths = cost_files(tools, case) if case.ranks > 1 else [model_file(tools, case)]
    paths = paths if case.trainer.command else paths[1:] # the model is not measured there
    bad = 0
    for path in paths:
        with open(path) as f:
            bad += '"noisy": true' in f.read()
    return time.time() - max(os.path.getmtime(p) for p in paths), bad
