/* remote.c: runs ranks on other hosts (--hosts). The launcher starts `espresso run --part` on each host by a remote
 * shell. That process reads the job from its standard input, then one byte for each signal to send. When its input
 * ends, the launcher or the connection is gone, and it ends its ranks. */
#include "tools/run/run.h"
#include "espresso.h"
#include <fcntl.h>
#include <sys/stat.h>

/* Prefix of lines by which `run --part` reports to the launcher. A number follows: 0 when it is ready, later a failed
 * rank's exit status. */
static const char run_mark[] = "espresso run --part: ";
enum { RUN_HEAD = 32 };

/* Returns whether `espresso run` sets this variable for ranks. A job inside a job must not inherit such values. */
ESP__FN bool run_is_own(const char *text) {
    static const char *const own[] = {"ESPRESSO_RANK",       "ESPRESSO_SIZE",     "ESPRESSO_MACHINE",
                                      "ESPRESSO_LOCAL_RANK", "ESPRESSO_LAUNCHER", "ESPRESSO_ROOT",
                                      "ESPRESSO_PLACE",      "ESPRESSO_HOSTS",    "ESPRESSO_SECRET"};
    const size_t n = strcspn(text, "=");
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strlen(own[i]) == n && strncmp(text, own[i], n) == 0) return true;
    return false;
}

/* Returns whether this variable is copied to other hosts even without --env. */
static bool run_is_forwarded(const char *text) {
    /* other values than "off" name a pipe of this machine */
    if (strncmp(text, "ESPRESSO_TOKENS=", 16) == 0) return !strcmp(text + 16, "off");
    return !run_is_own(text) && (strncmp(text, "ESPRESSO_", 9) == 0 || strncmp(text, "OMP_", 4) == 0);
}

/* Writes the path of the current directory. Prefers $PWD, since a path through links may be valid on all hosts. */
ESP__FN bool run_here(char *path, size_t cap) {
    const char *pwd = getenv("PWD");
    struct stat a, b;
    if (!pwd || *pwd != '/' || strlen(pwd) >= cap || stat(pwd, &a) != 0 || stat(".", &b) != 0 || a.st_dev != b.st_dev ||
        a.st_ino != b.st_ino)
        return getcwd(path, cap) != NULL;
    memcpy(path, pwd, strlen(pwd) + 1);
    return true;
}

/* Runs in the child process, and replaces its program by the remote shell. */
ESP__FN _Noreturn void run_become_shell(const run_plan *p, const run_host *h) {
    esp__text script = {0}, command = {0};
    esp__text_add(&script, "exec %s \"$@\"", p->rsh);
    esp__text_add(&command, "exec ");
    tool_quote(&command, p->espresso);
    esp__text_add(&command, " run --part ");
    tool_quote(&command, h->name);
    if (!script.failed && !command.failed)
        execl("/bin/sh", "sh", "-c", script.data, "rsh", h->name, command.data, (char *)NULL);
    _exit(127);
}

static void run_add_word(run_queue *q, const char *text) { run_queue_add(q, text, strlen(text) + 1); }

/* Writes the job for a host's `run --part`: a header, then texts that each end with a NUL. */
static void run_part_write(const run_job *j, const run_host *h, run_queue *q) {
    const run_plan *p = j->plan;
    char head[RUN_HEAD] = {0}, numbers[160];
    int argc = 0;
    while (p->argv[argc]) argc++;
    snprintf(numbers, sizeof numbers, "%d %d %d %d %d %d %d %d %d %d %d", p->n, h->first, h->ranks, (int)(h - p->hosts),
             p->n_hosts, p->racks, p->elastic, p->prefix, j->out->color, j->err->color, argc);
    run_queue_add(q, head, sizeof head);
    run_add_word(q, numbers);
    run_add_word(q, p->directory);
    run_add_word(q, p->root);
    run_add_word(q, p->secret);
    for (int i = 0; i < argc; i++) run_add_word(q, p->argv[i]);
    for (char **v = environ; *v; v++)
        if (run_is_forwarded(*v)) run_add_word(q, *v);
    for (int i = 0; i < p->n_env; i++) run_add_word(q, p->env[i]);
    snprintf(q->data, sizeof head, "%s %zu", ESPRESSO_VERSION, q->end - sizeof head);
}

