/* run.c: `espresso run` starts the ranks of a job on this machine, on emulated machines, or with --hosts on several
 * hosts. Ranks get all settings by environment variables. */
#include "tools/run/run.h"
#include "backends/shm/transport.h"
#include "espresso_impl/job/hmac.h"
#include <sys/stat.h>

enum {
    RUN_N,
    RUN_MACHINES,
    RUN_UNEVEN,
    RUN_RACKS,
    RUN_INTER,
    RUN_OUTER,
    RUN_ENV,
    RUN_NO_PREFIX,
    RUN_HOSTS,
    RUN_RSH,
    RUN_ESPRESSO,
    RUN_ROOT,
    RUN_ELASTIC
};
static const tool_flag run_flags[] = {
    {"-n", "N", "how many ranks"},
    {"--machines", "M", "spread them over M emulated machines (default 1), the first N/M on the first"},
    {"--ranks-per-machine", "3,1,...", "the same, with uneven numbers; instead of -n and --machines"},
    {"--racks", "R", "put the machines into R emulated racks: the job then has three levels"},
    {"--inter", "RATE[,LATENCY]", "emulate this link between machines, as in 1gbit,50us; it may change: see below"},
    {"--outer", "RATE[,LATENCY]", "emulate this link between racks"},
    {"--env", "NAME=VALUE", "set a variable for every rank; NAME alone: to its value here; may be repeated"},
    {"--no-prefix", NULL, "forward lines as they are, without the rank in front"},
    {"--hosts", "A,B | A:3,B:1", "start the ranks on these hosts, by ssh; with -n the same number on each"},
    {"--rsh", "COMMAND", "instead of ssh: is called as COMMAND HOST TEXT, and has a shell there run TEXT"},
    {"--espresso", "PATH", "this command on the hosts (default: the same path as here)"},
    {"--root", "HOST[:PORT]",
     "where the ranks meet: rank 0's host as the others reach it (default: the first of --hosts, at a random port)"},
    {"--elastic", NULL, "a rank that fails does not end the others, which go on without it (docs/use/shrink.md)"},
};

/* Returns the "NAME=VALUE" of --env. If the user gave only "NAME", takes the value from this process' environment. */
static const char *run_env_text(const tool_command *c, const char *text) {
    const size_t n = strcspn(text, "=");
    if (!n) tool_usage(c, "--env %s: write NAME=VALUE", text);
    if (run_is_own(text)) tool_usage(c, "--env %s: espresso run sets %.*s itself", text, (int)n, text);
    if (text[n]) return text;
    for (char **v = environ; *v; v++)
        if (!strncmp(*v, text, n) && (*v)[n] == '=') return *v;
    tool_usage(c, "--env %s: %s is not set here: write NAME=VALUE", text, text);
}

/* Assigns ranks to machines. `uneven` lists the ranks of each machine, such as "3,1". If it is NULL, each machine gets
 * the same number of the n ranks. */
ESP__FN void run_place(run_plan *p, const char *uneven, long n, long machines) {
    const tool_command *c = p->command;
    int *counts = tool_realloc(NULL, RUN_RANKS_MAX * sizeof *counts), n_counts = 0;
    long total = 0;
    for (const char *at = uneven; at; n_counts++) {
        char *end;
        long v = strtol(at, &end, 10);
        if (end == at || v < 1 || (*end && *end != ',') || (total += v) > RUN_RANKS_MAX)
            tool_usage(c, "--ranks-per-machine %s: write how many ranks each machine has, as in 3,1", uneven);
        counts[n_counts] = (int)v;
        at = *end ? end + 1 : NULL;
    }
    for (; !uneven && n_counts < machines; n_counts++) counts[n_counts] = (int)(n / machines);
    p->n = p->here = (int)(uneven ? total : n);
    p->machines = n_counts;
    p->machine_of = tool_realloc(NULL, (size_t)p->n * sizeof(int));
    p->local_of = tool_realloc(NULL, (size_t)p->n * sizeof(int));
    for (int m = 0, rank = 0; m < n_counts; m++)
        for (int l = 0; l < counts[m]; l++, rank++) {
            p->machine_of[rank] = m;
            p->local_of[rank] = l;
        }
    free(counts);
    if (uneven && n && n != total)
        tool_usage(c, "-n %ld and --ranks-per-machine %s do not agree: that makes %ld", n, uneven, total);
    if (uneven && machines && machines != n_counts)
        tool_usage(c, "--machines %ld and --ranks-per-machine %s do not agree", machines, uneven);
}

typedef struct run_flag_values {
    long n, machines;
    const char *uneven, *hosts, *root;
} run_flag_values;

