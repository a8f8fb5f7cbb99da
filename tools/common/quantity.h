/* quantity.h: numbers with units: how they are read from the command line, and printed. */
#ifndef ESPRESSO_TOOLS_QUANTITY_H
#define ESPRESSO_TOOLS_QUANTITY_H
#include "espresso_impl/base/private.h"

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
/* in bytes a microsecond, the planner's unit */
static const tool_unit tool_bandwidths[] = {{"mbit", 0.125}, {"gbit", 125},  {"tbit", 125000},
                                            {"MB/s", 1},     {"GB/s", 1000}, {NULL, 0}};

/* Reads a finite number above 0 with one of these units. Returns 0 when `text` is something else. */
ESP__FN int tool_quantity(const char *text, const tool_unit *units, double *out);
/* Texts that are valid until the eighth call after this one: enough for the arguments of one printf. */
ESP__FN const char *tool_time(double ns); /* with four digits and a unit chosen by its size */
ESP__FN const char *tool_bytes(double bytes);
ESP__FN const char *tool_count(double n);
/* quantity.c */
ESP__FN int tool_factor(const char *text, double *out);
ESP__FN char *tool_scratch(void);
#endif
