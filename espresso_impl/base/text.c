/* text.c: a string that grows, specs ("name:key=val,key=val"), and suggestions for misspelt names. */
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

/* ---- specs ---- */
ESP__FN bool esp__spec_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
}

ESP__FN size_t esp__spec_length(const char *list) {
    size_t n = 0;
    for (int depth = 0; list[n] && (list[n] != ';' || depth > 0); n++) depth += (list[n] == '(') - (list[n] == ')');
    return n;
}

/* Checks the form key=val,key=val. Returns NULL, or an error text, and sets *at to the wrong part. */
static const char *esp__spec_check_params(const char *p, const char **at) {
    char key[ESP__NAME_MAX], val[ESP__SPEC_MAX];
    int more;
    do {
        while (*p == ' ' || *p == ',') p++;
        *at = p;
        more = esp_params_next(&p, key, sizeof key, val, sizeof val);
        if (more > 0 && !val[0]) return "this key has no value";
    } while (more > 0);
    if (more == 0) return NULL;
    p = *at + strcspn(*at, "=,");
    if (*p != '=') return "expected key=value here";
    if (p == *at) return "expected a key before '='";
    if (p - *at >= ESP__NAME_MAX) return "this key is too long";
    return strlen(p) >= ESP__SPEC_MAX ? "this value is too long" : "parentheses do not match here";
}

/* Finds a key that occurs twice in well-formed parameters. Returns its second occurrence and copies it to `key`, or
 * returns NULL if there is none. */
static const char *esp__spec_twice(const char *params, char key[ESP__NAME_MAX]) {
    char val[ESP__SPEC_MAX], other[ESP__NAME_MAX];
    for (const char *p = params, *before = p; esp_params_next(&p, key, ESP__NAME_MAX, val, sizeof val) > 0;
         before = p) {
        const char *at = before + strspn(before, " ,");
        for (const char *q = params; q < before && esp_params_next(&q, other, sizeof other, val, sizeof val) > 0;)
            if (!strcmp(other, key)) return at;
    }
    return NULL;
}

ESP__FN esp_status esp__spec_split(const esp_ctx *ctx, const char *spec, char name[ESP__NAME_MAX],
                                   const char **params) {
    const char *p = spec, *at, *wrong;
    char key[ESP__NAME_MAX];
    size_t n = 0;
    name[0] = 0;
    *params = "";
    if (!spec) return esp__fail(ctx, ESP_E_ARG, "no name given: expected \"name\" or \"name:key=value,...\"");
    while (esp__spec_name_char(*p)) p++;
    n = (size_t)(p - spec);
    if (n == 0 || (*p && *p != ':'))
        return esp__fail(ctx, ESP_E_ARG, "\"%s\", position %zu: expected a name of letters, digits, '_', '-' and '.'%s",
                         spec, n + 1, n ? ", then ':' and parameters" : "");
    if (n >= ESP__NAME_MAX)
        return esp__fail(ctx, ESP_E_ARG, "\"%s\": the name has %zu characters; at most %d are allowed", spec, n,
                         ESP__NAME_MAX - 1);
    if (*p == ':' && (wrong = esp__spec_check_params(p + 1, &at)) != NULL)
        return esp__fail(ctx, ESP_E_ARG, "\"%s\", position %zu: %s", spec, (size_t)(at - spec) + 1, wrong);
    if (*p == ':' && (at = esp__spec_twice(p + 1, key)) != NULL)
        return esp__fail(ctx, ESP_E_ARG, "\"%s\", position %zu: '%s' is given twice", spec, (size_t)(at - spec) + 1,
                         key);
    memcpy(name, spec, n);
    name[n] = 0;
    if (*p == ':') *params = p + 1;
    return ESP_OK;
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
