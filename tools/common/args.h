/* args.h: a subcommand's description, the parser of its command line, and its error messages. */
#ifndef ESPRESSO_TOOLS_ARGS_H
#define ESPRESSO_TOOLS_ARGS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "espresso_impl/base/private.h"
#include "espresso_impl/base/text.h"
#include <stdbool.h>

/* One flag of a subcommand. `value` NULL: the flag takes no value. */
typedef struct tool_flag {
    const char *name, *value, *help;
} tool_flag;

typedef struct tool_command {
    const char *name, *summary, *synopsis, *details;
    const tool_flag *flags;
    size_t n_flags;
    /* flags shared with other subcommands: shown first, numbered from 0, before `flags` */
    const tool_flag *common;
    size_t n_common;
    int (*run)(const struct tool_command *self, int argc, char **argv);
} tool_command;

#define TOOL_FLAGS(list) .flags = list, .n_flags = sizeof(list) / sizeof *(list)

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* Prints an error of the command line, and ends the command. */
ESP__FN _Noreturn void tool_usage(const tool_command *c, const char *fmt, ...) ESP__PRINTF(2, 3);
/* Prints why the command failed. Returns the exit status. */
ESP__FN int tool_fail(const tool_command *c, const char *fmt, ...) ESP__PRINTF(2, 3);
/* Like realloc(), but ends the command with an error if there is no memory. */
ESP__FN void *tool_realloc(void *p, size_t bytes);
/* The same, zeroed. */
ESP__FN void *tool_zeroed(size_t bytes);
/* Reads a whole number from low to high. Returns false if `text` is something else. */
ESP__FN bool tool_number(const char *text, long low, long high, long *out);
/* Reads a whole number from low to high from a flag's value. Ends the command if it is something else. */
ESP__FN long tool_whole(const tool_command *c, const char *flag, const char *value, long low, long high);
/* Reads one of `names` at the start of a list "a,b", and moves *at past it and its comma. Returns its index, or -1. */
ESP__FN int tool_listed(const char **at, const char *const *names);
/* Returns ": did you mean 'GUESS'?", valid until the next call, or "" for NULL. */
ESP__FN const char *tool_meant(const char *guess);
/* Adds `word` to a text, quoted for a shell. */
ESP__FN void tool_quote(esp__text *t, const char *word);
/* Reads the flag in argv[*at]. Returns the flag's index and sets *value. Returns -1 if the word is not a flag, and
 * skips a "--". Ends the command after an error, and at -h and --help. */
ESP__FN int tool_next(const tool_command *c, int argc, char **argv, int *at, const char **value);
/* Reads all flags of a command that takes no other arguments. */
typedef void tool_take(void *job, int flag, const char *value);
ESP__FN void tool_flags_only(const tool_command *c, int argc, char **argv, tool_take *take, void *job);
ESP__FN void tool_help(const tool_command *c);
#endif
