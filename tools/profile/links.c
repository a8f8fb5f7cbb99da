/* links.c: `espresso profile links`: measures a backend's collectives by level, kind and size, and writes a system
 * file. Must not know how one collective is measured (espresso_impl/costs/costs.h). */
#include "tools/profile/profile.h"

enum {
    LINKS_N,
    LINKS_MACHINES,
    LINKS_INTER,
    LINKS_BACKEND,
    LINKS_RANKS,
    LINKS_SIZES,
    LINKS_BUDGET,
    LINKS_COMPUTE,
    LINKS_O,
    LINKS_JSON,
    LINKS_AS_RANK
};
static const tool_flag profile_links_flags[] = {
    {"-n", "N", "how many ranks"},
    {"--machines", "M", "spread them over M emulated machines (default 1)"},
    {"--inter", "RATE[,LATENCY]", "with --machines: emulate this link between them, as in 1gbit,50us"},
    {"--backend", "B", "the backend to measure (default: the one that esp_open takes)"},
    {"--ranks", "N,N,...", "instead of -n: several numbers of ranks, a file each; % in -o stands for the number"},
    {"--sizes", "FROM..TO", "bytes, doubled from one to the next (default 2^10..2^26, as far as memory goes)"},
    {"--budget", "TIME", "how long one number of ranks may take (default 60s)"},
    {"--compute-on", "cpu|device", "where the model is trained (default cpu if the ranks fill the cores)"},
    {"-o", "FILE", "the system file to write; - is standard output"},
    {"--json", NULL, "print JSON rather than tables"},
    {"--as-rank", "FDS", "internal: this is one of the ranks"},
};
static const tool_command profile_links_command = {
    .name = "profile links",
    .summary = "Measures what collectives take between ranks, as a system file for espresso plan.",
    .synopsis = "-n N [--machines M [--inter RATE[,LATENCY]]] [--backend B] [-o FILE]",
    .flags = profile_links_flags,
    .n_flags = sizeof profile_links_flags / sizeof *profile_links_flags,
    .details = "Every collective at every size on every level (flat: all ranks; intra: those of a machine; inter: "
               "those of one index),\n"
               "all groups of a level at the same time. Tables are kept, since a straight line errs by 40 to 80% in "
               "shared memory; a\n"
               "latency and a rate are fitted as well, for sizes that were not measured. Also: what starting an op "
               "costs, where threads\n"
               "hand over to each other. Measure on a machine that does nothing else: a file from a busy one is marked "
               "as noisy.\n"
               "\n"
               "examples:\n"
               "  espresso profile links -n 4 -o system.json\n"
               "  espresso profile links -n 8 --machines 4 --inter 1gbit,50us -o system.json\n"
               "  espresso profile links --ranks 2,4,8 --sizes 2^10..2^22 -o system-%.json\n"
               "  mpirun -n 8 --hostfile hosts espresso profile links -o system.json   (each process is a rank)\n"
               "  espresso run --hosts a,b -n 8 -- espresso profile links -o system.json",
};
static const char *const links_names[ESP_PLAN_COLLS] = {
    NULL, "allreduce", "allgather", "alltoall", "reduce_scatter", "broadcast", "gather", "reduce"};
static const char *const links_levels[3] = {"flat", "intra", "inter"};

/* ---- command line ----------------------------------------------------------------------------------------------------------- */
static int links_ranks(profile_job *j, const char *text) {
    for (const char *at = text; at;) {
        char *end;
        const long v = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || v < 1 || v > 1024 || j->n_runs == PROFILE_RUNS_MAX)
            return tool_usage(j->command, "--ranks %s: write up to %d numbers of ranks from 1 to 1024, as in 2,4,8",
                              text, PROFILE_RUNS_MAX);
        j->runs[j->n_runs++] = v;
        at = *end ? end + 1 : NULL;
    }
    return TOOL_OK;
}

static int links_flag(profile_job *j, int flag, const char *value) {
    const tool_command *c = j->command;
    switch (flag) {
    case LINKS_N:
        if (!tool_number(value, 1, 1024, &j->n))
            return tool_usage(c, "-n %s: write a number of ranks from 1 to 1024", value);
        break;
    case LINKS_MACHINES:
        if (!tool_number(value, 1, 1024, &j->machines))
            return tool_usage(c, "--machines %s: write a number of machines from 1 to 1024", value);
        j->machines_said = j->machines;
        break;
    case LINKS_INTER: j->inter = value; return run_check_link(c, "--inter", value);
    case LINKS_BACKEND: j->backend = value; break;
    case LINKS_RANKS: return links_ranks(j, value);
    case LINKS_SIZES: return profile_sizes(j, value, 4);
    case LINKS_BUDGET: return profile_budget(j, value);
    case LINKS_COMPUTE:
        if (strcmp(value, "cpu") && strcmp(value, "device"))
            return tool_usage(c, "--compute-on %s: cpu or device", value);
        j->shared_cores = !strcmp(value, "cpu");
        break;
    case LINKS_O: j->out = value; break;
    case LINKS_JSON: j->json = 1; break;
    default: return profile_as_rank(j, value);
    }
    return TOOL_OK;
}

