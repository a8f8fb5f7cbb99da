/* text.h: a text as numbers: each distinct character has a number. Knows nothing of the model or of ranks. */
#ifndef GPT_TEXT_H
#define GPT_TEXT_H
#include <stddef.h>
#include <stdint.h>

typedef struct text {
    uint8_t *token; /* n numbers below `vocab`; the first n_train are for training, the rest is held out */
    size_t n, n_train, vocab;
    char character[256]; /* the character of each number                                                */
    uint64_t hash;       /* hash of the text's bytes                                                    */
} text;

/** Reads a file, or all files of a folder in the order of their names (but no links). Returns NULL, or what is wrong.
 *  The memory is never freed. */
const char *text_open(text *t, const char *path);
/** Bits per character of the held-out part under a model that knows only how often each character is in the training
 *  part. */
double text_unigram_bits(const text *t);
#endif
