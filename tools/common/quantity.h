/* quantity.h: numbers with units: how they are read from the command line, and printed. */
#ifndef ESPRESSO_TOOLS_QUANTITY_H
#define ESPRESSO_TOOLS_QUANTITY_H

typedef struct tool_unit {
    const char *name;
    double factor;
} tool_unit;

/* Reads a finite number above 0 with one of these units. Returns 0 when `text` is something else. */
static int tool_quantity(const char *text, const tool_unit *units, double *out);
/* Texts that are valid until the eighth call after this one: enough for the arguments of one printf. */
static const char *tool_time(double ns); /* with four digits and a unit chosen by its size */
static const char *tool_bytes(double bytes);
static const char *tool_count(double n);
#endif
