/* run.c: `espresso run`: starts the ranks of a job on this machine, optionally as if they were on several machines.
 * Must not know the library: environment variables are all that it passes to ranks. */
#include "tools/run/run.h"
#include "tools/run/output.c"
#include "tools/run/spawn.c"
#include "tools/run/watch.c"

enum {
    RUN_N,
    RUN_MACHINES,
    RUN_UNEVEN,
    RUN_RACKS,
    RUN_INTER,
    RUN_OUTER,
    RUN_ENV,
    RUN_TIMEOUT,
    RUN_NO_PREFIX,
    RUN_ELASTIC
};
static const tool_flag run_flags[] = {
    {"-n", "N", "how many ranks"},
    {"--machines", "M", "spread them over M emulated machines (default 1), the first N/M on the first"},
    {"--ranks-per-machine", "3,1,...", "the same, with uneven numbers; instead of -n and --machines"},
    {"--racks", "R", "put the machines into R emulated racks: the job then has three levels"},
    {"--inter", "RATE[,LATENCY]", "emulate this link between machines, as in 1gbit,50us; it may change: see below"},
    {"--outer", "RATE[,LATENCY]", "emulate this link between racks"},
    {"--env", "NAME=VALUE", "set a variable for every rank; may be repeated"},
    {"--timeout", "MS", "how long a rank may be late before the others give up (ESPRESSO_TIMEOUT_MS)"},
    {"--no-prefix", NULL, "forward lines as they are, without the rank in front"},
    {"--elastic", NULL, "a rank that fails does not end the others, which go on without it (docs/shrink.md)"},
};

/* 1 if the text up to `end` is a number with one of the units. */
static int run_quantity(const char *text, const char *end, const char *const *units) {
    char *unit;
    if (!(*text >= '0' && *text <= '9')) return 0;
    double v = strtod(text, &unit);
    size_t n = (size_t)(end - unit);
    if (unit >= end || !(v >= 0) || v > 1e15) return 0;
    for (; *units; units++)
        if (strlen(*units) == n && strncmp(unit, *units, n) == 0) return v > 0 ? 2 : 1;
    return 0;
}

/* The next part of a link's description, up to one of `stops`. *at moves to its end. */
static const char *run_part(const char **at, const char *stops) {
    const char *begin = *at;
    *at += strcspn(begin, stops);
    return begin;
}

/* Checks "1gbit,50us", and after each ';' a further one with its begin, "@30s". Or "file:PATH". */
static int run_check_link(const tool_command *c, const char *flag, const char *text) {
    static const char *const rates[] = {"gbit", "mbit", "kbit", "bit", NULL}, *const times[] = {"us", "ms", "s", NULL};
    const char *part, *wrong = NULL;
    if (strlen(text) > 240) return tool_usage(c, "%s: the link's text is longer than 240 characters", flag);
    if (strncmp(text, "file:", 5) == 0 && !strcmp(flag, "--inter"))
        return text[5] ? TOOL_OK : tool_usage(c, "--inter file: write the file's name behind it, as in file:link.txt");
    for (const char *at = text;; at++) {
        int first = at == text;
        if (part = run_part(&at, ",;@"), run_quantity(part, at, rates) != 2)
            wrong = "is no rate: write a number and gbit, mbit, kbit or bit, as in 100mbit";
        else if (*at == ',' && (at++, part = run_part(&at, ",;@"), !run_quantity(part, at, times)))
            wrong = "is no latency: write a number and us, ms or s, as in 50us";
        else if (first ? *at == '@' : *at != '@')
            part = at, wrong = first ? "cannot be here: the first link holds from the start"
                                     : "should be '@' and the time from which it holds, as in 100mbit,50us@30s";
        else if (*at == '@' && (at++, part = run_part(&at, ",;@"), run_quantity(part, at, times) != 2))
            wrong = "is no time: write a number and us, ms or s, as in 30s";
        else if (*at && *at != ';')
            part = at, wrong = "is too much: write ';' before the next link";
        if (wrong)
            return tool_usage(c, "%s %s: at character %d, '%.*s' %s", flag, text, (int)(part - text) + 1,
                              (int)(at > part ? at - part : 1), part, wrong);
        if (!*at) return TOOL_OK;
    }
}

static int run_check_env(const tool_command *c, const char *text) {
    static const char *const ours[] = {"ESPRESSO_RANK",     "ESPRESSO_SIZE", "ESPRESSO_MACHINE", "ESPRESSO_LOCAL_RANK",
                                       "ESPRESSO_LAUNCHER", "ESPRESSO_ROOT", "ESPRESSO_PLACE"};
    size_t n = strcspn(text, "=");
    if (!n || !text[n]) return tool_usage(c, "--env %s: write NAME=VALUE", text);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strlen(ours[i]) == n && strncmp(text, ours[i], n) == 0)
            return tool_usage(c, "--env %s: espresso run sets %s itself", text, ours[i]);
    return TOOL_OK;
}

