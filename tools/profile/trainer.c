/* trainer.c: runs the user's trainer until the library in it has written a model file, and then ends it. */
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/limits.h"
#include "tools/common/progress.h"
#include "tools/common/quantity.h"
#include "tools/profile/profile.h"
#include "tools/run/run.h"
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { TRAINER_GRACE_MS = 5000, TRAINER_SILENCE_MS = 30000, TRAINER_LOOK_MS = 100 };

typedef struct profile_watch {
    const profile_job *job;
    run_plan program;
    char file[4200];
    char stats[4200]; /* path of the statistics, or "" if the user has set ESPRESSO_STATS */
    pid_t pid;
    int status;
    bool ended, failed; /* failed: it ended with an error before it was told to end */
    int end_signal;
    bool called_start;
    bool warned; /* the user was warned that the trainer makes no step */
    long step, first_step;
    int64_t started_ms, first_ms;
} profile_watch;

/* Makes the paths of the files that the trainer writes. They are absolute, since it may change its directory. They are
 * in the output file's folder, which ranks on other machines may reach too. */
static int trainer_paths(profile_watch *w) {
    const profile_job *j = w->job;
    const char *slash = strrchr(j->out, '/');
    char folder[PATH_MAX] = "/tmp", part[PATH_MAX];
    snprintf(part, sizeof part, "%.*s", slash ? (int)(slash - j->out) + 1 : 1, slash ? j->out : ".");
    if (strcmp(j->out, "-") && !realpath(part, folder))
        return tool_fail(j->command, "-o %s: cannot be written: %s", j->out, strerror(errno));
    if (strchr(folder, ',')) return tool_fail(j->command, "-o %s: its folder must have no comma in its name", j->out);
    snprintf(w->file, sizeof w->file, "%s/.espresso-profile-%ld.json", folder, (long)getpid());
    if (!getenv("ESPRESSO_STATS"))
        snprintf(w->stats, sizeof w->stats, "%s/.espresso-profile-%ld.stats", folder, (long)getpid());
    return TOOL_OK;
}

/* ---- the trainer's process --------------------------------------------------------------------------------------- */
static _Noreturn void trainer_become(const profile_watch *w, pid_t parent) {
    const profile_job *j = w->job;
    char ranks[24], machines[24];
    size_t n = 0, at = 0;
    while (w->program.argv[n]) n++;
    const char **argv = tool_realloc(NULL, (n + 12) * sizeof *argv);
    setpgid(0, 0);
    /* if the trainer is `espresso run`, its ranks end with it */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    if (isatty(0)) { /* a background process must not read the terminal */
        const int none = open("/dev/null", O_RDONLY);
        if (none >= 0) dup2(none, 0), close(none);
    }
    dup2(2, 1);
    if (j->n) {
        snprintf(ranks, sizeof ranks, "%ld", j->n);
        snprintf(machines, sizeof machines, "%ld", j->machines ? j->machines : 1);
        const char *const run[] = {"espresso", "run", "-n", ranks, "--machines", machines};
        for (; at < 6; at++) argv[at] = run[at];
        if (j->inter) argv[at++] = "--inter", argv[at++] = j->inter;
        argv[at++] = "--";
    }
    memcpy(argv + at, w->program.argv, (n + 1) * sizeof *argv);
    execv(j->n ? "/proc/self/exe" : w->program.path, (char *const *)(uintptr_t)argv);
    fprintf(stderr, "espresso profile: cannot start '%s': %s\n", argv[0], strerror(errno));
    _exit(127);
}

static int trainer_start(profile_watch *w, const sigset_t *mask) {
    char text[4096 + 400];
    const pid_t parent = getpid();
    snprintf(text, sizeof text, "%s,steps=%ld,skip=%d", w->file, w->job->steps, PROFILE_SKIP);
    setenv("ESPRESSO_PROFILE", text, 1);
    snprintf(text, sizeof text, "%s,every=200ms", w->stats);
    if (*w->stats) setenv("ESPRESSO_STATS", text, 1);
    fflush(NULL);
    w->started_ms = run_now_ms();
    w->pid = fork();
    if (w->pid == 0) {
        sigprocmask(SIG_SETMASK, mask, NULL);
        trainer_become(w, parent);
    }
    unsetenv("ESPRESSO_PROFILE");
    if (*w->stats) unsetenv("ESPRESSO_STATS");
    if (w->pid < 0) return tool_fail(w->job->command, "cannot start a process: %s", esp__strerror(errno));
    setpgid(w->pid, w->pid);
    return TOOL_OK;
}

