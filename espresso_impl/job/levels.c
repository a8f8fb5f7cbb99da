/* levels.c: a table of the groups of ranks for which there are collectives (scopes), with the levels of each. */
#include "espresso_impl/job/levels.h"

static const struct {
    uint8_t first, last;
    const char *word;
} esp__scopes[ESP__SCOPES] = {{0, 0, "flat"},  {1, 1, "intra"},       {2, 2, "inter"},
                              {3, 3, "outer"}, {1, 2, "intra-inter"}, {2, 3, "inter-outer"}};

ESP__FN void esp__scope_levels(uint32_t scope, uint32_t n_levels, uint32_t *first, uint32_t *last) {
    *first = scope ? esp__scopes[scope].first : 1u;
    *last = scope ? esp__scopes[scope].last : n_levels;
}

ESP__FN uint8_t esp__scope_of(uint32_t first, uint32_t last, uint32_t n_levels) {
    uint8_t scope = 0;
    if (first == 1 && last == n_levels) return ESP__FLAT;
    for (uint8_t k = 1; k < ESP__SCOPES; k++)
        if (esp__scopes[k].first == first && esp__scopes[k].last == last) scope = k;
    return scope;
}

ESP__FN bool esp__scope_exists(uint32_t scope, uint32_t n_levels) {
    if (scope == ESP__FLAT) return true;
    return scope < ESP__SCOPES && esp__scopes[scope].last <= n_levels &&
           (uint32_t)(esp__scopes[scope].last - esp__scopes[scope].first) + 1 < n_levels;
}

ESP__FN const char *esp__scope_word(uint32_t scope) { return scope < ESP__SCOPES ? esp__scopes[scope].word : "?"; }

static const char *esp__level_name_wrong(const esp__level_names *names, const char *name) {
    static const char *const lanes[] = {"compute", "cpu", "compress", "decompress"};
    size_t n = 0;
    while ((name[n] >= 'a' && name[n] <= 'z') || (name[n] >= 'A' && name[n] <= 'Z') || name[n] == '_' ||
           (n && name[n] >= '0' && name[n] <= '9'))
        n++;
    if (!n || name[n]) return "a name has letters, digits and '_', and begins with a letter";
    if (n >= ESP__LEVEL_NAME) return "a name has at most 15 characters";
    for (size_t k = 0; k < sizeof lanes / sizeof *lanes; k++)
        if (!strcmp(name, lanes[k])) return "a lane that is no link has this name";
    for (uint32_t k = 1; k <= names->n; k++)
        if (!strcmp(name, names->of[k])) return "two levels have this name";
    return names->n == ESP__LEVELS ? "a job has at most 3 levels" : NULL;
}

ESP__FN const char *esp__level_name_add(esp__level_names *names, const char *name) {
    const char *wrong = esp__level_name_wrong(names, name);
    if (wrong) return wrong;
    const uint32_t last = ++names->n;
    memcpy(names->of[last], name, strlen(name) + 1);
    for (uint32_t scope = ESP__OUTER + 1; scope < ESP__SCOPES; scope++) {
        char first[ESP__LEVEL_NAME];
        if (esp__scopes[scope].last != last) continue;
        memcpy(first, names->of[esp__scopes[scope].first], sizeof first);
        snprintf(names->of[scope], sizeof names->of[scope], "%s-%.15s", first, name);
    }
    return NULL;
}

ESP__FN const char *esp__scope_name(const esp__level_names *names, uint32_t scope) {
    return scope < ESP__SCOPES && names->of[scope][0] ? names->of[scope] : esp__scope_word(scope);
}
