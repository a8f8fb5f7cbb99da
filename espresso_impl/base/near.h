/* near.h: finds the known name that a wrong name was probably meant to be ("did you mean"). */
#ifndef ESP__NEAR_H
#define ESP__NEAR_H
#include "espresso_impl/base/private.h"

/* 1 if `word` is probably a misspelt `known`, and nearer to it than *best, which it then lowers. Near means: at most two edits, one
 * for short words, or one is the beginning of the other, without regard to case. Set *best to 3 before the first name. */
ESP__FN int esp__near(const char *word, const char *known, unsigned *best);
#endif
