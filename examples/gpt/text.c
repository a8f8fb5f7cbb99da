/* text.c: reads a text and numbers its characters. */
#include "text.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char why[1200]; /* text of the last error */

static const char *problem(const char *path, const char *what) {
    snprintf(why, sizeof why, "%s: %s (any plain text of 64 KB or more will do: --text FILE)", path, what);
    return why;
}

/* Adds the bytes of a file to the text. */
static const char *read_file(text *t, const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return problem(path, strerror(errno));
    size_t got = 1;
    for (size_t room = t->n; got; t->n += got) {
        if (t->n + 65536 > room) {
            uint8_t *more = realloc(t->token, room = 2 * t->n + 65536);
            if (!more) return fclose(f), problem(path, "out of memory");
            t->token = more;
        }
        got = fread(t->token + t->n, 1, 65536, f);
    }
    const int failed = ferror(f);
    return fclose(f), failed ? problem(path, "cannot be read") : NULL;
}

static const char *read_folder(text *t, const char *folder) {
    struct dirent **entry = NULL;
    const char *bad = NULL;
    const int n = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[1024];
        struct stat s;
        const int length = snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        if (!bad && length < (int)sizeof path && lstat(path, &s) == 0 && S_ISREG(s.st_mode)) bad = read_file(t, path);
        free(entry[i]);
    }
    free(entry);
    return n < 0 ? problem(folder, strerror(errno)) : bad;
}

const char *text_open(text *t, const char *path) {
    struct stat s;
    *t = (text){.hash = 1469598103934665603u};
    if (stat(path, &s)) return problem(path, strerror(errno));
    const char *bad = S_ISDIR(s.st_mode) ? read_folder(t, path) : read_file(t, path);
    if (bad) return bad;
    if (t->n < 4096) return problem(path, "is too short");
    uint8_t number[256] = {0}, seen[256] = {0};
    for (size_t i = 0; i < t->n; i++) seen[t->token[i]] = 1, t->hash = (t->hash ^ t->token[i]) * 1099511628211u;
    for (size_t c = 0; c < 256; c++)
        if (seen[c]) t->character[t->vocab] = (char)c, number[c] = (uint8_t)t->vocab++;
    for (size_t i = 0; i < t->n; i++) t->token[i] = number[t->token[i]];
    t->n_train = t->n - t->n / 10;
    return NULL;
}

double text_unigram_bits(const text *t) {
    double count[256], bits = 0;
    for (size_t c = 0; c < t->vocab; c++) count[c] = 1; /* 1, so that no character has probability 0 */
    for (size_t i = 0; i < t->n_train; i++) count[t->token[i]]++;
    for (size_t i = t->n_train; i < t->n; i++) bits -= log2(count[t->token[i]] / (double)(t->n_train + t->vocab));
    return bits / (double)(t->n - t->n_train);
}