static int links_check(profile_job *j) {
    const tool_command *c = j->command;
    if (j->n && j->n_runs) return tool_usage(c, "-n and --ranks: give one of them");
    if (!j->n && !j->n_runs && profile_launched(j)) {
        if (j->machines_said || j->inter)
            return j->rank
                       ? TOOL_USAGE
                       : tool_usage(c, "%s: ranks of a launcher are on the machines where it starts them: leave it out",
                                    j->inter ? "--inter" : "--machines");
        return j->out && !j->rank ? profile_check_out(j, j->out) : TOOL_OK;
    }
    if (!j->n && !j->n_runs)
        return tool_usage(c,
                          "how many ranks? For example: espresso profile links -n 4 -o system.json; or let a launcher "
                          "start this command several times, as in mpirun -n 8 espresso profile links -o system.json");
    if (j->n) j->runs[j->n_runs++] = j->n;
    for (uint32_t i = 0; i < j->n_runs; i++) {
        if (j->runs[i] % j->machines)
            return tool_usage(c, "%ld ranks do not divide by %ld machines", j->runs[i], j->machines);
        if (j->runs[i] == 1) return tool_usage(c, "1 rank has no links: two at least");
    }
    if (j->inter && j->machines == 1) return tool_usage(c, "--inter has no effect with one machine: add --machines");
    if (j->out && j->n_runs > 1 && (!strchr(j->out, '%') || !strcmp(j->out, "-")))
        return tool_usage(
            c, "-o %s: %u numbers of ranks make a file each: write %% where the number goes, as in system-%%.json",
            j->out, j->n_runs);
    return TOOL_OK;
}

static int links_parse(profile_job *j, int argc, char **argv) {
    const char *value;
    int at = 0, flag, bad = 0;
    while (!bad && (flag = tool_next(j->command, argc, argv, &at, &value)) >= 0) bad = links_flag(j, flag, value);
    if (bad) return bad;
    if (flag == -2) return TOOL_USAGE;
    if (flag == -3) return -1;
    if (at < argc) return tool_usage(j->command, "'%s': takes flags only", argv[at]);
    if (!j->as_rank) return links_check(j);
    j->n = 0; /* the running job decides */
    return TOOL_OK;
}

static int links_path(const profile_job *j, long n, char *out, size_t cap) {
    const char *percent = strchr(j->out, '%');
    if (!percent) return (size_t)snprintf(out, cap, "%s", j->out) < cap;
    return (size_t)snprintf(out, cap, "%.*s%ld%s", (int)(percent - j->out), j->out, n, percent + 1) < cap;
}

static int links_start(profile_job *j, int argc, char **argv) {
    char path[PATH_MAX], sizes[64];
    int status = TOOL_OK;
    for (uint32_t i = 0; j->out && i < j->n_runs && status == TOOL_OK; i++) {
        if (!links_path(j, j->runs[i], path, sizeof path)) return tool_usage(j->command, "-o %s: too long", j->out);
        status = profile_check_out(j, path);
    }
    for (uint32_t i = 0; i < j->n_runs && status == TOOL_OK; i++) {
        j->n = j->runs[i];
        status = profile_fit_memory(j, 2.5);
        if (status != TOOL_OK) break;
        snprintf(sizes, sizeof sizes, "%llu..%llu", (unsigned long long)j->sizes[0],
                 (unsigned long long)j->sizes[j->n_sizes - 1]);
        char *more[] = {(char[]){"--sizes"}, sizes, NULL};
        status = profile_start(j, "links", argc, argv, more);
    }
    return status;
}

/* ---- as a rank ---------------------------------------------------------------------------------------------------------------- */
/* Measures one size of every collective, and leaves out those for which too little time is left. *all: 1 if none was
 * left out. */
static esp_status links_measure_size(profile_job *j, uint32_t size, int pass, int *all) {
    const uint64_t bytes = j->sizes[size];
    esp_status s = ESP_OK;
    for (uint8_t level = ESP__FLAT; level <= ESP__INTER; level++)
        for (uint32_t coll = 1; coll < ESP_PLAN_COLLS && esp__survey_has(j->ctx, level) && !s; coll++) {
            double left = 0, guess = esp__survey_guess(j->ctx, j->survey, level, coll, bytes);
            char what[96];
            s = profile_left(j, &left);
            if (s) break;
            const double room = left / (3.0 * ESP_PLAN_COLLS);
            if (size > 2 && guess * 3 > room) {
                *all = 0;
                continue;
            }
            snprintf(what, sizeof what, "%ld ranks, round %d, %s.%s of %s", (long)j->ctx->job.size, pass + 1,
                     links_levels[level], links_names[coll], tool_bytes((double)bytes));
            profile_say(j, (double)size / j->n_sizes, what);
            s = esp__survey_link(j->ctx, j->survey, level, coll, bytes, esp__survey_repeats(guess));
        }
    return s;
}

