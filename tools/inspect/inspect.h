/* inspect.h: the subcommands that show options, plugins, strategy files and state files. */
#ifndef ESPRESSO_TOOLS_INSPECT_H
#define ESPRESSO_TOOLS_INSPECT_H
#include "tools/common/args.h"

extern const tool_command tree_command, plugins_command, strategy_command, state_command;
#endif