static void trainer_read_step(profile_watch *w) {
    char tail[8192];
    const int fd = *w->stats ? open(w->stats, O_RDONLY | O_CLOEXEC) : -1;
    const off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    if (size > 0) {
        const off_t from = size > (off_t)sizeof tail - 1 ? size - (off_t)sizeof tail + 1 : 0;
        const ssize_t n = pread(fd, tail, sizeof tail - 1, from);
        tail[n > 0 ? n : 0] = 0;
        w->called_start = true;
        for (const char *at = tail; (at = strstr(at, "\"kind\":\"sample\"")) != NULL; at++) {
            const char *step = strstr(at, "\"step\":");
            if (step) w->step = strtol(step + 7, NULL, 10);
        }
    }
    if (fd >= 0) close(fd);
    if (w->step && !w->first_step) w->first_step = w->step, w->first_ms = run_now_ms();
}

static void trainer_progress(profile_watch *w) {
    const profile_job *j = w->job;
    const long all = j->steps + PROFILE_SKIP;
    const double later = j->parts == PROFILE_MODEL ? 0 : j->budget_ns / 1e9;
    if (w->step > w->first_step)
        progress_set("trainer: step %ld of %ld: about %.0f s left, after", w->step, all,
                     later + (double)(run_now_ms() - w->first_ms) / 1e3 * (double)(w->step < all ? all - w->step : 0) /
                                 (double)(w->step - w->first_step));
    else
        progress_set("trainer: waiting for the first steps,");
    if (w->step || w->warned || run_now_ms() - w->started_ms < TRAINER_SILENCE_MS) return;
    w->warned = true;
    progress_done();
    fprintf(stderr,
            "espresso profile: no step was made in %d s: is it a program that calls esp_start and esp_wait_all? Ctrl-C "
            "gives up\n",
            TRAINER_SILENCE_MS / 1000);
}

static void trainer_sleep(profile_watch *w, const sigset_t *wanted, long ms) {
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    const int sig = sigtimedwait(wanted, NULL, &t);
    if (sig > 0 && sig != SIGCHLD && !w->end_signal) w->end_signal = sig;
    if (!w->ended) w->ended = waitpid(w->pid, &w->status, WNOHANG) == w->pid;
}

/* Sends the trainer and its children `sig`, and after TRAINER_GRACE_MS kills them. */
static void trainer_end(profile_watch *w, const sigset_t *wanted, int sig) {
    const int64_t end = run_now_ms() + TRAINER_GRACE_MS;
    if (!w->ended) kill(-w->pid, sig), kill(-w->pid, SIGCONT);
    while (!w->ended && run_now_ms() < end) trainer_sleep(w, wanted, 50);
    kill(-w->pid, SIGKILL);
    if (!w->ended) waitpid(w->pid, &w->status, 0), w->ended = true;
}