static esp_status links_measure_all(profile_job *j) {
    double left = 0, round = 0;
    esp_status s = esp__survey_open(j->ctx, j->survey, j->sizes[j->n_sizes - 1], 1024);
    j->n_done = j->n_sizes;
    for (int pass = 0; pass < PROFILE_PASSES && !s; pass++) {
        s = profile_left(j, &left);
        if (s || left < 1.2 * round) break;
        const double begun = left;
        for (uint32_t i = 0; i < j->n_sizes && !s; i++) {
            int all = 1;
            s = links_measure_size(j, i, pass, &all);
            if (!all && !pass && i < j->n_done) j->n_done = i;
        }
        if (!s) s = profile_left(j, &left);
        round = begun - left;
    }
    return s;
}

/* Stands for a layer's backward, for about as long: busy on a core, or asleep where an accelerator would compute. */
static void links_between(const profile_job *j) {
    const uint64_t until = esp__now_ns() + 200000u;
    const struct timespec pause = {0, 200000};
    if (j->shared_cores == 0) nanosleep(&pause, NULL);
    while (j->shared_cores && esp__now_ns() < until) esp__cpu_relax();
}

/* Runs steps of a small model, without and with compression, to measure how long ops wait for a thread or a core. */
static esp_status links_dispatch(profile_job *j) {
    enum { TENSORS = 16, COUNT = 16384, STEPS = 8 };
    const esp_stream cpu = ESP_ZERO;
    static float grads[TENSORS][COUNT];
    esp_status s = ESP_OK;
    for (int i = 0; i < TENSORS && !s; i++) {
        char name[16];
        esp_tensor_desc d = ESP_ZERO;
        snprintf(name, sizeof name, "t%d", i);
        d.name = name;
        d.count = COUNT;
        s = esp_tensor_add(j->ctx, &d, NULL);
    }
    if (!s) s = esp_start(j->ctx);
    for (int k = 0; k < 2 * STEPS && !s; k++) {
        if (k == STEPS) s = esp_strategy_set(j->ctx, "layerwise");
        for (uint32_t i = 0; i < TENSORS && !s; i++) {
            links_between(j);
            s = esp_push(j->ctx, i, grads[i], cpu);
        }
        if (!s) s = esp_wait_all(j->ctx);
        if (!s && k % STEPS) s = esp__survey_step(j->ctx, j->survey);
    }
    return s;
}

static esp_status links_measure(profile_job *j) {
    esp_status s = links_measure_all(j);
    if (!s && j->shared_cores < 0) j->shared_cores = j->survey->sharing >= j->survey->cores;
    j->survey->load = j->shared_cores > 0 ? 1.0 : 0.0;
    if (!s) s = links_dispatch(j);
    if (!s) s = esp__survey_finish(j->ctx, j->survey);
    return s ? s : profile_noise(j);
}

static esp_status links_write(const profile_job *j) {
    char path[PATH_MAX], name[96], source[256];
    const uint32_t cores = j->survey->cores, locals = j->survey->system.ranks_per_machine;
    esp__system_file f = {
        .system = j->survey->system, .source = source, .cpu_workers = cores > locals ? cores : locals};
    if (!j->out) return ESP_OK;
    const char *link = getenv("ESPRESSO_INTER_LINK");
    snprintf(name, sizeof name, "%u x %u ranks, %.40s%s%.20s", f.system.machines, locals, j->ctx->job.backend->name,
             link ? " " : "", link ? link : "");
    snprintf(source, sizeof source, "measured by espresso profile links: %d ranks on %u core(s), backend %.40s",
             j->ctx->job.size, cores, j->ctx->job.backend->name);
    f.system.name = name;
    profile_measured(j, &f.measured);
    if (!links_path(j, j->ctx->job.size, path, sizeof path)) return ESP_E_ARG;
    return esp__system_write(path, &f);
}

