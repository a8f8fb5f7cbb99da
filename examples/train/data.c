/* data.c: reads IDX files, which have a big-endian header (two zeros, 8 for bytes, the number of dimensions, each
 * dimension) and then bytes. */
#include "data.h"
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char why[1200]; /* text of the last error */

/* Opens the first file that matches, preferably a plain one. Runs gzip for others, so that no library is needed. */
static FILE *open_file(const char *dir, const char *part, const char *kind, char *path, size_t cap) {
    glob_t g;
    char command[1100];
    snprintf(path, cap, "%s/*%s-%s*", dir, part, kind);
    if (glob(path, 0, NULL, &g) != 0) return NULL;
    snprintf(path, cap, "%s", g.gl_pathv[0]);
    globfree(&g);
    const char *end = strrchr(path, '.');
    snprintf(command, sizeof command, "exec %s -- '%s'", end && !strcmp(end, ".gz") ? "gzip -dc" : "cat", path);
    return strchr(path, '\'') ? NULL : popen(command, "r"); /* a quote would end the quoted path */
}

static size_t big_endian(const unsigned char *h) {
    return (size_t)h[0] << 24 | (size_t)h[1] << 16 | (size_t)h[2] << 8 | h[3];
}

/* Reads the first `limit` images or labels of a file with `n_dims` dimensions, or all if limit is 0. Returns the bytes,
 * or NULL and an error text in `why`. */
static uint8_t *read_idx(const char *dir, const char *part, const char *kind, size_t n_dims, size_t limit,
                         size_t *dim) {
    char path[1024];
    unsigned char head[16] = {0};
    const char *problem = NULL;
    uint8_t *data = NULL;
    size_t bytes = 1;
    FILE *f = open_file(dir, part, kind, path, sizeof path);
    if (!f) problem = "not found, or a quote in its path: install dataset-fashion-mnist, or give --data DIR";
    if (f && (fread(head, 4, n_dims + 1, f) != n_dims + 1 || big_endian(head) != 0x800 + n_dims))
        problem = "not an IDX file of bytes with the right number of dimensions";
    for (size_t i = 0; !problem && i < n_dims; i++) {
        dim[i] = big_endian(head + 4 + 4 * i);
        if (i == 0 && limit && limit < dim[0]) dim[0] = limit;
        if (dim[i] == 0 || dim[i] > (1u << 31) / bytes) problem = "its header has an invalid size";
        bytes *= problem ? 1 : dim[i];
    }
    if (!problem && !(data = malloc(bytes))) problem = "out of memory";
    if (!problem && fread(data, 1, bytes, f) != bytes) problem = "ends too early";
    if (f) pclose(f);
    if (!problem) return data;
    snprintf(why, sizeof why, "%s: %s", path, problem);
    return free(data), NULL;
}

const char *data_open(dataset *d, const char *dir, const char *part, size_t limit) {
    size_t dim[3] = {0}, n_labels = 0;
    *d = (dataset){.pixels = read_idx(dir, part, "images", 3, limit, dim)};
    if (!d->pixels || !(d->labels = read_idx(dir, part, "labels", 1, limit, &n_labels))) return why;
    if (n_labels != dim[0]) return "there must be as many labels as images";
    d->n = dim[0], d->rows = dim[1], d->cols = dim[2];
    for (size_t i = 0; i < d->n; i++) d->classes = d->labels[i] < d->classes ? d->classes : d->labels[i] + 1u;
    return NULL;
}

void data_batch(const dataset *d, const uint32_t *pick, size_t n, float *images, uint8_t *labels) {
    const size_t size = d->rows * d->cols;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *in = d->pixels + pick[i] * size;
        for (size_t j = 0; j < size; j++) images[i * size + j] = (float)in[j] / 96.0f - 0.75f;
        labels[i] = d->labels[pick[i]];
    }
}