/* Fills machine_of and local_of from "3,1" (ranks on each machine), or from n and machines. */
static int run_place(run_plan *p, const char *uneven, long n, long machines) {
    const tool_command *c = p->command;
    int *counts = tool_realloc(NULL, RUN_RANKS_MAX * sizeof *counts), n_counts = 0;
    long total = 0;
    for (const char *at = uneven; at; n_counts++) {
        char *end;
        long v = strtol(at, &end, 10);
        if (end == at || v < 1 || (*end && *end != ',') || (total += v) > RUN_RANKS_MAX) {
            free(counts);
            return tool_usage(c, "--ranks-per-machine %s: write how many ranks each machine has, as in 3,1", uneven);
        }
        counts[n_counts] = (int)v;
        at = *end ? end + 1 : NULL;
    }
    for (; !uneven && n_counts < machines; n_counts++) counts[n_counts] = (int)(n / machines);
    p->n = (int)(uneven ? total : n);
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
        return tool_usage(c, "-n %ld and --ranks-per-machine %s do not agree: that makes %ld", n, uneven, total);
    if (uneven && machines && machines != n_counts)
        return tool_usage(c, "--machines %ld and --ranks-per-machine %s do not agree", machines, uneven);
    return TOOL_OK;
}

static int run_check(run_plan *p, const char *uneven, long n, long machines) {
    const tool_command *c = p->command;
    if (!p->argv[0]) return tool_usage(c, "no program to start: espresso run -n 4 -- ./prog args");
    if (!uneven && !n) return tool_usage(c, "how many ranks? For example: espresso run -n 4 -- %s", p->argv[0]);
    if (!uneven && machines && n % machines)
        return tool_usage(c, "%ld ranks do not divide by %ld machines: use --ranks-per-machine to place them unevenly",
                          n, machines);
    int status = run_place(p, uneven, n, uneven || machines ? machines : 1);
    if (status == TOOL_OK && p->racks && p->machines % p->racks)
        return tool_usage(c, "%d machines do not divide by %d racks", p->machines, p->racks);
    if (status == TOOL_OK && p->outer && !p->racks) return tool_usage(c, "--outer needs --racks");
    if (status == TOOL_OK && p->inter && p->machines == 1)
        fprintf(stderr, "espresso run: --inter has no effect with one machine (add --machines)\n");
    return status;
}

static int run_parse(run_plan *p, int argc, char **argv) {
    const tool_command *c = p->command;
    const char *value, *uneven = NULL;
    long n = 0, machines = 0, racks, ms;
    int at = 0, flag, bad = 0;
    while ((flag = tool_next(c, argc, argv, &at, &value)) >= 0 && !bad) {
        if (flag == RUN_N && !tool_number(value, 1, RUN_RANKS_MAX, &n))
            bad = tool_usage(c, "-n %s: write a number of ranks from 1 to %d", value, RUN_RANKS_MAX);
        else if (flag == RUN_MACHINES && !tool_number(value, 1, RUN_RANKS_MAX, &machines))
            bad = tool_usage(c, "--machines %s: write a number of machines from 1 to %d", value, RUN_RANKS_MAX);
        else if (flag == RUN_UNEVEN)
            uneven = value;
        else if (flag == RUN_RACKS && !tool_number(value, 1, RUN_RANKS_MAX, &racks))
            bad = tool_usage(c, "--racks %s: write a number of racks from 1 to %d", value, RUN_RANKS_MAX);
        else if (flag == RUN_RACKS)
            p->racks = (int)racks;
        else if (flag == RUN_INTER && !(bad = run_check_link(c, "--inter", value)))
            p->inter = value;
        else if (flag == RUN_OUTER && !(bad = run_check_link(c, "--outer", value)))
            p->outer = value;
        else if (flag == RUN_ENV && !(bad = run_check_env(c, value)))
            p->env[p->n_env++] = value;
        else if (flag == RUN_TIMEOUT && !tool_number(value, 1, 1000000000, &ms))
            bad = tool_usage(c, "--timeout %s: write a number of milliseconds, 1 or more", value);
        else if (flag == RUN_TIMEOUT)
            p->timeout = value;
        else if (flag == RUN_NO_PREFIX)
            p->prefix = 0;
        else if (flag == RUN_ELASTIC)
            p->elastic = 1;
    }
    if (bad) return bad;
    if (flag == -2) return TOOL_USAGE;
    if (flag == -3) return -1;
    p->argv = argv + at;
    return run_check(p, uneven, n, machines);
}

