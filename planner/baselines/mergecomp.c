/* mergecomp.c: MergeComp, which divides the tensors into groups of neighbours and compresses each group as one. It adds
 * groups as long as each saves enough time. To find the borders between groups, it moves one at a time and assumes that
 * the step time first falls and then rises as a border moves. Payloads are gathered over all ranks at once or between
 * machines, whichever is faster. */
#include "planner/baselines/baselines.h"

enum { ESP__MERGE_MOST = 8 };
static const double esp__merge_gain = 0.02; /* part of the step time that a new group must save */

typedef struct esp__merge {
    esp__problem *p;
    esp__schedule *schedule;
    esp__extent *units;
    const esp__form *form;
    uint32_t n, border[ESP__MERGE_MOST + 1]; /* group g has tensors [border[g], border[g + 1]) */
    uint32_t most;                           /* groups */
} esp__merge;

static uint64_t esp__merge_time(esp__merge *m) {
    uint32_t n = 0;
    for (uint32_t g = 0; g < m->n; g++) n = esp__units_group(m->p, m->units, n, m->border[g], m->border[g + 1]);
    esp__schedule_set_units(m->p, m->schedule, m->units, n);
    esp__scheme_fill(m->p, m->schedule, m->form, ESP_ON_GPU, esp__scheme_codec(m->p));
    return m->schedule->makespan;
}

static uint64_t esp__merge_border(esp__merge *m, uint32_t k, uint64_t best) {
    uint32_t low = m->border[k - 1] + 1, high = m->border[k + 1] - 1, at = m->border[k];
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        m->border[k] = mid;
        uint64_t left = esp__merge_time(m);
        m->border[k] = mid + 1;
        uint64_t right = esp__merge_time(m);
        if (left < best) best = left, at = mid;
        if (right < best) best = right, at = mid + 1;
        if (left <= right)
            high = mid;
        else
            low = mid + 1;
    }
    m->border[k] = at;
    return best;
}

/* Halves the largest group of several tensors. Returns 0 if there is none. */
static int esp__merge_split(esp__merge *m) {
    const esp_plan_tensor *t = m->p->model->tensors;
    uint64_t most = 0, half = 0;
    uint32_t widest = 0, at;
    for (uint32_t g = 0; g < m->n; g++) {
        uint64_t sum = 0;
        for (uint32_t i = m->border[g]; i < m->border[g + 1]; i++) sum += t[i].elements;
        if (m->border[g + 1] - m->border[g] > 1 && sum > most) most = sum, widest = g;
    }
    if (!most) return 0;
    for (at = m->border[widest]; at + 2 < m->border[widest + 1] && half < most / 2; at++) half += t[at].elements;
    if (at == m->border[widest]) at++;
    memmove(&m->border[widest + 2], &m->border[widest + 1], (m->n - widest) * sizeof *m->border);
    m->border[widest + 1] = at;
    m->n++;
    return 1;
}

static void esp__merge_search(esp__merge *m, esp__schedule *best) {
    uint64_t before = UINT64_MAX, time, last;
    m->n = 1;
    m->border[0] = 0;
    m->border[1] = (uint32_t)m->p->n_tensors;
    time = esp__merge_time(m);
    esp__schedule_keep_better(m->p, best, m->schedule);
    while ((before == UINT64_MAX || (double)time < (1.0 - esp__merge_gain) * (double)before) && m->n < m->most) {
        before = time;
        if (!esp__merge_split(m)) break;
        time = esp__merge_time(m);
        do {
            last = time;
            for (uint32_t k = 1; k < m->n; k++) time = esp__merge_border(m, k, time);
        } while (time < last);
        esp__merge_time(m); /* makes the schedule of the best borders */
        esp__schedule_keep_better(m->p, best, m->schedule);
    }
}

/* Makes `most` groups of about as many elements each, or fewer if there are too few tensors. */
static void esp__merge_evenly(esp__merge *m, esp__schedule *best) {
    const esp_plan_tensor *t = m->p->model->tensors;
    double all = 0.0, sum = 0.0;
    for (size_t i = 0; i < m->p->n_tensors; i++) all += (double)t[i].elements;
    m->n = 1;
    for (uint32_t i = 0; i < m->p->n_tensors; sum += (double)t[i++].elements)
        if (m->n < m->most && i && sum + 0.5 * (double)t[i].elements >= all * m->n / m->most) m->border[m->n++] = i;
    m->border[m->n] = (uint32_t)m->p->n_tensors;
    esp__merge_time(m);
    esp__schedule_keep_better(m->p, best, m->schedule);
}

static void esp__merge_make(esp__problem *p, esp__schedule *d, uint32_t most, bool even) {
    static const esp__form flat = {"comp > flat.allgather > decomp", "comp > flat.allgather > decomp"};
    esp__schedule schedule, best;
    esp__merge m = {.p = p, .schedule = &schedule, .form = &flat, .most = most};
    memset(&schedule, 0, sizeof schedule);
    memset(&best, 0, sizeof best);
    m.units = esp__arena_get(p->arena, p->n_tensors * sizeof *m.units);
    for (int tree = 0; tree <= (p->hierarchical != 0); tree++) {
        if (tree) m.form = &esp__form_allgather;
        if (even)
            esp__merge_evenly(&m, &best);
        else
            esp__merge_search(&m, &best);
    }
    esp__schedule_copy(p, d, &best);
}

ESP__FN void esp__mergecomp_make(esp__problem *p, esp__schedule *d) { esp__merge_make(p, d, ESP__MERGE_MOST, false); }
ESP__FN void esp__mergecomp_1(esp__problem *p, esp__schedule *d) { esp__merge_make(p, d, 1, false); }
ESP__FN void esp__mergecomp_2(esp__problem *p, esp__schedule *d) { esp__merge_make(p, d, 2, false); }
ESP__FN void esp__mergecomp_3(esp__problem *p, esp__schedule *d) { esp__merge_make(p, d, 3, false); }
ESP__FN void esp__mergecomp_4(esp__problem *p, esp__schedule *d) { esp__merge_make(p, d, 4, false); }
ESP__FN void esp__even_2(esp__problem *p, esp__schedule *d) { esp__merge_make(p, d, 2, true); }
ESP__FN void esp__even_3(esp__problem *p, esp__schedule *d) { esp__merge_make(p, d, 3, true); }
ESP__FN void esp__even_4(esp__problem *p, esp__schedule *d) { esp__merge_make(p, d, 4, true); }
