/* levels.c: the scopes of a job's levels, in one table. */
#include "espresso_impl/base/levels.h"

static const struct {
    uint8_t first, last;
    const char *word;
} esp__scopes[ESP__SCOPES] = {{0, 0, "flat"},        {1, 1, "intra"},       {2, 2, "inter"},       {3, 3, "outer"},
                              {4, 4, "top"},         {1, 2, "intra-inter"}, {2, 3, "inter-outer"}, {3, 4, "outer-top"},
                              {1, 3, "intra-outer"}, {2, 4, "inter-top"}};

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

ESP__FN int esp__scope_exists(uint32_t scope, uint32_t n_levels) {
    if (scope == ESP__FLAT) return 1;
    return scope < ESP__SCOPES && esp__scopes[scope].last <= n_levels &&
           (uint32_t)(esp__scopes[scope].last - esp__scopes[scope].first) + 1 < n_levels;
}

ESP__FN const char *esp__scope_word(uint32_t scope) { return scope < ESP__SCOPES ? esp__scopes[scope].word : "?"; }