/* Makes the name of an abstract socket at which the ranks meet. It is random, so that runs do not meet each other. An
 * abstract socket leaves no file. */
static int run_make_root(run_plan *p) {
    unsigned char r[12];
    size_t at = (size_t)snprintf(p->root, sizeof p->root, "unix:espresso-");
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r)
        return tool_fail(p->command, "no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof r; i++) at += (size_t)snprintf(p->root + at, sizeof p->root - at, "%02x", r[i]);
    return TOOL_OK;
}

static int run_job_run(const run_plan *p) {
    run_job j = {.plan = p,
                 .first_failed = -1,
                 .tokens = {-1, -1},
                 .signals = -1,
                 .ranks = tool_realloc(NULL, (size_t)p->n * sizeof(run_rank))};
    struct stat out, err;
    memset(j.ranks, 0, (size_t)p->n * sizeof(run_rank));
    run_sink_open(&j.sinks[0], 1);
    run_sink_open(&j.sinks[1], 2);
    j.out = &j.sinks[0];
    /* where stdout and stderr are the same file, one queue for both keeps lines complete */
    j.err = fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev && out.st_ino == err.st_ino
                ? j.out
                : &j.sinks[1];
    int status = run_signals_open(&j);
    if (status == TOOL_OK) status = run_tokens_open(&j);
    if (status == TOOL_OK && (status = run_start_watchdog(&j)) == TOOL_OK) {
        for (int i = 0; i < p->n && status == TOOL_OK; i++) status = run_start_rank(&j, i);
        if (status == TOOL_OK) run_watch(&j);
        int ended = run_finish(&j);
        if (status == TOOL_OK) status = ended;
    }
    for (int s = 0; s < 2; s++) free(j.sinks[s].data);
    run_tokens_close(&j);
    if (j.signals >= 0) close(j.signals);
    free(j.ranks);
    return status;
}

static int run_main(const tool_command *self, int argc, char **argv) {
    run_plan p = {.command = self, .prefix = 1, .env = tool_realloc(NULL, (size_t)(argc + 1) * sizeof(char *))};
    int status = run_parse(&p, argc, argv);
    if (status == TOOL_OK && (status = run_find_program(&p)) == TOOL_OK && (status = run_make_root(&p)) == TOOL_OK)
        status = run_job_run(&p);
    free(p.env);
    free(p.machine_of);
    free(p.local_of);
    return status == -1 ? TOOL_OK : status;
}

static const tool_command run_command = {
    .name = "run",
    .summary = "Starts the ranks of a job on this machine and shows what they print.",
    .synopsis = "-n N [--machines M [--racks R]] [--inter RATE[,LATENCY]] [flags] -- PROGRAM [ARG...]",
    .flags = run_flags,
    .n_flags = sizeof run_flags / sizeof *run_flags,
    .run = run_main,
    .details =
        "Each rank finds in its environment: ESPRESSO_RANK, ESPRESSO_SIZE, ESPRESSO_MACHINE, ESPRESSO_LOCAL_RANK,\n"
        "ESPRESSO_ROOT (where the ranks meet), ESPRESSO_INTER_LINK with --inter, ESPRESSO_PLACE with --racks and\n"
        "ESPRESSO_OUTER_LINK with --outer. esp_open reads them.\n"
        "\n"
        "The link may change while the job runs: --inter '1gbit,50us;100mbit,50us@30s' is slower from 30 seconds "
        "after\n"
        "the ranks met. --inter file:PATH reads RATE[,LATENCY] from a file, and again every 100 ms.\n"
        "\n"
        "Rank 0 reads the standard input. Signals are passed on to all ranks; Ctrl-C a second time ends them at once.\n"
        "Where ranks would compress with more threads than there are cores, they take turns: the launcher hands out a\n"
        "token a core (ESPRESSO_TOKENS; ESPRESSO_TOKENS=off in the environment leaves them out).\n"
        "\n"
        "When a rank fails, the others have 2 seconds to end, then get SIGTERM, then SIGKILL. The exit status is that\n"
        "of the rank that failed first: its own, or 128 + the signal that killed it.\n"
        "\n"
        "examples:\n"
        "  espresso run -n 4 -- ./train\n"
        "  espresso run -n 8 --machines 4 --inter 1gbit,50us -- ./train --epochs 3\n"
        "  espresso run -n 8 --machines 4 --racks 2 --inter 10gbit,10us --outer 1gbit,50us -- ./train\n"
        "  espresso run --ranks-per-machine 3,1 --env ESPRESSO_LOG=info -- ./train",
};
