/* ranks.h: starts this command again as the ranks of a job, as `espresso run` would, for subcommands that measure. */
#ifndef ESPRESSO_TOOLS_RANKS_H
#define ESPRESSO_TOOLS_RANKS_H
#include "tools/common/args.h"

/* Ends the command if the numbers or the link are invalid. `inter` is the link between emulated machines, or NULL. */
ESP__FN void ranks_check(const tool_command *self, long n, long machines, const char *inter);
/* Starts the ranks as `espresso NAME more[0] more[1] argv...`. NAME is that of `self`, and argv ends with NULL.
 * Forwards their output unchanged. Returns the exit status. */
ESP__FN int tool_ranks(const tool_command *self, long n, long machines, const char *inter, const char *const more[2],
                       char *const argv[]);
#endif
