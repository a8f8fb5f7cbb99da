/* task.c: what an agent is told to start, as text: one field after the other, each with a zero byte behind it. Numbers are decimal.
 * Everything travels this way and not in a command line, which other users of the host could read. */
#include "tools/run/run.h"
extern char **environ;

/* Variables that `espresso run` sets itself for each rank: those of a job around this one must not travel. */
static const char *const run_own_names[] = {"ESPRESSO_RANK",       "ESPRESSO_SIZE",     "ESPRESSO_MACHINE",
                                            "ESPRESSO_LOCAL_RANK", "ESPRESSO_LAUNCHER", "ESPRESSO_ROOT",
                                            "ESPRESSO_PLACE",      "ESPRESSO_HOSTS",    "ESPRESSO_SECRET"};

static int run_is_own(const char *text) {
    const size_t n = strcspn(text, "=");
    for (size_t i = 0; i < sizeof run_own_names / sizeof *run_own_names; i++)
        if (strlen(run_own_names[i]) == n && strncmp(text, run_own_names[i], n) == 0) return 1;
    return 0;
}

/* Does this variable of the environment go to other hosts without being asked for? */
static int run_travels(const char *text) {
    if (run_is_own(text)) return 0;
    if (strncmp(text, "ESPRESSO_TOKENS=", 16) == 0)
        return !strcmp(text + 16, "off"); /* else descriptors of a job here */
    return strncmp(text, "ESPRESSO_", 9) == 0 || strncmp(text, "OMP_", 4) == 0;
}

static void run_task_text(run_queue *q, const char *text) { run_queue_add(q, text, strlen(text) + 1); }
static void run_task_number(run_queue *q, long v) {
    char text[24];
    snprintf(text, sizeof text, "%ld", v);
    run_task_text(q, text);
}

/* This directory by the name that the shell gave it, which may be the only one that other hosts know. */
static int run_here(char *path, size_t cap) {
    const char *said = getenv("PWD");
    struct stat a, b;
    if (said && *said == '/' && strlen(said) < cap && stat(said, &a) == 0 && stat(".", &b) == 0 &&
        a.st_dev == b.st_dev && a.st_ino == b.st_ino) {
        memcpy(path, said, strlen(said) + 1);
        return 1;
    }
    return getcwd(path, cap) != NULL;
}

/* Writes the task of one host. Frees nothing. */
static void run_task_write(const run_plan *p, const run_host_spec *h, run_queue *q) {
    int argc = 0, envc = 0;
    while (p->argv[argc]) argc++;
    for (char **v = environ; *v; v++) envc += run_travels(*v);
    run_task_text(q, h->name);
    run_task_number(q, p->n);
    run_task_number(q, h->first);
    run_task_number(q, h->ranks);
    run_task_number(q, h - p->hosts);
    run_task_number(q, p->n_hosts);
    run_task_number(q, p->racks);
    run_task_text(q, p->timeout ? p->timeout : "");
    run_task_text(q, p->secret);
    run_task_number(q, h == p->hosts && p->root[0] && p->root[strlen(p->root) - 1] == ':');
    run_task_text(q, p->directory);
    run_task_number(q, argc);
    for (int i = 0; i < argc; i++) run_task_text(q, p->argv[i]);
    run_task_number(q, envc + p->n_env);
    for (char **v = environ; *v; v++)
        if (run_travels(*v)) run_task_text(q, *v);
    for (int i = 0; i < p->n_env; i++) run_task_text(q, p->env[i]);
}

/* Reads the fields again, without copying them; a text that ends early sets `bad`. */
typedef struct run_task_reader {
    char *at, *end;
    int bad;
} run_task_reader;

static char *run_task_take(run_task_reader *r) {
    static char none[1];
    char *text = r->at, *zero = r->at < r->end ? memchr(r->at, 0, (size_t)(r->end - r->at)) : NULL;
    r->bad |= !zero;
    r->at = zero ? zero + 1 : r->end;
    return zero ? text : none;
}

static int run_task_take_number(run_task_reader *r, int low, int high) {
    long v = low;
    if (!tool_number(run_task_take(r), low, high, &v)) r->bad = 1;
    return (int)v;
}

/* A list of texts, with a NULL behind the last. */
static char **run_task_take_list(run_task_reader *r, int *count) {
    *count = run_task_take_number(r, 0, RUN_FRAME_MAX);
    if (*count > r->end - r->at) r->bad = 1;
    if (r->bad) *count = 0;
    char **list = tool_realloc(NULL, ((size_t)*count + 1) * sizeof *list);
    for (int i = 0; i < *count; i++) list[i] = run_task_take(r);
    list[*count] = NULL;
    return list;
}

/* Reads a task, whose text must stay, into a plan that holds nothing yet. 0: it is malformed. */
static int run_task_read(run_plan *p, char *text, size_t bytes, const char **directory, int *wants_port) {
    run_task_reader r = {text, text + bytes, 0};
    int argc;
    p->agent = run_task_take(&r);
    p->n = run_task_take_number(&r, 1, RUN_RANKS_MAX);
    p->first = run_task_take_number(&r, 0, RUN_RANKS_MAX);
    p->here = run_task_take_number(&r, 1, RUN_RANKS_MAX);
    const int machine = run_task_take_number(&r, 0, RUN_RANKS_MAX);
    p->machines = run_task_take_number(&r, 1, RUN_RANKS_MAX);
    p->racks = run_task_take_number(&r, 0, RUN_RANKS_MAX);
    p->timeout = run_task_take(&r);
    if (!p->timeout[0]) p->timeout = NULL;
    const char *secret = run_task_take(&r);
    r.bad |= strlen(secret) != sizeof p->secret - 1;
    snprintf(p->secret, sizeof p->secret, "%s", secret);
    *wants_port = run_task_take_number(&r, 0, 1);
    *directory = run_task_take(&r);
    p->argv = run_task_take_list(&r, &argc);
    p->env = (const char **)(uintptr_t)run_task_take_list(&r, &p->n_env);
    p->machine_of = tool_realloc(NULL, (size_t)p->here * sizeof(int));
    p->local_of = tool_realloc(NULL, (size_t)p->here * sizeof(int));
    for (int i = 0; i < p->here; i++) {
        p->machine_of[i] = machine;
        p->local_of[i] = i;
    }
    for (int i = 0; i < p->n_env; i++) r.bad |= !strchr(p->env[i], '=');
    return !r.bad && argc > 0 && p->first + p->here <= p->n;
}
