/* v100.c: compression times in microseconds that the Espresso authors published with their artifact (EuroSys 2023): their codecs on
 * a V100 and on its 48-core host (OpenMP; the number of threads is not stated). Data only. */
#include "planner/builtin/builtin.h"

enum { ESP__V100_FIRST = 10, ESP__V100_SIZES = 17 }; /* CPU: 2^10 to 2^26 elements; between, straight over log(size) */
typedef struct esp__published {
    const char *name;
    uint16_t gpu[2]; /* compress, decompress: constant up to 2^20 elements, in proportion to size above */
    uint32_t cpu[ESP__V100_SIZES][2];
} esp__published;

static const esp__published esp__v100[] = {
    {"dgc",
     {356, 34},
     {{13, 4},
      {15, 4},
      {19, 4},
      {28, 5},
      {46, 6},
      {79, 9},
      {150, 14},
      {287, 27},
      {585, 52},
      {1139, 102},
      {2312, 211},
      {4547, 424},
      {9307, 1900},
      {17000, 4517},
      {32924, 9645},
      {65359, 18731},
      {134170, 38245}}},
    {"randomk",
     {54, 34},
     {{16, 7},
      {17, 7},
      {20, 7},
      {26, 9},
      {72, 9},
      {64, 14},
      {110, 22},
      {212, 37},
      {430, 66},
      {672, 118},
      {1236, 285},
      {2421, 531},
      {4816, 903},
      {9632, 3652},
      {21112, 10068},
      {43156, 18968},
      {92372, 38427}}},
    {"efsignsgd",
     {130, 140},
     {{16, 5},
      {17, 5},
      {19, 6},
      {22, 8},
      {32, 11},
      {50, 17},
      {81, 27},
      {148, 52},
      {375, 124},
      {555, 187},
      {1094, 359},
      {2161, 712},
      {4298, 1428},
      {8585, 2862},
      {17353, 5853},
      {34964, 11816},
      {71289, 24972}}},
    {"onebit",
     {450, 170},
     {{19, 4},
      {20, 5},
      {22, 6},
      {28, 8},
      {38, 13},
      {59, 20},
      {91, 32},
      {155, 52},
      {288, 100},
      {556, 190},
      {1099, 375},
      {2218, 742},
      {4478, 1456},
      {8956, 3089},
      {17846, 6330},
      {35053, 12223},
      {73655, 26167}}},
};

static const esp__published *esp__published_find(const char *name) {
    for (size_t i = 0; i < sizeof esp__v100 / sizeof *esp__v100; i++)
        if (!strcmp(esp__v100[i].name, name)) return &esp__v100[i];
    return NULL;
}
