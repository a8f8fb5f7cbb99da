/* quantity.h: reads numbers with units from the command line, and prints them. */
#ifndef ESPRESSO_TOOLS_QUANTITY_H
#define ESPRESSO_TOOLS_QUANTITY_H
#include "espresso_impl/base/private.h"
#include <stdbool.h>

typedef struct tool_unit {
    const char *name;
    double factor;
} tool_unit;
static const tool_unit tool_times[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
static const tool_unit tool_sizes[] = {
    {"", 1},      {"B", 1},      {"KB", 1e3},      {"MB", 1e6},           {"GB", 1e9},
    {"TB", 1e12}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824.0}, {"K", 1e3},
    {"M", 1e6},   {"G", 1e9},    {NULL, 0}};
static const tool_unit tool_parts[] = {{"", 1}, {"%", 0.01}, {NULL, 0}};
/* factors to bytes per microsecond, the planner's unit */
static const tool_unit tool_bandwidths[] = {{"mbit", 0.125}, {"gbit", 125},  {"tbit", 125000},
                                            {"MB/s", 1},     {"GB/s", 1000}, {NULL, 0}};

/* Reads a finite number above 0 with one of these units. Returns false if `text` is anything else. */
ESP__FN bool tool_quantity(const char *text, const tool_unit *units, double *out);
/* Reads a factor such as "2x" or "0.5x". Returns false if `text` is anything else. */
ESP__FN bool tool_factor(const char *text, double *out);
/* Returns one of eight buffers of 32 bytes, in turn. One call of printf can thus print several texts. */
ESP__FN char *tool_scratch(void);
/* These return a number as text, such as "12.34 ms", in a buffer of tool_scratch(). */
ESP__FN const char *tool_time(double ns);
ESP__FN const char *tool_bytes(double bytes);
ESP__FN const char *tool_count(double n);
#endif