static int run_check_hosts(run_plan *p, const run_flag_values *a) {
    static char self[4096];
    const tool_command *c = p->command;
    const char *emulated = a->machines ? "--machines"
                           : a->uneven ? "--ranks-per-machine"
                           : p->inter  ? "--inter"
                           : p->outer  ? "--outer"
                                       : NULL;
    if (emulated)
        tool_usage(c, "%s is for machines that are emulated here: leave it out with --hosts%s", emulated,
                   a->uneven ? ", and write how many ranks a host has behind its name, as in node1:3,node2:1" : "");
    if (!p->rsh)
        p->rsh = "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=6";
    if (!run_here(p->directory, sizeof p->directory))
        return tool_fail(c, "this directory has no name: %s", strerror(errno));
    if (!p->espresso) {
        ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
        if (bytes <= 0)
            return tool_fail(c, "cannot find my own file: %s; name it with --espresso PATH", strerror(errno));
        self[bytes] = 0;
        p->espresso = self;
    }
    run_hosts_read(p, a->hosts, a->root, a->n);
    if (p->racks && p->machines % p->racks) tool_usage(c, "%d hosts do not divide by %d racks", p->machines, p->racks);
    return TOOL_OK;
}

static int run_check(run_plan *p, const run_flag_values *a) {
    const tool_command *c = p->command;
    if (!p->argv[0]) tool_usage(c, "no program to start: espresso run -n 4 -- ./prog args");
    if (!a->hosts && (p->rsh || p->espresso || a->root))
        tool_usage(c, "%s needs --hosts", p->rsh ? "--rsh" : p->espresso ? "--espresso" : "--root");
    if (a->hosts) return run_check_hosts(p, a);
    if (!a->uneven && !a->n) tool_usage(c, "how many ranks? For example: espresso run -n 4 -- %s", p->argv[0]);
    if (!a->uneven && a->machines && a->n % a->machines)
        tool_usage(c, "%ld ranks do not divide by %ld machines: use --ranks-per-machine to place them unevenly", a->n,
                   a->machines);
    run_place(p, a->uneven, a->n, a->uneven || a->machines ? a->machines : 1);
    if (p->racks && p->machines % p->racks)
        tool_usage(c, "%d machines do not divide by %d racks", p->machines, p->racks);
    if (p->outer && !p->racks) tool_usage(c, "--outer needs --racks");
    if (p->inter && p->machines == 1)
        fprintf(stderr, "espresso run: --inter has no effect with one machine (add --machines)\n");
    return TOOL_OK;
}

static int run_parse(run_plan *p, int argc, char **argv) {
    const tool_command *c = p->command;
    run_flag_values values = {0};
    const char *value;
    int at = 0, flag;
    while ((flag = tool_next(c, argc, argv, &at, &value)) >= 0) {
        switch (flag) {
        case RUN_N: values.n = tool_whole(c, "-n", value, 1, RUN_RANKS_MAX); break;
        case RUN_MACHINES: values.machines = tool_whole(c, "--machines", value, 1, RUN_RANKS_MAX); break;
        case RUN_UNEVEN: values.uneven = value; break;
        case RUN_RACKS: p->racks = (int)tool_whole(c, "--racks", value, 1, RUN_RANKS_MAX); break;
        case RUN_INTER: p->inter = run_link(c, "--inter", value); break;
        case RUN_OUTER: p->outer = run_link(c, "--outer", value); break;
        case RUN_ENV: p->env[p->n_env++] = run_env_text(c, value); break;
        case RUN_NO_PREFIX: p->prefix = false; break;
        case RUN_HOSTS: values.hosts = value; break;
        case RUN_RSH: p->rsh = value; break;
        case RUN_ESPRESSO: p->espresso = value; break;
        case RUN_ROOT: values.root = value; break;
        default: p->elastic = true;
        }
    }
    p->argv = argv + at;
    return run_check(p, &values);
}

ESP__FN const char *run_link(const tool_command *c, const char *flag, const char *text) {
    shm_link link;
    const char *where = text, *wrong;
    if (!strncmp(text, "file:", 5)) {
        wrong = shm_read_link(text + 5, &link);
        if (wrong) tool_usage(c, "%s %s: %s: write one line into the file, as in 1gbit,50us", flag, text, wrong);
    } else {
        wrong = shm_parse_phases(text, &link, &where);
        if (wrong || *where)
            tool_usage(c, "%s %s: at character %d ('%.20s') expected %s", flag, text, (int)(where - text) + 1, where,
                       wrong ? wrong : "the end");
    }
    return text;
}

/* Chooses a random secret and a random address for rank 0, so that ranks of different jobs do not connect to each
 * other. The address is an abstract Unix name, which leaves no file. With --hosts it is a TCP port, unless the user
 * gave one. */
