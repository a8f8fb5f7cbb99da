/* data.h: reads labelled images from IDX files (MNIST, Fashion-MNIST and others), plain or gzipped. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H
#include <stddef.h>
#include <stdint.h>

typedef struct dataset {
    uint8_t *pixels, *labels; /* n images of rows x cols pixels */
    size_t n, rows, cols, classes;
} dataset;

/** Reads the first `limit` images (all if limit is 0) from the files *PART-images* and *PART-labels* in folder `dir`,
 * where PART is "train" or "t10k". Returns NULL, or an error text. The memory is never freed. */
const char *data_open(dataset *d, const char *dir, const char *part, size_t limit);
/** Copies images pick[0..n-1], as numbers around 0, and their labels. */
void data_batch(const dataset *d, const uint32_t *pick, size_t n, float *images, uint8_t *labels);
#endif
