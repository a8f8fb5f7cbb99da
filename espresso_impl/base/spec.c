/* spec.c: splits "name:key=val,key=val". Must not know which names or keys exist. */
#include "espresso_impl/base/base.h"

ESP__FN int esp__spec_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
}

ESP__FN size_t esp__spec_length(const char *list) {
    size_t n = 0;
    for (int depth = 0; list[n] && (list[n] != ';' || depth > 0); n++) depth += (list[n] == '(') - (list[n] == ')');
    return n;
}

/* Checks the form of parameters, not their meaning. Returns what is wrong, and where in *at; NULL: nothing. */
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

ESP__FN esp_status esp__spec_split(const esp_ctx *ctx, const char *spec, char name[ESP__NAME_MAX],
                                   const char **params) {
    const char *p = spec, *at, *wrong;
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
    memcpy(name, spec, n);
    name[n] = 0;
    if (*p == ':') *params = p + 1;
    return ESP_OK;
}
