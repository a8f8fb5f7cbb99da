/* text.h: the text of a strategy: one reader, which hands its lines over as plain values, and one printer. Must not know what
 * options and codecs mean, nor who asks. docs/design.md has the format. */
#ifndef ESP__STRATEGY_TEXT_H
#define ESP__STRATEGY_TEXT_H
#include "espresso_impl/strategy/option.h"

#define ESP__STRATEGY_MAGIC "espresso-strategy 1"

/* Limits of the format. A line may have any length. */
enum {
    ESP__UNITS_MAX = 1 << 24, /* tensors, and sync units: an order entry has room for as many */
    ESP__TENSOR_NAME_MAX = 1000
};
#define ESP__ELEMENTS_MAX ((uint64_t)1 << 58) /* of all tensors */

/* ---- order entries: entries.c -------------------------------------------------------------------------------------- */
/* A step of a sync unit's option; the copies to and from the host of its Comp or Decomp; a group's pack and unpack; the
 * backward of the next tensor. */
enum { ESP__ENTRY_STEP, ESP__ENTRY_DOWN, ESP__ENTRY_UP, ESP__ENTRY_PACK, ESP__ENTRY_UNPACK, ESP__ENTRY_BACKWARD };
typedef struct esp__order_entry {
    uint32_t unit;
    uint8_t what, step;
    uint16_t reserved0;
} esp__order_entry;
enum { ESP__ENTRY_MAX = 24 }; /* of its word */

/* "b", "UNIT:STEP", "UNIT:STEPd", "UNIT:STEPu", "UNIT:p" or "UNIT:u", of one of n_units. 0: it is none of these. */
ESP__FN int esp__order_entry_read(const char *word, uint32_t n_units, esp__order_entry *e);
/* The word of an entry, in `buf`. */
ESP__FN const char *esp__order_entry_word(const esp__order_entry *e, char buf[ESP__ENTRY_MAX]);
/* Says which words are entries. */
ESP__FN esp_status esp__order_entry_fail(const esp_ctx *ctx, const char *where, const char *word);

/* The sync units that an order is checked against. */
typedef struct esp__order_units {
    const void *user;
    uint32_t n_units, n_tensors;
    const esp__option *(*option)(const void *user, uint32_t unit, int *group);
    const char *(*name)(const void *user, uint32_t unit);
    uint32_t *at; /* [n_units] for the check */
} esp__order_units;
/* Has this unit such an op? */
ESP__FN int esp__order_entry_fits(const esp__order_entry *e, const esp__order_units *units);
/* A whole order: every collective once; a unit's entries in the sequence of its option, each at most once; as many
 * backwards as tensors, or none. All entries fit. `name` opens messages. */
ESP__FN esp_status esp__order_check(const esp_ctx *ctx, const char *name, const esp__order_entry *entries, uint32_t n,
                                    const esp__order_units *units);

/* ---- lines: text.c ------------------------------------------------------------------------------------------------- */
/* A model's tensors in backward order. */
typedef struct esp__text_tensors {
    const void *user;
    uint32_t n;
    const char *(*name)(const void *user, uint32_t i, uint64_t *elements);
} esp__text_tensors;

/* What is synchronised as one: a tensor, a chunk of one, or a group of neighbours. */
typedef struct esp__text_unit {
    uint32_t first, n;        /* tensors                           */
    uint64_t begin, elements; /* begin: of a chunk, in its tensor  */
    uint32_t chunk, n_chunks; /* 0 of 1: not a chunk. Printing: n_chunks of the first one, over 1 for the others */
    const char *codec, *option;
} esp__text_unit;

/* Who gets a text's lines, in their order. Every member is optional; what is no ESP_OK ends the reading. `where` is
 * "FILE:LINE", for messages; all texts last as long as the text that is read. */
typedef struct esp__strategy_lines {
    void *user;
    esp_status (*comment)(void *user, const char *where, const char *text); /* without '#' and the blank after it */
    esp_status (*tensor)(void *user, const char *where, const char *name, uint64_t elements);
    esp_status (*unit)(void *user, const char *where, const esp__text_unit *u);
    esp_status (*entry)(void *user, const char *where, const esp__order_entry *e);
} esp__strategy_lines;

/* Reads a text and cuts it into words in place; allocates nothing. It must be of these tensors (NULL: of any). ctx may be
 * NULL. Errors: ESP_E_ARG, with file, line and what was expected. */
ESP__FN esp_status esp__strategy_read(const esp_ctx *ctx, const char *name, char *text,
                                      const esp__text_tensors *tensors, const esp__strategy_lines *to);
/* What is wrong with this word as a tensor's name of at most `most` bytes, or as a codec; NULL: nothing. */
ESP__FN const char *esp__strategy_word_wrong(const char *word, size_t most);

/* The first line, and `comments`: lines with '#', or "". */
ESP__FN void esp__strategy_put_head(esp__text *t, const char *comments);
/* The line or lines of a unit; units are put in their order. */
ESP__FN void esp__strategy_put_unit(esp__text *t, const esp__text_tensors *tensors, const esp__text_unit *u);
/* Entry i of n. */
ESP__FN void esp__strategy_put_entry(esp__text *t, uint32_t i, uint32_t n, const esp__order_entry *e);
#endif
