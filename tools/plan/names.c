/* names.c: names what a plan synchronizes (tensors, groups, chunks), and counts how many have each codec and option. */
#include "tools/plan/plan.h"

static bool plan_is_chunk(const plan_inputs *in, const esp_plan_unit *u) {
    return u->n_tensors == 1 && u->elements < in->model.tensors[u->first].elements;
}

ESP__FN plan_shape plan_shape_of(const plan_inputs *in, const plan_made *m) {
    plan_shape s = {0, 0, 0, 0};
    for (uint32_t u = 0; u < m->n_units; u++) {
        const esp_plan_unit *unit = &m->units[u];
        s.groups += unit->n_tensors > 1;
        s.grouped_tensors += unit->n_tensors > 1 ? unit->n_tensors : 0;
        s.chunks += (uint32_t)plan_is_chunk(in, unit);
        s.split_tensors += plan_is_chunk(in, unit) && unit->begin == 0;
    }
    return s;
}

static int plan_row_same(const void *a, const void *b) {
    const plan_row *x = a, *y = b;
    const int c = strcmp(x->option, y->option);
    return c ? c : strcmp(x->codec, y->codec);
}
static int plan_row_large(const void *a, const void *b) {
    const plan_row *x = a, *y = b;
    if (x->elements != y->elements) return x->elements < y->elements ? 1 : -1;
    return plan_row_same(a, b);
}

/* Returns an entry for each codec and option, sorted by their number of elements. The caller frees the array. */
ESP__FN plan_row *plan_rows(const plan_made *m, uint32_t *n) {
    plan_row *rows = tool_realloc(NULL, (m->n_units + 1) * sizeof *rows);
    uint32_t out = 0;
    for (uint32_t u = 0; u < m->n_units; u++) {
        const esp_plan_unit *unit = &m->units[u];
        rows[u] = (plan_row){unit->codec, unit->option, 1, unit->begin ? 0 : unit->n_tensors, unit->elements};
    }
    qsort(rows, m->n_units, sizeof *rows, plan_row_same);
    for (uint32_t u = 0; u < m->n_units; u++) {
        if (out && plan_row_same(&rows[out - 1], &rows[u]) == 0) {
            rows[out - 1].units++;
            rows[out - 1].tensors += rows[u].tensors;
            rows[out - 1].elements += rows[u].elements;
        } else {
            rows[out++] = rows[u];
        }
    }
    qsort(rows, out, sizeof *rows, plan_row_large);
    *n = out;
    return rows;
}
