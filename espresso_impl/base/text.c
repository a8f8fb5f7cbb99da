/* text.c: a string that grows, and suggestions for misspelt names. */
#include "espresso_impl/base/text.h"
#include "espresso_impl/base/base.h"
#include <ctype.h>
#include <locale.h>

static pthread_once_t esp__locale_once = PTHREAD_ONCE_INIT;
static locale_t esp__locale_c;
static void esp__locale_make(void) { esp__locale_c = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

/* Sets this thread's locale to C, so that numbers have a decimal point. Returns the previous locale for
 * esp__locale_restore. */
static locale_t esp__locale_enter(void) {
    pthread_once(&esp__locale_once, esp__locale_make);
    return esp__locale_c ? uselocale(esp__locale_c) : (locale_t)0;
}
static void esp__locale_restore(locale_t own) {
    if (own) uselocale(own);
}

ESP__FN int esp__format_list(char *out, size_t cap, const char *fmt, va_list ap) {
    const locale_t own = esp__locale_enter();
    const int n = vsnprintf(out, cap, fmt, ap);
    esp__locale_restore(own);
    return n;
}

ESP__FN double esp__number_of(const char *text) {
    const locale_t own = esp__locale_enter();
    const double x = strtod(text, NULL);
    esp__locale_restore(own);
    return x;
}

ESP__FN int esp__format(char *out, size_t cap, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const int n = esp__format_list(out, cap, fmt, ap);
    va_end(ap);
    return n;
}

ESP__FN bool esp__text_reserve(esp__text *t, size_t cap) {
    char *data;
    if (cap <= t->cap) return true;
    if (!t->ctx) {
        data = (char *)realloc(t->data, cap);
    } else {
        data = (char *)esp__alloc(t->ctx, cap);
        if (data && t->data) memcpy(data, t->data, t->len + 1);
        if (data) esp__free(t->ctx, t->data);
    }
    if (!data) return false;
    t->data = data;
    t->cap = cap;
    return true;
}

ESP__FN void esp__text_add(esp__text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = esp__format_list(t->data ? t->data + t->len : NULL, t->cap - t->len, fmt, ap);
    va_end(ap);
    if (n >= 0 && t->len + (size_t)n + 1 > t->cap) {
        if (esp__text_reserve(t, (t->len + (size_t)n + 1) * 2)) {
            va_start(ap, fmt);
            esp__format_list(t->data + t->len, t->cap - t->len, fmt, ap);
            va_end(ap);
        } else {
            n = -1;
        }
    }
    if (n >= 0) {
        t->len += (size_t)n;
    } else {
        t->failed = true;
        if (t->data) t->data[t->len] = 0;
    }
}

ESP__FN void esp__text_free(esp__text *t) {
    esp_ctx *ctx = t->ctx;
    if (ctx)
        esp__free(ctx, t->data);
    else
        free(t->data);
    memset(t, 0, sizeof *t);
    t->ctx = ctx;
}

/* ---- suggestions ---- */
enum { ESP__SUGGEST_MAX = 64 };

static bool esp__same_letter(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }

/* Returns the Damerau-Levenshtein distance of two short names, ignoring case. */
static int esp__edits(const char *a, const char *b) {
    int rows[3][ESP__SUGGEST_MAX]; /* rows[i % 3]: distances of the first i characters of a to the first j of b */
    const int n = (int)strlen(b);
    if (n >= ESP__SUGGEST_MAX) return ESP__SUGGEST_MAX;
    for (int j = 0; j <= n; j++) rows[0][j] = j;
    int i = 1;
    for (; a[i - 1]; i++) {
        int *now = rows[i % 3], *before = rows[(i + 2) % 3], *earlier = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = before[j - 1] + !esp__same_letter(a[i - 1], b[j - 1]);
            if (before[j] + 1 < best) best = before[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            const bool swapped =
                i > 1 && j > 1 && esp__same_letter(a[i - 1], b[j - 2]) && esp__same_letter(a[i - 2], b[j - 1]);
            if (swapped && earlier[j - 2] + 1 < best) best = earlier[j - 2] + 1;
            now[j] = best;
        }
    }
    return rows[(i + 2) % 3][n];
}

ESP__FN bool esp__suggests(const char *word, const char *known, unsigned *best) {
    size_t nw = strlen(word), nk = strlen(known);
    unsigned d = (unsigned)esp__edits(word, known);
    if (nw >= 3 && (strncmp(word, known, nw) == 0 || (nk >= 3 && strncmp(word, known, nk) == 0))) d = d ? 1 : 0;
    if (d > 2 || 3 * d > nk || d >= *best) return false;
    *best = d;
    return true;
}
