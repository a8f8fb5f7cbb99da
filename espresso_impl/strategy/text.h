/* text.h: the only reader and printer of a strategy's text, whose format docs/design/design.md describes. The reader
 * passes each line to callbacks, since planner and library have different structures. */
#ifndef ESP__STRATEGY_TEXT_H
#define ESP__STRATEGY_TEXT_H
#include "espresso_impl/strategy/option.h"

#define ESP__STRATEGY_MAGIC "espresso-strategy 1"

/* Limits of the format. A line may have any length. */
enum {
    ESP__UNITS_MAX = 1 << 24, /* tensors or units: order[] has 24 bits for them */
    ESP__TENSOR_NAME_MAX = 1000
};
#define ESP__ELEMENTS_MAX ((uint64_t)1 << 58) /* of all tensors */

/* ---- order entries: entries.c ---- */
/* Kinds of order entries: a step of a unit's option; the copies to the host (down) and back (up) around its Comp or
 * Decomp; a group's pack and unpack; the backward of the next tensor. */
enum { ESP__ENTRY_STEP, ESP__ENTRY_DOWN, ESP__ENTRY_UP, ESP__ENTRY_PACK, ESP__ENTRY_UNPACK, ESP__ENTRY_BACKWARD };
typedef struct esp__order_entry {
    uint32_t unit;
    uint8_t what, step;
} esp__order_entry;
enum { ESP__ENTRY_MAX = 24 }; /* bytes of its word, with the NUL */

/* Reads "b", "UNIT:STEP", "UNIT:STEPd", "UNIT:STEPu", "UNIT:p" or "UNIT:u" with UNIT < n_units; else false. */
ESP__FN bool esp__order_entry_read(const char *word, uint32_t n_units, esp__order_entry *e);
/* Writes the word of an entry into `buf`, and returns it. */
ESP__FN const char *esp__order_entry_word(const esp__order_entry *e, char buf[ESP__ENTRY_MAX]);
/* The error for a word that is no entry. */
ESP__FN esp_status esp__order_entry_fail(const esp_ctx *ctx, const char *where, const char *word);

/* The sync units that an order is checked against. */
typedef struct esp__order_units {
    const void *user;
    uint32_t n_units, n_tensors;
    const esp__option *(*option)(const void *user, uint32_t unit, int *group);
    const char *(*name)(const void *user, uint32_t unit);
    /* the number of rounds of the unit's codec; NULL if every codec has one */
    uint32_t (*rounds)(const void *user, uint32_t unit);
    uint32_t *at; /* [n_units] memory for the check */
} esp__order_units;
/* Does the entry's unit have such an op? */
ESP__FN bool esp__order_entry_fits(const esp__order_entry *e, const esp__order_units *units);
/* Checks an order whose entries all fit. It must have every collective once in each of its rounds, a unit's other
 * entries at most once, all in the sequence of the unit's option, and "b" for each tensor or none. Messages begin with
 * `name`. */
ESP__FN esp_status esp__order_check(const esp_ctx *ctx, const char *name, const esp__order_entry *entries, uint32_t n,
                                    const esp__order_units *units);

/* ---- lines: text.c ---- */
/* A model's tensors in backward order. */
typedef struct esp__text_tensors {
    const void *user;
    uint32_t n;
    const char *(*name)(const void *user, uint32_t i, uint64_t *elements);
} esp__text_tensors;

/* A sync unit as a line of a strategy's text: its extent, codec and option. */
typedef struct esp__unit_line {
    uint32_t first, n;        /* tensors */
    uint64_t begin, elements; /* begin: of a chunk in its tensor */
    uint32_t chunk, n_chunks; /* 0 and 1 unless it is a chunk */
    const char *codec, *option;
} esp__unit_line;

/* Callbacks for a text's lines, in their order. Each is optional; a status other than ESP_OK ends the reading. `where`
 * is "FILE:LINE", for messages. The other strings are parts of the text. */
typedef struct esp__strategy_lines {
    void *user;
    esp_status (*tensor)(void *user, const char *where, const char *name, uint64_t elements);
    esp_status (*unit)(void *user, const char *where, const esp__unit_line *u);
    esp_status (*entry)(void *user, const char *where, const esp__order_entry *e);
} esp__strategy_lines;

/* Reads a text, which it cuts into words in place. Its tensors must be `tensors`, unless NULL. ctx may be NULL. */
ESP__FN esp_status esp__strategy_read(const esp_ctx *ctx, const char *name, char *text,
                                      const esp__text_tensors *tensors, const esp__strategy_lines *to);

/* Prints the first line, then `comments`: lines that begin with '#', or "". */
ESP__FN void esp__strategy_put_head(esp__text *t, const char *comments);
/* Prints the line or lines of a unit. Call it for all units in their order. */
ESP__FN void esp__strategy_put_unit(esp__text *t, const esp__text_tensors *tensors, const esp__unit_line *u);
/* Prints entry i of n; call it for all entries in their order. */
ESP__FN void esp__strategy_put_entry(esp__text *t, uint32_t i, uint32_t n, const esp__order_entry *e);
#endif
