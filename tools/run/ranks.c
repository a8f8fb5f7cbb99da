/* ranks.c: starts this command again as the ranks of a job, for subcommands that measure. */
#include "tools/run/ranks.h"
#include "tools/run/run.h"

ESP__FN void ranks_check(const tool_command *self, long n, long machines, const char *inter) {
    const char *launcher = getenv("ESPRESSO_LAUNCHER");
    if (launcher && !strcmp(launcher, "espresso-run")) /* otherwise each rank would start ranks of its own */
        tool_usage(self, "this runs as a rank of a job already, and starts ranks of its own: start it by itself");
    if (n % machines) tool_usage(self, "%ld ranks do not divide by %ld machines", n, machines);
    if (inter && machines == 1) tool_usage(self, "--inter has no effect with one machine: add --machines");
    if (inter) run_link(self, "--inter", inter);
}

ESP__FN int tool_ranks(const tool_command *self, long n, long machines, const char *inter, const char *const more[2],
                       char *const argv[]) {
    run_plan p = {.command = self, .inter = inter, .path = "/proc/self/exe"};
    size_t n_argv = 0;
    sigset_t mask;
    ranks_check(self, n, machines, inter);
    while (argv[n_argv]) n_argv++;
    const char **words = tool_realloc(NULL, (n_argv + 5) * sizeof *words);
    words[0] = "espresso";
    words[1] = self->name;
    memcpy(words + 2, more, 2 * sizeof *words);
    memcpy(words + 4, argv, (n_argv + 1) * sizeof *words);
    p.argv = (char **)(uintptr_t)words;
    sigprocmask(SIG_BLOCK, NULL, &mask); /* run_job_run() changes the signal mask, which is restored below */
    fflush(NULL);
    run_place(&p, NULL, n, machines);
    int status = run_make_root(&p);
    if (status == TOOL_OK) status = run_job_run(&p);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    free(p.argv);
    free(p.machine_of);
    free(p.local_of);
    /* a larger status is that of a killed rank, which was reported */
    return status > TOOL_USAGE ? TOOL_FAILED : status;
}
