/* manual.h: manual pages and shell completion, from the table of subcommands that `espresso help` reads. */
#ifndef ESPRESSO_TOOLS_MANUAL_H
#define ESPRESSO_TOOLS_MANUAL_H
#include "tools/common/args.h"

/* Prints the manual page espresso-NAME(1) of a subcommand. */
ESP__FN void manual_page(const tool_command *c);
/* Prints the manual page espresso(1), which lists the `n` subcommands. */
ESP__FN void manual_overview(const tool_command *const *commands, int n);
/* Prints a script for bash that completes subcommands and flags. */
ESP__FN void manual_completion(const tool_command *const *commands, int n);
#endif
