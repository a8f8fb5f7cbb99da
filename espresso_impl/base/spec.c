/* spec.c: reads specs such as "name:key=val,key=val". */
#include "espresso_impl/base/base.h"

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
