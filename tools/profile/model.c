/* model.c: `espresso profile model`: runs the user's trainer with ESPRESSO_PROFILE until the library in it has
 * written a profile, ends the trainer, and shows the profile. Must not know how the library records. */
#include "espresso_impl/base/file.h"

enum { MODEL_GRACE_MS = 5000, MODEL_SILENCE_MS = 30000, MODEL_LOOK_MS = 100 };
enum { MODEL_N, MODEL_MACHINES, MODEL_INTER, MODEL_STEPS, MODEL_SKIP, MODEL_NAME, MODEL_O, MODEL_KEEP };
static const tool_flag profile_model_flags[] = {
    {"-n", "N", "start N ranks of it, as espresso run does (default: start it once, as it is)"},
    {"--machines", "M", "with -n: spread them over M emulated machines"},
    {"--inter", "RATE[,LATENCY]", "with --machines: emulate this link between them"},
    {"--steps", "N", "steps to measure (default 100)"},
    {"--skip", "N", "steps before those that are not counted (default 5)"},
    {"--name", "NAME", "the model's name in the file (default: the program's)"},
    {"-o", "FILE", "the model file to write; - is standard output (needed)"},
    {"--keep-running", NULL, "let the trainer go on to its end"},
};
static const tool_command profile_model_command = {
    .name = "profile model",
    .summary = "Measures when a trainer's gradients are ready, as a model file for espresso plan.",
    .synopsis = "[-n N [--machines M [--inter RATE]]] [--steps 100] -o FILE -- PROGRAM [ARG...]",
    .flags = profile_model_flags,
    .n_flags = sizeof profile_model_flags / sizeof *profile_model_flags,
    .details =
        "The trainer runs as it always does, with ESPRESSO_PROFILE in its environment, and is ended (SIGTERM) once "
        "the\n"
        "file is complete. What it prints goes to standard error. PROGRAM may also be a launcher, such as mpirun.\n"
        "Measure on a machine that does nothing else: a file from a busy one is marked as noisy.\n"
        "\n"
        "examples:\n"
        "  espresso profile model -n 4 -o model.json -- ./train --batch 64\n"
        "  espresso profile model -o model.json -- mpirun -x ESPRESSO_PROFILE -x ESPRESSO_STATS -np 8 ./train",
};

typedef struct profile_model_job {
    const tool_command *command;
    long n, machines, steps, skip;
    const char *inter, *name, *out;
    int keep, part;   /* part: of a costs file, which says where it was written */
    run_plan program; /* the trainer's argv and path */
    char file[4200];  /* written by the trainer; renamed to `out` when it is valid */
    char stats[4200]; /* written by the trainer; "": the user set ESPRESSO_STATS */
    pid_t pid;
    int status, ended, asked; /* from waitpid; 2: ended by itself, without success; signal that we got */
    int64_t started_ms;
    int heard, said_silence; /* heard: the trainer called esp_start */
    long step;
} profile_model_job;

/* ---- command line --------------------------------------------------------------------------------------------------- */
static int profile_model_parse(profile_model_job *j, int argc, char **argv) {
    const tool_command *c = j->command;
    const char *value;
    int at = 0, flag, bad = 0;
    while ((flag = tool_next(c, argc, argv, &at, &value)) >= 0 && !bad) {
        if (flag == MODEL_N && !tool_number(value, 1, RUN_RANKS_MAX, &j->n))
            bad = tool_usage(c, "-n %s: write a number of ranks from 1 to %d", value, RUN_RANKS_MAX);
        else if (flag == MODEL_MACHINES && !tool_number(value, 1, RUN_RANKS_MAX, &j->machines))
            bad = tool_usage(c, "--machines %s: write a number of machines, 1 or more", value);
        else if (flag == MODEL_STEPS && !tool_number(value, 1, 1000000, &j->steps))
            bad = tool_usage(c, "--steps %s: write a number of steps from 1 to 1000000", value);
        else if (flag == MODEL_SKIP && !tool_number(value, 0, 1000000, &j->skip))
            bad = tool_usage(c, "--skip %s: write a number of steps from 0 to 1000000", value);
        else if (flag == MODEL_NAME && (!*value || strpbrk(value, ",()\n")))
            bad = tool_usage(c, "--name '%s': write a name without commas, brackets and line ends", value);
        else if (flag == MODEL_INTER)
            j->inter = value;
        else if (flag == MODEL_NAME)
            j->name = value;
        else if (flag == MODEL_O)
            j->out = value;
        else if (flag == MODEL_KEEP)
            j->keep = 1;
    }
    if (bad) return bad;
    if (flag == -2) return TOOL_USAGE;
    if (flag == -3) return -1;
    j->program.argv = argv + at;
    j->program.command = c;
    if (!argv[at]) return tool_usage(c, "no program to measure: espresso profile model -n 4 -o model.json -- ./train");
    if (!j->out || !*j->out) return tool_usage(c, "-o is missing: the model file to write, such as -o model.json");
    if (!j->n && j->machines) return tool_usage(c, "--machines needs -n: how many ranks?");
    if (!j->machines && j->inter) return tool_usage(c, "--inter needs --machines: between which machines?");
    return j->n ? ranks_check(c, j->n, j->machines ? j->machines : 1, j->inter) : TOOL_OK;
}

