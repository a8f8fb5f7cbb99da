/* text.h: a text as numbers, one a character that occurs in it. Knows nothing of the model or of ranks. */
#ifndef GPT_TEXT_H
#define GPT_TEXT_H
#include <stddef.h>
#include <stdint.h>

typedef struct text {
    uint8_t *token; /* n numbers below `vocab`; the first n_train are for training, the rest is held out */
    size_t n, n_train, vocab;
    char character[256]; /* of each number                                                              */
    uint64_t hash;       /* of the bytes                                                                */
} text;

/** Reads a file, or all files of a folder by name, one after the other (links left out). Returns NULL, or what is wrong. The
 *  memory is for all of the run. */
const char *text_open(text *t, const char *path);
/** Bits a character of the held-out part for one who knows only how often each character is in the training part. */
double text_unigram_bits(const text *t);
#endif
