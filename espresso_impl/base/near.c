/* near.c: finds the known name that a wrong name was probably meant to be. */
#include "espresso_impl/base/near.h"
#include <ctype.h>

enum { ESP__NEAR_MAX = 64 }; /* longer names are not compared */

static int esp__same_letter(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }

/* The number of edits (insert, delete or replace a character, swap two neighbours) from a to b, which are short names. */
static int esp__edits(const char *a, const char *b) {
    int rows[3][ESP__NEAR_MAX]; /* distances from the first i - 2, i - 1 and i characters of a */
    const int n = (int)strlen(b);
    if (n >= ESP__NEAR_MAX) return ESP__NEAR_MAX;
    for (int j = 0; j <= n; j++) rows[0][j] = j;
    int i = 1;
    for (; a[i - 1]; i++) {
        int *now = rows[i % 3], *before = rows[(i + 2) % 3], *earlier = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = before[j - 1] + !esp__same_letter(a[i - 1], b[j - 1]);
            if (before[j] + 1 < best) best = before[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            int swapped =
                i > 1 && j > 1 && esp__same_letter(a[i - 1], b[j - 2]) && esp__same_letter(a[i - 2], b[j - 1]);
            if (swapped && earlier[j - 2] + 1 < best) best = earlier[j - 2] + 1;
            now[j] = best;
        }
    }
    return rows[(i + 2) % 3][n];
}

ESP__FN int esp__near(const char *word, const char *known, unsigned *best) {
    size_t nw = strlen(word), nk = strlen(known);
    unsigned d = (unsigned)esp__edits(word, known);
    if (nw >= 3 && (strncmp(word, known, nw) == 0 || (nk >= 3 && strncmp(word, known, nk) == 0))) d = d ? 1 : 0;
    if (d > 2 || 3 * d > nk || d >= *best) return 0;
    *best = d;
    return 1;
}
