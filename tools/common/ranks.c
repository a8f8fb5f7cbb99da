/* ranks.c: the ranks of subcommands that measure. Must not know what the ranks do. */
#include "tools/common/ranks.h"
#include "tools/run/run.h"

ESP__FN int ranks_check(const tool_command *self, long n, long machines, const char *inter) {
    const char *launcher = getenv("ESPRESSO_LAUNCHER");
    if (launcher && !strcmp(launcher, "espresso-run")) /* or ranks would start ranks without end */
        return tool_fail(self, "this runs as a rank of a job already, and starts ranks of its own: start it by itself");
    if (n < 1 || n > RUN_RANKS_MAX)
        return tool_usage(self, "-n %ld: write a number of ranks from 1 to %d", n, RUN_RANKS_MAX);
    if (machines < 1) return tool_usage(self, "--machines %ld: write a number of machines, 1 or more", machines);
    if (n % machines) return tool_usage(self, "%ld ranks do not divide by %ld machines", n, machines);
    if (inter && machines == 1) return tool_usage(self, "--inter has no effect with one machine: add --machines");
    return inter ? run_check_link(self, "--inter", inter) : TOOL_OK;
}

ESP__FN int tool_ranks(const tool_command *self, long n, long machines, const char *inter, char *const argv[]) {
    run_plan p = {.command = self, .inter = inter, .path = "/proc/self/exe"};
    size_t n_argv = 0;
    sigset_t mask;
    int status = ranks_check(self, n, machines, inter);
    if (status != TOOL_OK) return status;
    while (argv[n_argv]) n_argv++;
    p.argv = tool_realloc(NULL, (n_argv + 2) * sizeof *p.argv);
    p.argv[0] = (char[]){"espresso"};
    memcpy(p.argv + 1, argv, (n_argv + 1) * sizeof *p.argv);
    sigprocmask(SIG_BLOCK, NULL, &mask); /* a job changes the signal mask; another job may follow in this process */
    fflush(NULL);
    status = run_place(&p, NULL, n, machines);
    if (status == TOOL_OK && (status = run_make_root(&p)) == TOOL_OK) status = run_job_run(&p);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    free(p.argv);
    free(p.machine_of);
    free(p.local_of);
    return status;
}