/* Sends a host's `run --part` the job. Uses a pipe, since other users could read a command line. All of it must fit
 * into the pipe, since a write that waits for a slow remote shell would block the launcher. */
ESP__FN int run_part_send(run_job *j, int i) {
    const run_host *h = &j->plan->hosts[i];
    const int to = j->children[i].to;
    run_queue q = {0};
    run_part_write(j, h, &q);
    fcntl(to, F_SETPIPE_SZ, (int)q.end);
    fcntl(to, F_SETFL, O_NONBLOCK);
    const ssize_t sent = write(to, q.data, q.end);
    const bool whole = sent == (ssize_t)q.end || (sent < 0 && errno == EPIPE);
    free(q.data);
    if (whole) return TOOL_OK;
    return tool_fail(j->plan->command,
                     "host %s: the arguments and variables have %zu bytes, more than a pipe takes "
                     "(/proc/sys/fs/pipe-max-size)",
                     h->name, q.end);
}

ESP__FN void run_part_report(run_job *j, int number) {
    char text[64];
    run_sink_add(j->out, text, (size_t)snprintf(text, sizeof text, "%s%d\n", run_mark, number));
}

/* Handles a line from a host, in the launcher. Lines before `run --part` is ready may come from a login script. */
ESP__FN void run_host_line(run_job *j, run_stream *s) {
    run_child *c = &j->children[s->child];
    const size_t n = sizeof run_mark - 1, len = s->line.end;
    char *const line = s->line.data;
    const size_t before = c->ready || len < n + 2 ? 0 : len - (n + 2);
    const bool marked = len > n && !memcmp(line + before, run_mark, n), is_ready_line = marked && !c->ready;
    if (marked && before) line[before] = '\n';
    run_sink_add(c->ready ? s->sink : j->err, line, marked ? before + (before > 0) : len);
    if (is_ready_line) {
        c->ready = true;
        if (++j->ready == j->n) run_signal_all(j, RUN_GO);
    } else if (marked && !c->reported) {
        c->reported = c->failed = true;
        c->status = atoi(line + n);
        run_note_failed(j, s->child);
    }
}

/* Prints how a host failed, unless its `run --part` has already reported that a rank failed. */
ESP__FN void run_host_report(run_job *j, const run_child *c) {
    const run_host *h = &j->plan->hosts[c - j->children];
    char who[340], rsh[128];
    if (c->reported || (j->end_signal && (c->status == 128 + j->end_signal || !c->ready))) return;
    snprintf(who, sizeof who, h->ranks > 1 ? "host %s (ranks %d-%d)" : "host %s (rank %d)", h->name, h->first,
             h->first + h->ranks - 1);
    snprintf(rsh, sizeof rsh, "%.*s", (int)strcspn(j->plan->rsh, " "), j->plan->rsh);
    if (c->signal)
        run_print(j, "%s: '%s' was killed by signal %d (%s)", who, rsh, c->signal, strsignal(c->signal));
    else if (c->ready && c->status == 255)
        run_print(j, "%s: the connection ended ('%s' exited with status 255)", who, rsh);
    else if (c->ready)
        run_print(j, "%s ended with status %d", who, c->status);
    else if (c->status == 127)
        run_print(j, "%s: command not found: is espresso at '%s' there (--espresso PATH names another), and '%s' here?",
                  who, j->plan->espresso, rsh);
    else if (c->status == 255)
        run_print(j, "%s: '%s' cannot reach it or log in without asking (exit status 255), see above", who, rsh);
    else
        run_print(j, "%s: '%s' ended before the ranks could start, see above; is '%s' there this version of espresso?",
                  who, rsh, j->plan->espresso);
}

