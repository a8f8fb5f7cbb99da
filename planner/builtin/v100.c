/* v100.c: compression times in microseconds that the Espresso authors published with their artifact (EuroSys 2023),
 * on a V100 and on its 48-core host (OpenMP, number of threads not stated). Payloads of their codecs have no header.
 * Their onebit has one pair of means per tensor; the library's codec of this name has one per block. */
#include "planner/builtin/v100.h"

static const esp__published esp__v100[] = {
    {"dgc",
     1,
     0,
     8,
     1,
     1,
     {356, 34},
     {{13, 15, 19, 28, 46, 79, 150, 287, 585, 1139, 2312, 4547, 9307, 17000, 32924, 65359, 134170},
      {4, 4, 4, 5, 6, 9, 14, 27, 52, 102, 211, 424, 1900, 4517, 9645, 18731, 38245}}},
    {"randomk",
     1,
     0,
     4,
     1,
     1,
     {54, 34},
     {{16, 17, 20, 26, 72, 64, 110, 212, 430, 672, 1236, 2421, 4816, 9632, 21112, 43156, 92372},
      {7, 7, 7, 9, 9, 14, 22, 37, 66, 118, 285, 531, 903, 3652, 10068, 18968, 38427}}},
    {"efsignsgd",
     0,
     4,
     1,
     0.125,
     1,
     {130, 140},
     {{16, 17, 19, 22, 32, 50, 81, 148, 375, 555, 1094, 2161, 4298, 8585, 17353, 34964, 71289},
      {5, 5, 6, 8, 11, 17, 27, 52, 124, 187, 359, 712, 1428, 2862, 5853, 11816, 24972}}},
    {"onebit",
     0,
     8,
     1,
     0.125,
     1 - 2 / 3.14159265358979323846,
     {450, 170},
     {{19, 20, 22, 28, 38, 59, 91, 155, 288, 556, 1099, 2218, 4478, 8956, 17846, 35053, 73655},
      {4, 5, 6, 8, 13, 20, 32, 52, 100, 190, 375, 742, 1456, 3089, 6330, 12223, 26167}}}};

ESP__FN const esp__published *esp__published_find(const char *name) {
    for (size_t i = 0; i < sizeof esp__v100 / sizeof *esp__v100; i++)
        if (!strcmp(esp__v100[i].name, name)) return &esp__v100[i];
    return NULL;
}
