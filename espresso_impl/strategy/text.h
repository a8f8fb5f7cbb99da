/* text.h: the only reader and printer of a strategy's text; docs/design/design.md describes the format. The reader
 * passes lines to callbacks, since planner and library have different structs. */
#ifndef ESP__STRATEGY_TEXT_H
#define ESP__STRATEGY_TEXT_H
#include "espresso_impl/strategy/option.h"

#define ESP__STRATEGY_MAGIC "espresso-strategy 1"

/* Limits of the format. A line may have any length. */
enum {
    ESP__UNITS_MAX = 1 << 24, /* tensors or units, as order[] has 24 bits for them */
    ESP__TENSOR_NAME_MAX = 1000
};
#define ESP__ELEMENTS_MAX ((uint64_t)1 << 58) /* in all tensors */

/* ---- order entries: entries.c ---- */
/* Kinds of order entries. STEP is a step of a unit's option. DOWN copies to the host before a Comp or Decomp, UP back
 * after it. PACK copies a group's gradients together, UNPACK back. BACKWARD computes the next tensor's gradient. */
enum { ESP__ENTRY_STEP, ESP__ENTRY_DOWN, ESP__ENTRY_UP, ESP__ENTRY_PACK, ESP__ENTRY_UNPACK, ESP__ENTRY_BACKWARD };
typedef struct esp__order_entry {
    uint32_t unit;
    uint8_t what, step;
} esp__order_entry;
enum { ESP__ENTRY_MAX = 24 }; /* bytes of an entry's word, with the NUL */

/* Reads "b", "UNIT:STEP", "UNIT:STEPd", "UNIT:STEPu", "UNIT:p" or "UNIT:u". Returns false if it is none of them. */
ESP__FN bool esp__order_entry_read(const char *word, uint32_t n_units, esp__order_entry *e);
/* Writes the entry's word into `buf`, and returns `buf`. */
ESP__FN const char *esp__order_entry_word(const esp__order_entry *e, char buf[ESP__ENTRY_MAX]);
/* Fails with an error text that names the word, which is no entry. */
ESP__FN esp_status esp__order_entry_fail(const esp_ctx *ctx, const char *where, const char *word);

/* The units of the strategy whose order is checked. */
typedef struct esp__order_units {
    const void *user;
    uint32_t n_units, n_tensors;
    const esp__option *(*option)(const void *user, uint32_t unit, int *group);
    const char *(*name)(const void *user, uint32_t unit);
    /* number of rounds of the unit's codec; NULL if all codecs have one */
    uint32_t (*rounds)(const void *user, uint32_t unit);
    uint32_t *at; /* [n_units] memory that the check uses */
} esp__order_units;
/* Does the entry's unit have an op like this? */
ESP__FN bool esp__order_entry_fits(const esp__order_entry *e, const esp__order_units *units);
/* Checks an order whose entries all fit. It must have every collective once for each round, a unit's other entries
 * at most once, all in the sequence of the unit's option, and "b" for every tensor or for none. `name` begins error
 * texts. */
ESP__FN esp_status esp__order_check(const esp_ctx *ctx, const char *name, const esp__order_entry *entries, uint32_t n,
                                    const esp__order_units *units);

/* ---- lines: text.c ---- */
/* A model's tensors in the order of backward propagation. */
typedef struct esp__text_tensors {
    const void *user;
    uint32_t n;
    const char *(*name)(const void *user, uint32_t i, uint64_t *elements);
} esp__text_tensors;

/* A unit as in a line of the text. */
typedef struct esp__unit_line {
    uint32_t first, n;        /* its first tensor, and the number of tensors */
    uint64_t begin, elements; /* begin: a chunk's first element in its tensor */
    uint32_t chunk, n_chunks; /* 0 and 1 if the unit is no chunk */
    const char *codec, *option;
} esp__unit_line;

/* Callbacks for a text's lines, in the order of the lines. Each may be NULL. An error ends the reading. `where` is
 * "FILE:LINE", for error texts. The other strings point into the text. */
typedef struct esp__strategy_lines {
    void *user;
    esp_status (*tensor)(void *user, const char *where, const char *name, uint64_t elements);
    esp_status (*unit)(void *user, const char *where, const esp__unit_line *u);
    esp_status (*entry)(void *user, const char *where, const esp__order_entry *e);
} esp__strategy_lines;

/* Reads a text, and ends its words by NULs in place. Fails if its tensors are not `tensors`, unless that is NULL. */
ESP__FN esp_status esp__strategy_read(const esp_ctx *ctx, const char *name, char *text,
                                      const esp__text_tensors *tensors, const esp__strategy_lines *to);

/* Prints the first line, and then `comments`, which is "" or lines that begin with '#'. */
ESP__FN void esp__strategy_put_head(esp__text *t, const char *comments);
/* Prints a unit's line or lines. Call it for all units in their order. */
ESP__FN void esp__strategy_put_unit(esp__text *t, const esp__text_tensors *tensors, const esp__unit_line *u);
/* Prints entry i of n. Call it for all entries in their order. */
ESP__FN void esp__strategy_put_entry(esp__text *t, uint32_t i, uint32_t n, const esp__order_entry *e);
#endif