/* Makes the paths that the trainer writes to: beside the output file, and absolute, since the trainer may change its
 * folder. */
static int profile_model_paths(profile_model_job *j) {
    const tool_command *c = j->command;
    char folder[4096] = "/tmp";
    int error = 0;
    if (strcmp(j->out, "-") != 0) {
        const char *slash = strrchr(j->out, '/');
        char part[4096];
        if ((error = esp__file_check(j->out)) != 0)
            return tool_fail(c, "%s cannot be written: %s", j->out, strerror(error));
        snprintf(part, sizeof part, "%.*s", slash ? (int)(slash - j->out) + 1 : 1, slash ? j->out : ".");
        if (!realpath(part, folder)) return tool_fail(c, "%s cannot be written: %s", j->out, strerror(errno));
    }
    if (strchr(folder, ',')) return tool_fail(c, "-o %s: the folder's name must not have a comma in it", j->out);
    snprintf(j->file, sizeof j->file, "%s/.espresso-model-%ld.json", folder, (long)getpid());
    if (!getenv("ESPRESSO_STATS"))
        snprintf(j->stats, sizeof j->stats, "%s/.espresso-model-%ld.stats", folder, (long)getpid());
    return TOOL_OK;
}

/* ---- the trainer ------------------------------------------------------------------------------------------------------- */
static _Noreturn void profile_model_become(const profile_model_job *j, pid_t parent) {
    char number[3][24];
    size_t n = 0, at = 0;
    while (j->program.argv[n]) n++;
    char **argv = tool_realloc(NULL, (n + 12) * sizeof *argv);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the trainer is `espresso run`, its watchdog process then ends the ranks */
    if (getppid() != parent) _exit(127);
    if (isatty(0)) { /* its process group is not the terminal's foreground one */
        int none = open("/dev/null", O_RDONLY);
        if (none >= 0) dup2(none, 0), close(none);
    }
    dup2(2, 1);
    if (j->n) {
        snprintf(number[0], sizeof number[0], "%ld", j->n);
        snprintf(number[1], sizeof number[1], "%ld", j->machines ? j->machines : 1);
        const char *own[] = {"espresso", "run", "-n", number[0], "--machines", number[1]};
        for (; at < 6; at++) argv[at] = (char *)(uintptr_t)own[at];
        if (j->inter) argv[at++] = (char *)(uintptr_t) "--inter", argv[at++] = (char *)(uintptr_t)j->inter;
        argv[at++] = (char *)(uintptr_t) "--";
    }
    memcpy(argv + at, j->program.argv, (n + 1) * sizeof *argv);
    execv(j->n ? "/proc/self/exe" : j->program.path, argv);
    fprintf(stderr, "espresso profile model: cannot start '%s': %s\n", argv[0], strerror(errno));
    _exit(127);
}

static int profile_model_start(profile_model_job *j, const sigset_t *mask) {
    char text[4096 + 400];
    pid_t parent = getpid();
    snprintf(text, sizeof text, "%s,steps=%ld,skip=%ld%s%s", j->file, j->steps, j->skip, j->name ? ",name=" : "",
             j->name ? j->name : "");
    setenv("ESPRESSO_PROFILE", text, 1);
    snprintf(text, sizeof text, "%s,every=200ms", j->stats);
    if (*j->stats) setenv("ESPRESSO_STATS", text, 1);
    fflush(NULL);
    j->started_ms = run_now_ms();
    j->pid = fork();
    if (j->pid < 0) return tool_fail(j->command, "cannot start a process: %s", strerror(errno));
    if (j->pid == 0) {
        sigprocmask(SIG_SETMASK, mask, NULL);
        profile_model_become(j, parent);
    }
    setpgid(j->pid, j->pid);
    return TOOL_OK;
}

