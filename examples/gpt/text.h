/* text.h: reads a text and gives each distinct character a number. */
#ifndef GPT_TEXT_H
#define GPT_TEXT_H
#include <stddef.h>
#include <stdint.h>

typedef struct text {
    uint8_t *token;           /* n numbers below `vocab` */
    size_t n, n_train, vocab; /* numbers from n_train on are held out */
    char character[256];      /* the character of each number */
    uint64_t hash;
} text;

/** Reads a file, or all regular files of a folder in the order of their names. Returns NULL, or an error text. The
 * memory is never freed. */
const char *text_open(text *t, const char *path);
/** Returns the bits per character of the held-out text under the character frequencies of the training text. */
double text_unigram_bits(const text *t);
#endif
