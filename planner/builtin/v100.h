/* v100.h: the published costs of one codec. */
#ifndef ESP__V100_H
#define ESP__V100_H
#include "espresso_impl/base/private.h"

/* CPU times are for 2^10 to 2^26 elements. Between these sizes, time is linear in log(size). */
enum { ESP__V100_FIRST = 10, ESP__V100_SIZES = 17 };

typedef struct esp__published {
    const char *name;
    /* Whether the codec sends only a share of the elements, its parameter "ratio" (0.01 by default). */
    bool ratio;
    /* The payload of e sent elements has header_bytes + unit_bytes * ceil(units * e) bytes. */
    double header_bytes, unit_bytes, units;
    double error;    /* used only if the library does not have the codec */
    uint16_t gpu[2]; /* time of compress, of decompress; up to 2^20 elements */
    uint32_t cpu[2][ESP__V100_SIZES];
} esp__published;

ESP__FN const esp__published *esp__published_find(const char *name);
#endif