/* Runs the trainer until it has written the model file or has ended, or until a signal arrives. */
static int trainer_run(profile_watch *w) {
    static const int all[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    sigset_t wanted, old;
    sigemptyset(&wanted);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) sigaddset(&wanted, all[i]);
    sigprocmask(SIG_BLOCK, &wanted, &old);
    const int status = trainer_start(w, &old);
    while (status == TOOL_OK && !w->ended && !w->end_signal && access(w->file, F_OK)) {
        trainer_sleep(w, &wanted, TRAINER_LOOK_MS);
        trainer_read_step(w);
        trainer_progress(w);
    }
    progress_done();
    if (status == TOOL_OK) {
        w->failed = w->ended && w->status;
        trainer_end(w, &wanted, w->end_signal ? w->end_signal : SIGTERM);
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
    return status;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */
/* Describes how the trainer ended, such as "exited with status 3". */
static const char *trainer_ending(const profile_watch *w, char text[160]) {
    if (WIFSIGNALED(w->status))
        snprintf(text, 160, "was killed by signal %d (%s)", WTERMSIG(w->status), strsignal(WTERMSIG(w->status)));
    else
        snprintf(text, 160, "exited with status %d", WEXITSTATUS(w->status));
    return text;
}

static int trainer_no_file(const profile_watch *w) {
    const profile_job *j = w->job;
    const tool_command *c = j->command;
    const char *name = w->program.argv[0];
    char fate[160];
    trainer_ending(w, fate);
    if (w->end_signal) {
        tool_fail(c, "ended by signal %d (%s): nothing was written", w->end_signal, strsignal(w->end_signal));
        return 128 + w->end_signal;
    }
    if (w->failed) return tool_fail(c, "'%s' %s before its times were measured: nothing was written", name, fate);
    if (*w->stats && !w->called_start)
        return tool_fail(c,
                         "'%s' %s and never called esp_start: is it a program that uses espresso? With ranks on other "
                         "machines, -o must be in a folder that they share, and the launcher must pass "
                         "ESPRESSO_PROFILE on",
                         name, fate);
    if (*w->stats && !w->step)
        return tool_fail(c, "'%s' %s without a step: it called esp_start, but never esp_wait_all", name, fate);
    return tool_fail(c, "'%s' %s after too few steps: %ld; %d are not counted, and then %ld are wanted (--steps)", name,
                     fate, w->step, PROFILE_SKIP, j->steps);
}

static void trainer_show(const esp__model_file *f) {
    const esp_plan_model *m = &f->model;
    double backward = 0, elements = 0;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        elements += (double)m->tensors[i].elements;
        backward += m->tensors[i].compute_ns;
    }
    printf("%s: %u tensors, %s elements; forward %s, backward %s (medians of %u steps, %u rank(s), %u cores)\n",
           m->name, m->n_tensors, tool_count(elements), tool_time(m->forward_ns), tool_time(backward), f->steps,
           f->measured.ranks, f->measured.cores);
    if (backward + m->forward_ns <= 1.01 * m->forward_ns)
        printf("All gradients are pushed at the same time: push each when it is ready (esp_push returns at once), or "
               "communication cannot overlap with the backward pass.\n");
}

static int trainer_finish(const profile_watch *w, profile_job *j) {
    char *text, fate[160];
    size_t len = 0;
    esp__model_file f;
    esp_status s = files_input_load(w->file, &text, &len);
    if (s) return tool_fail(j->command, "%s", esp_last_error(NULL));
    s = esp__model_parse(w->program.argv[0], text, len, &f, NULL); /* prints a warning if times are noisy */
    free(text);
    if (s) return tool_fail(j->command, "%s", esp_last_error(NULL));
    if (f.steps < (uint32_t)j->steps)
        fprintf(stderr, "espresso profile: warning: only %u of %ld steps were made, and only rank 0's times count\n",
                f.steps, j->steps);
    if (w->failed)
        fprintf(stderr, "espresso profile: warning: '%s' %s when its times were measured\n", w->program.argv[0],
                trainer_ending(w, fate));
    if (strcmp(j->out, "-")) trainer_show(&f);
    esp__model_free(&f);
    j->model_file = open(w->file, O_RDONLY);
    return j->model_file < 0 ? tool_fail(j->command, "%s: %s", w->file, strerror(errno)) : TOOL_OK;
}

ESP__FN int profile_trainer(profile_job *j) {
    profile_watch w = {.job = j, .program = {.command = j->command, .argv = j->program}};
    int status = run_find_program(&w.program);
    if (status == TOOL_OK) status = trainer_paths(&w);
    if (status == TOOL_OK) status = trainer_run(&w);
    if (status == TOOL_OK)
        status = access(w.file, F_OK) == 0 && !w.end_signal ? trainer_finish(&w, j) : trainer_no_file(&w);
    if (*w.file) unlink(w.file);
    if (*w.stats) unlink(w.stats);
    return status;
}