static bool run_read_all(char *to, size_t bytes) {
    for (ssize_t n; bytes; to += n, bytes -= (size_t)n)
        if ((n = read(0, to, bytes)) <= 0) return false;
    return true;
}

/* Reads what follows the header. Returns NULL after it has printed an error. */
static char *run_part_text(const tool_command *c, size_t *bytes) {
    char head[RUN_HEAD], version[RUN_HEAD], *text = NULL;
    if (!run_read_all(head, sizeof head) || head[sizeof head - 1] || sscanf(head, "%31s %zu", version, bytes) != 2)
        tool_fail(c, "--part is what espresso run --hosts starts on a host: use --hosts");
    else if (strcmp(version, ESPRESSO_VERSION))
        tool_fail(c,
                  "this is version %s, and the launcher is version %s: install one version everywhere, or name another "
                  "file with --espresso PATH",
                  ESPRESSO_VERSION, version);
    else if (text = tool_realloc(NULL, *bytes + 1), !run_read_all(text, *bytes))
        tool_fail(c, "the connection ended before the launcher had sent the job"), free(text), text = NULL;
    if (text) text[*bytes] = 0;
    return text;
}

static char *run_next_word(char **at, const char *end) {
    char *word = *at;
    *at = word < end ? word + strlen(word) + 1 : word;
    return word;
}

/* Fills an empty plan with what run_part_write() has written, and sets the environment variables in it. */
static int run_part_read(run_plan *p, char *at, const char *end) {
    int machine, elastic, prefix, out, err, argc;
    const char *numbers = run_next_word(&at, end);
    if (sscanf(numbers, "%d %d %d %d %d %d %d %d %d %d %d", &p->n, &p->first, &p->here, &machine, &p->machines,
               &p->racks, &elastic, &prefix, &out, &err, &argc) != 11)
        return tool_fail(p->command, "what the launcher sent makes no sense: '%s'", numbers);
    p->elastic = elastic, p->prefix = prefix, p->color[0] = out, p->color[1] = err;
    p->machine_of = tool_realloc(NULL, (size_t)p->here * sizeof(int));
    p->local_of = tool_realloc(NULL, (size_t)p->here * sizeof(int));
    for (int i = 0; i < p->here; i++) {
        p->machine_of[i] = machine;
        p->local_of[i] = i;
    }
    const char *directory = run_next_word(&at, end);
    snprintf(p->root, sizeof p->root, "%s", run_next_word(&at, end));
    snprintf(p->secret, sizeof p->secret, "%s", run_next_word(&at, end));
    p->argv = tool_realloc(NULL, ((size_t)argc + 1) * sizeof *p->argv);
    for (int i = 0; i < argc; i++) p->argv[i] = run_next_word(&at, end);
    p->argv[argc] = NULL;
    while (at < end) putenv(run_next_word(&at, end));
    if (chdir(directory) != 0)
        return tool_fail(
            p->command,
            "cannot enter '%s' here: %s. Ranks run in the directory of the same name on every host: create "
            "it, or start the job in a directory that all hosts have",
            directory, strerror(errno));
    setenv("PWD", directory, 1);
    return run_find_program(p);
}

ESP__FN int run_part_main(const tool_command *self, const char *host) {
    char name[300], go;
    tool_command named = *self;
    run_plan p = {.command = &named, .part = name};
    size_t bytes;
    snprintf(name, sizeof name, "run on %s", host);
    named.name = name;
    /* not freed, since putenv() keeps pointers to it */
    char *text = run_part_text(&named, &bytes);
    int status = text ? run_part_read(&p, text, text + bytes) : TOOL_FAILED;
    if (status == TOOL_OK) {
        printf("%s0\n", run_mark);
        status = fflush(stdout) == 0 && run_read_all(&go, 1) && go == RUN_GO ? run_job_run(&p) : TOOL_FAILED;
    }
    free(p.argv);
    free(p.machine_of);
    free(p.local_of);
    return status == 255 ? TOOL_FAILED : status;
}
