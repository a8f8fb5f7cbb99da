/* tree.c: calls a function for each option (sequence of collectives, compressions and decompressions) that a filter
 * allows, for the planner and for command-line tools. */
#include "planner/problem/problem.h"
#include <fnmatch.h>

typedef struct esp__tree_walk {
    const esp__tree_filter *filter;
    esp__tree_counts *counts;
    int (*each)(void *user, const esp__option *o, const char *text);
    void *user;
} esp__tree_walk;

ESP__FN int esp__tree_has(const char *text, const char *pattern) {
    char glob[ESP__TEXT_MAX];
    snprintf(glob, sizeof glob, "*%s*", pattern);
    return fnmatch(glob, text, 0) == 0;
}

static int esp__tree_allows(const esp__tree_filter *f, const esp__option *o, const char *text) {
    int comps = 0;
    for (uint32_t i = 0; i < o->n; i++) comps += o->steps[i].kind == ESP__STAGE_COMP;
    if (f->max_comp >= 0 && comps > f->max_comp) return 0;
    for (uint32_t i = 0; i < f->n_match; i++)
        if (!esp__tree_has(text, f->match[i])) return 0;
    for (uint32_t i = 0; i < f->n_forbid; i++)
        if (esp__tree_has(text, f->forbid[i])) return 0;
    return 1;
}

static int esp__tree_visit(void *user, const esp__option *o) {
    esp__tree_walk *w = user;
    char text[ESP__TEXT_MAX];
    esp__option_print(o, text, sizeof text);
    if (!esp__tree_allows(w->filter, o, text)) return 0;
    *(esp__option_is_flat(o) ? &w->counts->flat : &w->counts->hierarchical) += 1;
    w->counts->raw += !esp__option_compresses(o);
    return w->each ? w->each(w->user, o, text) : 0;
}

ESP__FN void esp__tree_each(const esp__tree_filter *f, esp__tree_counts *counts,
                            int (*each)(void *user, const esp__option *o, const char *text), void *user) {
    esp__tree_walk w = {f, counts, each, user};
    memset(counts, 0, sizeof *counts);
    esp__option_each(f->parts, f->devices, f->extended, esp__tree_visit, &w);
}
