/* args.h: describes a subcommand and its flags, reads its command line, and prints its errors. */
#ifndef ESPRESSO_TOOLS_ARGS_H
#define ESPRESSO_TOOLS_ARGS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "espresso_impl/base/private.h"
#include "espresso_impl/base/text.h"
#include <stdbool.h>

/* A flag of a subcommand. If `value` is NULL, the flag takes no value. */
typedef struct tool_flag {
    const char *name, *value, *help;
} tool_flag;

typedef struct tool_command {
    const char *name, *summary, *synopsis, *details;
    const tool_flag *flags;
    size_t n_flags;
    const tool_flag *common;
    size_t n_common;
    int (*run)(const struct tool_command *self, int argc, char **argv);
} tool_command;

#define TOOL_FLAGS(list) .flags = list, .n_flags = sizeof(list) / sizeof *(list)

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* Prints an error of the command line and how to use the command. Ends the command. */
ESP__FN _Noreturn void tool_usage(const tool_command *c, const char *fmt, ...) ESP__PRINTF(2, 3);
/* Prints why the command failed. Returns the exit status. */
ESP__FN int tool_fail(const tool_command *c, const char *fmt, ...) ESP__PRINTF(2, 3);
/* Like realloc(), but ends the command with an error if memory runs out. */
ESP__FN void *tool_realloc(void *p, size_t bytes);
ESP__FN void *tool_zeroed(size_t bytes);
/* Reads a whole number from `low` to `high`. Returns false if `text` is anything else. */
ESP__FN bool tool_number(const char *text, long low, long high, long *out);
/* Reads a whole number from `low` to `high`, the value of a flag. Ends the command if it is anything else. */
ESP__FN long tool_whole(const tool_command *c, const char *flag, const char *value, long low, long high);
/* Reads the first word of "a,b,c" at *at, and moves *at after its comma. Returns its index in `names`, or -1. */
ESP__FN int tool_listed(const char **at, const char *const *names);
/* Returns ": did you mean 'GUESS'?", which is valid until the next call, or "" if `guess` is NULL. */
ESP__FN const char *tool_meant(const char *guess);
ESP__FN void tool_quote(esp__text *t, const char *word);
/* Reads the flag in argv[*at], and sets *value to its value. Returns the flag's index, or -1 if there is no more flag.
 * Ends the command after an error, and for -h and --help. */
ESP__FN int tool_next(const tool_command *c, int argc, char **argv, int *at, const char **value);
typedef void tool_take(void *job, int flag, const char *value);
ESP__FN void tool_flags_only(const tool_command *c, int argc, char **argv, tool_take *take, void *job);
ESP__FN void tool_help(const tool_command *c);
/* The number of a subcommand's flags, and flag `i` of them. */
ESP__FN size_t tool_flags(const tool_command *c);
ESP__FN const tool_flag *tool_flag_at(const tool_command *c, size_t i);
#endif
