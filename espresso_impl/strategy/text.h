/* text.h: reads and prints the text of a strategy, described in docs/design/design.md. The reader calls a function for
 * each line, because the planner and the library store strategies in different structs. */
#ifndef ESP__STRATEGY_TEXT_H
#define ESP__STRATEGY_TEXT_H
#include "espresso_impl/strategy/option.h"

#define ESP__STRATEGY_MAGIC "espresso-strategy 1"

enum {
    ESP__UNITS_MAX = 1 << 24, /* most tensors, chunks and groups; order[] has 24 bits for them */
    ESP__TENSOR_NAME_MAX = 1000
};
#define ESP__ELEMENTS_MAX ((uint64_t)1 << 58) /* most elements of all tensors together */

/* ---- order entries: entries.c ---- */
/* An entry of a strategy's order of ops. STEP: a stage of an option. DOWN and UP: a copy from GPU to host, and back.
 * PACK and UNPACK: the copy of a group's gradients into one buffer, and back. BACKWARD: the computation of the next
 * gradient. */
enum { ESP__ENTRY_STEP, ESP__ENTRY_DOWN, ESP__ENTRY_UP, ESP__ENTRY_PACK, ESP__ENTRY_UNPACK, ESP__ENTRY_BACKWARD };
typedef struct esp__order_entry {
    uint32_t unit;
    uint8_t what, step;
} esp__order_entry;
enum { ESP__ENTRY_MAX = 24 }; /* bytes of an entry's text, with the NUL */

/* Reads "b" (BACKWARD), "UNIT:STAGE" (STEP), the same with a final "d" (DOWN) or "u" (UP), "UNIT:p" (PACK) or "UNIT:u"
 * (UNPACK). Returns false if the word is none of these. */
ESP__FN bool esp__order_entry_read(const char *word, uint32_t n_units, esp__order_entry *e);
ESP__FN const char *esp__order_entry_word(const esp__order_entry *e, char buf[ESP__ENTRY_MAX]);
ESP__FN esp_status esp__order_entry_fail(const esp_ctx *ctx, const char *where, const char *word);

typedef struct esp__order_units {
    const void *user;
    uint32_t n_units, n_tensors;
    const esp__option *(*option)(const void *user, uint32_t unit, int *group);
    const char *(*name)(const void *user, uint32_t unit);
    /* how often the unit's codec compresses in a training step; NULL if every codec does so once */
    uint32_t (*rounds)(const void *user, uint32_t unit);
    uint32_t *at; /* [n_units] working memory, which the caller allocates */
} esp__order_units;
ESP__FN bool esp__order_entry_fits(const esp__order_entry *e, const esp__order_units *units);
/* Checks a strategy's order of ops: every collective must be in it, once for each time its codec compresses. No other
 * entry may come twice, and entries of a tensor or group must be in a possible sequence. `name` begins errors. */
ESP__FN esp_status esp__order_check(const esp_ctx *ctx, const char *name, const esp__order_entry *entries, uint32_t n,
                                    const esp__order_units *units);

/* ---- lines: text.c ---- */
typedef struct esp__text_tensors {
    const void *user;
    uint32_t n;
    const char *(*name)(const void *user, uint32_t i, uint64_t *elements);
} esp__text_tensors;

typedef struct esp__unit_line {
    uint32_t first, n;        /* index of its first tensor, and number of tensors */
    uint64_t begin, elements; /* `begin` is a chunk's first element in its tensor */
    uint32_t chunk, n_chunks;
    const char *codec, *option;
} esp__unit_line;

/* Callbacks for each line; those that are NULL are skipped. If one returns an error, reading ends. `where` is
 * "FILE:LINE". */
typedef struct esp__strategy_lines {
    void *user;
    esp_status (*tensor)(void *user, const char *where, const char *name, uint64_t elements);
    esp_status (*unit)(void *user, const char *where, const esp__unit_line *u);
    esp_status (*entry)(void *user, const char *where, const esp__order_entry *e);
} esp__strategy_lines;

/* Overwrites blanks between words of `text` with NULs. Fails if `tensors` is not NULL and the text is for other
 * tensors. */
ESP__FN esp_status esp__strategy_read(const esp_ctx *ctx, const char *name, char *text,
                                      const esp__text_tensors *tensors, const esp__strategy_lines *to);

ESP__FN void esp__strategy_put_head(esp__text *t, const char *comments);
ESP__FN void esp__strategy_put_unit(esp__text *t, const esp__text_tensors *tensors, const esp__unit_line *u);
ESP__FN void esp__strategy_put_entry(esp__text *t, uint32_t i, uint32_t n, const esp__order_entry *e);
#endif