static void links_table(const profile_job *j, uint8_t level) {
    printf("\n%s%*s", links_levels[level], (int)(10 - strlen(links_levels[level])), "");
    for (int coll = 1; coll < ESP_PLAN_COLLS; coll++) printf(" %14s", links_names[coll]);
    printf(" %8s\n", "spread");
    for (uint32_t i = 0; i < j->n_sizes; i++) {
        double most = 0;
        int any = 0;
        for (int pass = 0; pass < 2; pass++) { /* first: was this size measured? second: print its row */
            if (pass && !any) break;
            if (pass) printf("%10s", tool_bytes((double)j->sizes[i]));
            for (int coll = 1; coll < ESP_PLAN_COLLS; coll++) {
                const esp__survey_curve *c = &j->survey->link[level][coll];
                uint32_t k = 0;
                while (k < c->n && fabs(c->at[k].size - (double)j->sizes[i]) > 0.5) k++;
                any |= k < c->n;
                if (k < c->n && c->spread[k] > most) most = c->spread[k];
                if (pass) printf(" %14s", k < c->n ? tool_time(c->at[k].ns) : "-");
            }
        }
        if (any) printf(" %7.0f%%\n", 100 * most);
    }
}

static void links_text(const profile_job *j) {
    const esp_plan_system *y = &j->survey->system;
    printf("%d ranks, %d machine(s), backend %s, %u core(s), %s%s\n", j->ctx->job.size, j->ctx->job.topo.n_machines,
           j->ctx->job.backend->name, j->survey->cores, *j->device ? j->device : "CPU", j->noisy ? ": NOISY" : "");
    for (uint8_t level = ESP__FLAT; level <= ESP__INTER; level++)
        if (esp__survey_has(j->ctx, level)) links_table(j, level);
    printf("\nfitted: ");
    if (y->ranks_per_machine > 1)
        printf("intra %s a hop, %s/s; ", tool_time(y->intra.alpha_ns), tool_bytes(y->intra.bytes_per_us * 1e6));
    if (y->machines > 1)
        printf("inter %s a hop, %s/s; ", tool_time(y->inter.alpha_ns), tool_bytes(y->inter.bytes_per_us * 1e6));
    printf("copying %s/s\n", tool_bytes(y->pack_bytes_per_us * 1e6));
    printf("starting an op: cpu %s, intra %s, inter %s\n", tool_time(y->dispatch_ns[1]), tool_time(y->dispatch_ns[2]),
           tool_time(y->dispatch_ns[3]));
}

static void links_json(const profile_job *j) {
    const esp_plan_system *y = &j->survey->system;
    tool_json t = {{NULL, 0, 0, 0, NULL}, 0, 0};
    json_open(&t, NULL, '{');
    profile_json_head(j, &t);
    json_us(&t, "intra_alpha_us", y->intra.alpha_ns);
    json_number(&t, "intra_bytes_per_us", y->intra.bytes_per_us);
    json_us(&t, "inter_alpha_us", y->inter.alpha_ns);
    json_number(&t, "inter_bytes_per_us", y->inter.bytes_per_us);
    json_number(&t, "pack_bytes_per_us", y->pack_bytes_per_us);
    json_us(&t, "dispatch_cpu_us", y->dispatch_ns[1]);
    json_us(&t, "dispatch_intra_us", y->dispatch_ns[2]);
    json_us(&t, "dispatch_inter_us", y->dispatch_ns[3]);
    json_number(&t, "cores_per_rank", y->cores_per_rank);
    json_open(&t, "links", '[');
    for (int level = 0; level < 3; level++)
        for (int coll = 1; coll < ESP_PLAN_COLLS; coll++) {
            if (!j->survey->link[level][coll].n) continue;
            json_open(&t, NULL, '{');
            json_text(&t, "level", links_levels[level]);
            json_text(&t, "collective", links_names[coll]);
            profile_json_curve(&t, "points", &j->survey->link[level][coll]);
            json_close(&t, '}');
        }
    json_close(&t, ']');
    json_close(&t, '}');
    fputs(t.text.data ? t.text.data : "", stdout);
    esp__text_free(&t.text);
}

static int links_as_rank(profile_job *j) {
    esp_status s = profile_open(j);
    if (!s && j->launched) s = profile_fit_launched(j, 2.5);
    if (!s) s = links_measure(j);
    if (s) return profile_fail(j);
    if (j->ctx->job.rank == 0) {
        if (links_write(j) != ESP_OK) return profile_fail(j);
        progress_done();
        profile_warn(j);
        if (j->json)
            links_json(j);
        else if (!j->out || strcmp(j->out, "-"))
            links_text(j);
    }
    return profile_end(j, TOOL_OK);
}

static int profile_links_main(int argc, char **argv) {
    profile_job j = {.command = &profile_links_command,
                     .machines = 1,
                     .budget_ns = 60e9,
                     .status_fd = -1,
                     .terminal_fd = -1,
                     .shared_cores = -1};
    profile_sizes(&j, "2^10..2^26", 4);
    const int status = links_parse(&j, argc, argv);
    if (status) return status == -1 ? TOOL_OK : status;
    return j.as_rank ? links_as_rank(&j) : links_start(&j, argc, argv);
}
