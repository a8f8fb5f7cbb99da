/* near.h: "did you mean". */
#ifndef ESP__NEAR_H
#define ESP__NEAR_H
#include "espresso_impl/base/private.h"

/* 1, and a smaller *best, where `word` is probably a slip for `known`: at most two edits (one where it is short), or one is
 * the beginning of the other; capitals do not count. *best is 3 before the first name. */
ESP__FN int esp__near(const char *word, const char *known, unsigned *best);
#endif
