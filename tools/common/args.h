/* args.h: what a subcommand is: its name, its flags and its help; how its words are read and its errors printed. */
#ifndef ESPRESSO_TOOLS_ARGS_H
#define ESPRESSO_TOOLS_ARGS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "espresso_impl/base/private.h"
#include "espresso_impl/base/text.h"

/* One flag of a subcommand. `value` NULL: the flag takes no value. */
typedef struct tool_flag {
    const char *name, *value, *help;
} tool_flag;

typedef struct tool_command {
    const char *name, *summary, *synopsis, *details;
    const tool_flag *flags;
    size_t n_flags;
    const tool_flag *common; /* flags shared with other subcommands: shown first, numbered from 0, before `flags` */
    size_t n_common;
    int (*run)(const struct tool_command *self, int argc, char **argv);
} tool_command;

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* Says what is wrong with the command line, and ends the command. */
ESP__FN _Noreturn void tool_usage(const tool_command *c, const char *fmt, ...) ESP__PRINTF(2, 3);
/* Says why the work failed. Returns the exit status. */
ESP__FN int tool_fail(const tool_command *c, const char *fmt, ...) ESP__PRINTF(2, 3);
/* Returns memory, or ends the command with an error when memory is short. */
ESP__FN void *tool_realloc(void *p, size_t bytes);
/* The same, zeroed. */
ESP__FN void *tool_zeroed(size_t bytes);
/* Reads a whole number inside [low, high]. Returns 0 when `text` is something else. */
ESP__FN int tool_number(const char *text, long low, long high, long *out);
/* The same for a flag's value; tool_usage when it is something else. */
ESP__FN long tool_whole(const tool_command *c, const char *flag, const char *value, long low, long high);
/* Reads one of `names` at the begin of a list "a,b". Returns its index, or -1. *at moves past it and its comma. */
ESP__FN int tool_listed(const char **at, const char *const *names);
/* ": did you mean 'GUESS'?", until the next call; "" for NULL. */
ESP__FN const char *tool_meant(const char *guess);
/* Adds 'word' as one word for a shell. */
ESP__FN void tool_quote(esp__text *t, const char *word);
/* Reads the next flag. Returns the flag's index with *value set, or -1 at the first word that is no flag (*at is its index, after a
 * "--"). Ends the command after an error, and at -h and --help. */
ESP__FN int tool_next(const tool_command *c, int argc, char **argv, int *at, const char **value);
/* Reads all flags of a command that takes nothing else. */
typedef void tool_take(void *job, int flag, const char *value);
ESP__FN void tool_flags_only(const tool_command *c, int argc, char **argv, tool_take *take, void *job);
ESP__FN void tool_help(const tool_command *c);
#endif