ESP__FN int run_make_root(run_plan *p) {
    enum { LOW = 20000, PORTS = 12768 }; /* Linux gives ports above these to outgoing connections */
    uint8_t r[12], secret[(sizeof p->secret - 1) / 2];
    char hex[2 * sizeof r + 1];
    const size_t at = strlen(p->root);
    int error = esp__random_bytes(r, sizeof r);
    if (!error) error = esp__random_bytes(secret, sizeof secret);
    if (error) return tool_fail(p->command, "no random numbers: %s", strerror(error));
    esp__hex(r, sizeof r, hex);
    esp__hex(secret, sizeof secret, p->secret);
    if (!p->hosts)
        snprintf(p->root, sizeof p->root, "unix:espresso-%s", hex);
    else if (p->root[at - 1] == ':')
        snprintf(p->root + at, sizeof p->root - at, "%d", LOW + (r[0] << 8 | r[1]) % PORTS);
    esp__wipe(secret, sizeof secret);
    return TOOL_OK;
}

ESP__FN int run_job_run(const run_plan *p) {
    run_job j = {.plan = p,
                 .n = p->hosts ? p->n_hosts : p->here,
                 .first_failed = -1,
                 .control = p->part ? 0 : -1,
                 .tokens = {-1, -1},
                 .signals = -1};
    struct stat out, err;
    j.children = tool_realloc(NULL, (size_t)j.n * sizeof *j.children);
    for (int k = 0; k < 2; k++) {
        run_sink_open(&j.sinks[k], 1 + k);
        if (p->part) j.sinks[k].color = p->color[k];
    }
    j.out = &j.sinks[0];
    /* if stdout and stderr are the same file, one queue serves both, so that lines stay complete */
    j.err = fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev && out.st_ino == err.st_ino
                ? j.out
                : &j.sinks[1];
    int status = run_signals_open(&j);
    if (status == TOOL_OK && (status = run_start_watchdog(&j)) == TOOL_OK) {
        status = run_start(&j);
        if (status == TOOL_OK) run_watch(&j);
        int ended = run_finish(&j);
        if (status == TOOL_OK) status = ended;
    }
    for (int k = 0; k < 2; k++) free(j.sinks[k].queue.data);
    run_tokens_close(&j);
    if (j.signals >= 0) close(j.signals);
    free(j.children);
    return status;
}

static int run_main(const tool_command *self, int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[0], "--part")) return run_part_main(self, argv[1]);
    run_plan p = {.command = self, .prefix = true, .env = tool_realloc(NULL, (size_t)(argc + 1) * sizeof(char *))};
    int status = run_parse(&p, argc, argv);
    if (status == TOOL_OK && !p.hosts) status = run_find_program(&p);
    if (status == TOOL_OK) status = run_make_root(&p);
    if (status == TOOL_OK) status = run_job_run(&p);
    free(p.env);
    free(p.hosts);
    free(p.machine_of);
    free(p.local_of);
    return status;
}

const tool_command run_command = {
    .name = "run",
    .summary = "Starts the ranks of a job on this machine, or on hosts, and shows what they print.",
    .synopsis = "-n N [--machines M [--racks R]] [--inter RATE[,LATENCY]] [--hosts A,B] [flags] -- PROGRAM [ARG...]",
    TOOL_FLAGS(run_flags),
    .run = run_main,
    .details =
        "esp_open reads ESPRESSO_RANK, ESPRESSO_SIZE, ESPRESSO_ROOT and others (docs/use/launching.md).\n"
        "\n"
        "The link may change while the job runs: --inter '1gbit,50us;100mbit,50us@30s' is slower after 30 seconds.\n"
        "--inter file:PATH reads RATE[,LATENCY] from a file, and again every 100 ms.\n"
        "\n"
        "Rank 0 reads the standard input. Signals are passed on to all ranks; Ctrl-C a second time ends them at once.\n"
        "When a rank fails, the others have 2 seconds to end, then get SIGTERM, then SIGKILL. The exit status is that\n"
        "of the rank that failed first: its own, or 128 + the signal that killed it.\n"
        "\n"
        "With --hosts the ranks run on other machines, in the directory of the same name, and read no input. ssh must\n"
        "log in there without asking. Variables that begin with ESPRESSO_ or OMP_ go there too, and those that --env\n"
        "names.\n"
        "\n"
        "examples:\n"
        "  espresso run -n 4 -- ./train\n"
        "  espresso run -n 8 --machines 4 --racks 2 --inter 10gbit,10us --outer 1gbit,50us -- ./train --epochs 3\n"
        "  espresso run --hosts node1:4,node2:4 -- ./train --epochs 3\n"
        "  espresso run --ranks-per-machine 3,1 --env ESPRESSO_LOG=info -- ./train",
};
