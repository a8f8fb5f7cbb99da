/* ranks.h: runs this command again as the ranks of a job, with the code of `espresso run`, for subcommands that measure. */
#ifndef ESPRESSO_TOOLS_RANKS_H
#define ESPRESSO_TOOLS_RANKS_H
#include "tools/common/args.h"

/* Refuses what `espresso run` would refuse, with the subcommand's name in the error. */
ESP__FN void ranks_check(const tool_command *self, long n, long machines, const char *inter);
/* The ranks get the subcommand's name, a flag with its value (`more`) and the words of argv, which ends with NULL. inter NULL: no link is
 * emulated. The ranks' output is forwarded unchanged. Returns the exit status. */
ESP__FN int tool_ranks(const tool_command *self, long n, long machines, const char *inter, const char *const more[2],
                       char *const argv[]);
#endif
