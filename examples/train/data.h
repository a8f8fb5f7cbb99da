/* data.h: labelled images from IDX files (MNIST, Fashion-MNIST and similar ones), plain or gzipped. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H
#include <stddef.h>
#include <stdint.h>

typedef struct dataset {
    uint8_t *pixels, *labels; /* n images of rows x cols */
    size_t n, rows, cols, classes;
} dataset;

/** Reads the files *PART-images* and *PART-labels* of folder `dir`, where PART is "train" or "t10k": the first `limit`
 *  images, or all where limit is 0. Returns NULL on success, otherwise an error text. The memory is never freed. */
const char *data_open(dataset *d, const char *dir, const char *part, size_t limit);
/** Images pick[0..n-1] as numbers around 0, and their labels. */
void data_batch(const dataset *d, const uint32_t *pick, size_t n, float *images, uint8_t *labels);
#endif