/* Reads the last "step" value of the trainer's statistics file. */
static void profile_model_listen(profile_model_job *j) {
    char tail[8192];
    int fd = *j->stats ? open(j->stats, O_RDONLY | O_CLOEXEC) : -1;
    off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    if (size > 0) {
        off_t from = size > (off_t)sizeof tail - 1 ? size - (off_t)sizeof tail + 1 : 0;
        ssize_t n = pread(fd, tail, sizeof tail - 1, from);
        tail[n > 0 ? n : 0] = 0;
        j->heard = 1;
        for (const char *at = tail; (at = strstr(at, "\"kind\":\"sample\"")) != NULL; at++) {
            const char *step = strstr(at, "\"step\":");
            if (step) j->step = strtol(step + 7, NULL, 10);
        }
    }
    if (fd >= 0) close(fd);
    if (j->step)
        progress_say("profile model: step %ld of %ld,", j->step, j->steps + j->skip);
    else
        progress_say("profile model: waiting for the first step,");
    if (j->step || j->said_silence || run_now_ms() - j->started_ms < MODEL_SILENCE_MS) return;
    j->said_silence = 1;
    progress_done();
    fprintf(stderr,
            "espresso profile model: no step was made in %d s: is it a program that calls esp_start and "
            "esp_wait_all? Ctrl-C gives up\n",
            MODEL_SILENCE_MS / 1000);
}

/* Sleeps until the trainer ends, a signal comes, or `ms` have passed. */
static void profile_model_sleep(profile_model_job *j, const sigset_t *wanted, long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    int sig = sigtimedwait(wanted, NULL, &t);
    if (sig > 0 && sig != SIGCHLD && !j->asked) j->asked = sig;
    if (!j->ended && waitpid(j->pid, &j->status, WNOHANG) == j->pid) j->ended = 1;
}

/* Ends the trainer and what it started: sends `sig`, and SIGKILL after a grace time. */
static void profile_model_end(profile_model_job *j, const sigset_t *wanted, int sig) {
    int64_t end = run_now_ms() + MODEL_GRACE_MS;
    if (!j->ended) kill(-j->pid, sig), kill(-j->pid, SIGCONT);
    while (!j->ended && run_now_ms() < end) profile_model_sleep(j, wanted, 50);
    kill(-j->pid, SIGKILL);
    if (!j->ended) waitpid(j->pid, &j->status, 0), j->ended = 1;
}

