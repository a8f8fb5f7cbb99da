/* v100.h: what was published for one codec. */
#ifndef ESP__V100_H
#define ESP__V100_H
#include "espresso_impl/base/private.h"

enum { ESP__V100_FIRST = 10, ESP__V100_SIZES = 17 }; /* CPU: 2^10 to 2^26 elements; between, straight over log(size) */

typedef struct esp__published {
    const char *name;
    int ratio; /* 1: sends only a share of the elements, the parameter ratio (0.01 without it) */
    double header_bytes, unit_bytes,
        units;       /* payload: header_bytes + unit_bytes * ceil(units * e), for e elements sent */
    double error;    /* as in esp_plan_codec; not read where the library has the codec */
    uint16_t gpu[2]; /* compress, decompress: constant up to 2^20 elements, in proportion to size above */
    uint32_t cpu[ESP__V100_SIZES][2];
} esp__published;

ESP__FN const esp__published *esp__published_find(const char *name);
#endif
