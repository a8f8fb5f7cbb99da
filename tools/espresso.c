/* espresso.c: the command `espresso`. Its subcommands use internal functions of the library, so that they show exactly
 * what the library does. */
#include "espresso_impl/base/text.h"
#include "tools/advise/advise.h"
#include "tools/common/manual.h"
#include "tools/inspect/inspect.h"
#include "tools/plan/plan.h"
#include "tools/profile/profile.h"
#include "tools/replay/replay.h"
#include "tools/run/run.h"
#include "tools/top/top.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static int help_main(const tool_command *self, int argc, char **argv);

enum { HELP_MAN, HELP_COMPLETION };
static const tool_flag help_flags[] = {
    [HELP_MAN] = {"--man", NULL, "as a manual page, espresso(1) or that of the subcommand"},
    [HELP_COMPLETION] = {"--completion", NULL, "a script for bash that completes subcommands and flags"},
};
static const tool_command help_command = {
    .name = "help",
    .summary = "Explains a subcommand.",
    .synopsis = "[--man] [SUBCOMMAND] | --completion",
    TOOL_FLAGS(help_flags),
    .run = help_main,
};

static const tool_command *const espresso_commands[] = {
    &run_command, &profile_command, &plan_command,    &compare_command,  &replay_command, &advise_command,
    &top_command, &tree_command,    &plugins_command, &strategy_command, &state_command,  &help_command,
};
enum { ESPRESSO_COMMANDS = sizeof espresso_commands / sizeof *espresso_commands };

static const tool_command *espresso_find(const char *name) {
    unsigned best = 3;
    const char *guess = NULL;
    for (int i = 0; i < ESPRESSO_COMMANDS; i++) {
        if (strcmp(name, espresso_commands[i]->name) == 0) return espresso_commands[i];
        if (esp__suggests(name, espresso_commands[i]->name, &best)) guess = espresso_commands[i]->name;
    }
    fprintf(stderr, "espresso: no subcommand '%s'%s\nSee 'espresso help'.\n", name, tool_meant(guess));
    exit(TOOL_USAGE);
}

static void espresso_overview(FILE *to) {
    fputs("usage: espresso SUBCOMMAND [flags]\n\n", to);
    for (int i = 0; i < ESPRESSO_COMMANDS; i++)
        fprintf(to, "  %-10s %s\n", espresso_commands[i]->name, espresso_commands[i]->summary);
    fputs("\n'espresso help SUBCOMMAND' explains one. Exit status: 0 done, 1 failed, 2 wrong usage.\n", to);
}

static int help_main(const tool_command *self, int argc, char **argv) {
    const char *value;
    bool man = false;
    int at = 0, flag;
    while ((flag = tool_next(self, argc, argv, &at, &value)) >= 0) {
        man |= flag == HELP_MAN;
        if (flag == HELP_COMPLETION) return manual_completion(espresso_commands, ESPRESSO_COMMANDS), TOOL_OK;
    }
    if (at + 1 < argc) tool_usage(self, "'%s': takes one subcommand", argv[at + 1]);
    const tool_command *c = at < argc ? espresso_find(argv[at]) : NULL;
    if (man && c)
        manual_page(c);
    else if (man)
        manual_overview(espresso_commands, ESPRESSO_COMMANDS);
    else if (c)
        tool_help(c);
    else
        espresso_overview(stdout);
    return TOOL_OK;
}

/* Opens file descriptors 0 to 2 if they are closed, since a file opened later could get one, and receive errors. */
static void espresso_open_standard_streams(void) {
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
}

/* Runs at exit: a subcommand whose output was lost ends with an error. */
static void espresso_close_output(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return;
    fprintf(stderr, "espresso: standard output cannot be written: %s\n", strerror(errno));
    _exit(TOOL_FAILED);
}

int main(int argc, char **argv) {
    espresso_open_standard_streams();
    atexit(espresso_close_output);
    if (argc < 2) {
        espresso_overview(stderr);
        return TOOL_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0) name = "help";
    if (strcmp(name, "--version") == 0) {
        printf("espresso %s, plugin ABI %u.%u\n", ESPRESSO_VERSION, ESP_ABI_MAJOR, ESP_ABI_MINOR);
        return TOOL_OK;
    }
    const tool_command *c = espresso_find(name);
    return c->run(c, argc - 2, argv + 2);
}