/* Runs the trainer until the file is there, the trainer has ended, or a signal came. */
static void profile_model_watch(profile_model_job *j) {
    sigset_t wanted, old;
    sigemptyset(&wanted);
    const int all[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) sigaddset(&wanted, all[i]);
    sigprocmask(SIG_BLOCK, &wanted, &old);
    int status = profile_model_start(j, &old), stop = 0;
    while (status == TOOL_OK && !j->ended && !j->asked && !stop) {
        profile_model_sleep(j, &wanted, MODEL_LOOK_MS);
        profile_model_listen(j);
        stop = !j->keep && access(j->file, F_OK) == 0;
    }
    progress_done();
    if (status == TOOL_OK) {
        if (j->ended) profile_model_listen(j), progress_done();
        profile_model_end(j, &wanted, j->asked ? j->asked : SIGTERM);
        if (!stop && WIFSIGNALED(j->status) && !j->asked) j->ended = 2; /* not ended by us */
        if (!stop && WIFEXITED(j->status) && WEXITSTATUS(j->status)) j->ended = 2;
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
}

/* ---- results --------------------------------------------------------------------------------------------------------------- */
/* Writes how the trainer ended: "exited with status 3", or by which signal. */
static const char *profile_model_fate(const profile_model_job *j, char *text, size_t cap) {
    if (WIFSIGNALED(j->status))
        snprintf(text, cap, "was killed by signal %d (%s)", WTERMSIG(j->status), strsignal(WTERMSIG(j->status)));
    else
        snprintf(text, cap, "exited with status %d", WEXITSTATUS(j->status));
    return text;
}

static int profile_model_no_file(const profile_model_job *j) {
    const tool_command *c = j->command;
    const char *name = j->program.argv[0];
    char fate[160];
    profile_model_fate(j, fate, sizeof fate);
    if (j->asked)
        return tool_fail(c, "ended by signal %d (%s): nothing was written", j->asked, strsignal(j->asked)),
               128 + j->asked;
    if (j->ended == 2) return tool_fail(c, "'%s' %s before its times were measured: nothing was written", name, fate);
    if (*j->stats && !j->heard)
        return tool_fail(c,
                         "'%s' %s and never called esp_start: is it a program that uses espresso? With ranks on other "
                         "machines, -o must be a folder that they share, and the launcher must pass ESPRESSO_PROFILE "
                         "on",
                         name, fate);
    if (*j->stats && !j->step)
        return tool_fail(c, "'%s' %s without a step: it called esp_start, but never esp_wait_all", name, fate);
    return tool_fail(
        c, "'%s' %s after too few steps: %ld; %ld are not counted (--skip), and then %ld are wanted (--steps)", name,
        fate, j->step, j->skip, j->steps);
}

static void profile_model_table(const esp__model_file *f, FILE *to) {
    const esp_plan_model *m = &f->model;
    double at = m->forward_ns, elements = 0;
    int widest = 6;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        int n = (int)strlen(m->tensors[i].name);
        if (n > widest) widest = n < 40 ? n : 40;
        elements += (double)m->tensors[i].elements;
        at += m->tensors[i].compute_ns;
    }
    fprintf(to, "%s: %u tensors, %s elements; forward %s, backward %s (medians of %u steps, %u rank(s), %u cores)\n\n",
            m->name, m->n_tensors, tool_count(elements), tool_time(m->forward_ns), tool_time(at - m->forward_ns),
            f->steps, f->measured.ranks, f->measured.cores);
    fprintf(to, "%-*s %12s %11s %11s %7s\n", widest, "tensor", "elements", "compute", "ready at", "spread");
    at = 0;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const double spread = f->more[i].spread;
        char text[16] = "-";
        at += m->tensors[i].compute_ns;
        if (spread >= 0) snprintf(text, sizeof text, "%.0f%%", spread < 99.99 ? spread * 100 : 9999);
        fprintf(to, "%-*s %12llu %11s %11s %7s\n", widest, m->tensors[i].name,
                (unsigned long long)m->tensors[i].elements, tool_time(m->tensors[i].compute_ns), tool_time(at), text);
    }
    if (at <= 0.01 * m->forward_ns)
        fprintf(
            to,
            "\nAll gradients are pushed at the same time: push each when it is ready (esp_push returns at once), or "
            "communication cannot overlap with the backward pass.\n");
}

/* The file is there: checks and shows it, and renames it to `out`. */
static int profile_model_finish(const profile_model_job *j) {
    const tool_command *c = j->command;
    esp__model_file f;
    char *text = NULL, fate[160];
    size_t len = 0;
    esp_status s = files_input_load(j->file, &text, &len);
    if (!s) s = esp__model_parse(j->out, text, len, &f, NULL); /* warns if the profile is noisy */
    if (s) {
        free(text);
        return tool_fail(c, "%s", esp_last_error(NULL));
    }
    if (f.steps < (uint32_t)j->steps)
        fprintf(stderr,
                "espresso profile model: warning: only %u of %ld steps were made, and only rank 0's times count\n",
                f.steps, j->steps);
    s = esp__output_write(j->out, text, len);
    free(text);
    if (s) tool_fail(c, "%s", esp_last_error(NULL));
    if (!s && strcmp(j->out, "-") != 0) profile_model_table(&f, stdout);
    if (!s && strcmp(j->out, "-") != 0 && !j->part) printf("\nwritten: %s\n", j->out);
    esp__model_free(&f);
    if (!s && j->ended == 2)
        return tool_fail(c, "'%s' %s after that", j->program.argv[0], profile_model_fate(j, fate, sizeof fate));
    return s ? TOOL_FAILED : TOOL_OK;
}

static int profile_model_main(int part, int argc, char **argv) {
    profile_model_job j = {.command = &profile_model_command, .steps = 100, .skip = 5, .part = part};
    int status = profile_model_parse(&j, argc, argv);
    if (status == TOOL_OK) status = run_find_program(&j.program);
    if (status == TOOL_OK) status = profile_model_paths(&j);
    if (status != TOOL_OK) return status == -1 ? TOOL_OK : status;
    profile_model_watch(&j);
    if (j.pid <= 0)
        status = TOOL_FAILED;
    else
        status = access(j.file, F_OK) == 0 && !j.asked ? profile_model_finish(&j) : profile_model_no_file(&j);
    unlink(j.file);
    if (*j.stats) unlink(j.stats);
    return status;
}
