/* link.c: emulates slow network links between ranks of one machine, which pretend to be on several machines and racks.
 * The ranks of an emulated machine share the rate of its network card (NIC) in each direction, and every message
 * arrives later by the link's latency. Times are those of an emulated clock: a message that depends on an earlier one
 * begins when that one arrives, even if this thread wakes up later, so that scheduling delays do not lower the rate.
 * Data between racks pass the links of machines and racks, and arrive with the slower one. A link's rate and latency
 * may change while a job runs, but collectives are planned for those at the start, since all ranks must plan alike. */
#include "backends/shm/transport.h"
#include "espresso_impl/base/limits.h"
#include <errno.h>

static const double SHM_LATENCY_MOST = 1e10; /* in nanoseconds */

/* ---- parameters ---- */
/* Parses "1gbit", "2.5mbit" or "9600kbit". Returns bits per second, or 0 if the text is malformed. */
static double shm_parse_rate(const char *s) {
    const char *end;
    double v;
    if (!esp_params_number(s, &end, &v)) return 0;
    double k = !strcmp(end, "gbit")   ? 1e9
               : !strcmp(end, "mbit") ? 1e6
               : !strcmp(end, "kbit") ? 1e3
               : !strcmp(end, "bit")  ? 1
                                      : 0;
    return v > 0 && v < 1e9 ? v * k : 0;
}
/* Parses "50us", "1.5ms" or "0us". Returns nanoseconds, or a negative number if the text is malformed or above
 * `most`. */
static double shm_parse_span(const char *s, double most) {
    const char *end;
    double v;
    if (!esp_params_number(s, &end, &v)) return -1;
    double k = !strcmp(end, "us") ? 1e3 : !strcmp(end, "ms") ? 1e6 : !strcmp(end, "s") ? 1e9 : -1;
    return v >= 0 && v * k <= most && k > 0 ? v * k : -1;
}

static void shm_parse_word(const char **at, const char *stops, char *out, size_t cap) {
    size_t n = strcspn(*at, stops);
    snprintf(out, cap, "%.*s", (int)backend_min(n, cap - 1), *at);
    *at += n;
}
ESP__FN const char *shm_parse_phases(const char *text, shm_link *l, const char **where) {
    const char *at = text;
    char word[32];
    for (l->n = 0;; at++) {
        shm_phase *p = &l->phases[l->n];
        *where = at;
        if (l->n == SHM_PHASES) return "no more than 16 of them";
        shm_parse_word(&at, ",;@\n", word, sizeof word);
        double bits = shm_parse_rate(word), ns = 0, from = 0;
        if (bits <= 0) return "a rate, as in 1gbit, 100mbit or 64kbit";
        if (*at == ',') {
            *where = ++at;
            shm_parse_word(&at, ",;@\n", word, sizeof word);
            if ((ns = shm_parse_span(word, SHM_LATENCY_MOST)) < 0) return "a latency up to 10s, as in 50us or 1ms";
        }
        *where = at;
        if (l->n && *at != '@') return "'@' and the time from which it holds, as in 100mbit,50us@30s";
        if (!l->n && *at == '@') return "no time: the first one holds from the start";
        if (*at == '@') {
            *where = ++at;
            shm_parse_word(&at, ",;@\n", word, sizeof word);
            from = shm_parse_span(word, 1e15);
            if (from < 0) return "a time, as in 30s or 500ms";
            if ((uint64_t)from <= p[-1].from_ns) return "a later time than the one before";
        }
        *p = (shm_phase){8e9 / bits, (uint64_t)ns, (uint64_t)from};
        l->n++;
        *where = at;
        if (*at == ',' || *at == '@') return "';' or the end";
        if (*at != ';') return NULL;
    }
}
ESP__FN const char *shm_read_link(const char *path, shm_link *l) {
    char text[SHM_LINK_MAX];
    const char *where;
    FILE *f = fopen(path, "re");
    if (!f) return esp__strerror(errno);
    char *got = fgets(text, sizeof text, f);
    fclose(f);
    if (!got) return "it is empty";
    const char *wrong = shm_parse_phases(text, l, &where);
    return wrong ? wrong : l->n > 1 ? "a file holds one rate and latency" : NULL;
}
ESP__FN void shm_link_poll(shm_comm *m, uint64_t now) {
    shm_link *l = &m->link, read;
    if (now < l->polled_ns + 100000000u) return;
    l->polled_ns = now;
    const char *wrong = shm_read_link(l->file, &read);
    if (!wrong)
        l->phases[0] = read.phases[0];
    else if (!l->warned)
        backend_error(m, ESP_OK, "the link's file %s cannot be used (%s): the link stays as it was", l->file, wrong);
    l->warned = wrong != NULL;
}
/* Parses (RATE,LATENCY;RATE,LATENCY@TIME;...): the link at the start, and its changes later. */
static esp_status shm_link_text(shm_comm *m, char *text, shm_link *link) {
    const char *where, *wrong = shm_parse_phases(text, link, &where);
    if (!wrong && !*where) return ESP_OK;
    return backend_error(m, ESP_E_ARG, "link '%s': at character %d ('%.20s') expected %s", text,
                         (int)(where - text) + 1, where, wrong ? wrong : "the end");
}
/* Parses link=(...) or link=(file:PATH), which describes the link between machines. */
static esp_status shm_link_param(shm_comm *m, char *text) {
    const char *wrong;
    if (!strncmp(text, "file:", 5)) {
        snprintf(m->link.file, sizeof m->link.file, "%s", text + 5);
        wrong = shm_read_link(m->link.file, &m->link);
        if (wrong)
            return backend_error(m, ESP_E_ARG, "the link's file %s: %s: write one line into it, as in 1gbit,50us",
                                 m->link.file, wrong);
    } else if (shm_link_text(m, text, &m->link)) {
        return ESP_E_ARG;
    }
    m->pace.ns_per_byte = m->link.phases[0].ns_per_byte;
    m->pace.latency_ns = m->link.phases[0].latency_ns;
    return ESP_OK;
}

ESP__FN esp_status shm_params(shm_comm *m, const char *params) {
    static const char known[] = "inter=1gbit,latency=50us,link=(1gbit,50us;100mbit,50us@30s),outer=(100mbit,1ms)";
    char key[32], val[SHM_LINK_MAX + 8];
    int more;
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0) {
        const double bits = shm_parse_rate(val), ns = shm_parse_span(val, SHM_LATENCY_MOST);
        const size_t n = strlen(val);
        char *inner = val;
        if (n >= 2 && val[0] == '(' && val[n - 1] == ')') val[n - 1] = 0, inner++;
        if (!strcmp(key, "inter")) {
            if (bits <= 0)
                return backend_error(m, ESP_E_ARG, "inter=%s is not a rate: write inter=1gbit, 100mbit or 64kbit", val);
            m->pace.ns_per_byte = 8e9 / bits;
        } else if (!strcmp(key, "latency")) {
            if (ns < 0)
                return backend_error(m, ESP_E_ARG, "latency=%s is not a time up to 10s: write latency=50us or 1ms",
                                     val);
            m->pace.latency_ns = (uint64_t)ns;
        } else if (!strcmp(key, "link")) {
            if (shm_link_param(m, inner)) return ESP_E_ARG;
        } else if (!strcmp(key, "outer")) {
            if (shm_link_text(m, inner, &m->outer.link)) return ESP_E_ARG;
        } else {
            return backend_error(m, ESP_E_ARG, "does not know %s=%s: it takes %s", key, val, known);
        }
    }
    if (more < 0) return backend_error(m, ESP_E_ARG, "parameters are malformed: write %s", known);
    m->pace.on = m->pace.ns_per_byte > 0 || m->pace.latency_ns > 0;
    if (!m->link.n) m->link.phases[m->link.n++] = (shm_phase){m->pace.ns_per_byte, m->pace.latency_ns, 0};
    return ESP_OK;
}

/* ---- times ---- */
static const shm_phase *shm_phase_at(const shm_link *l, uint64_t opened_ns, uint64_t ns) {
    int k = l->n - 1;
    while (k > 0 && ns < opened_ns + l->phases[k].from_ns) k--;
    return &l->phases[k];
}

/* Reserves a NIC for `ns` nanoseconds, from time `from` on or when it is free. Returns when the reservation ends. */
static uint64_t shm_reserve(uint64_t *free_ns, uint64_t from, uint64_t ns) {
    uint64_t old = BACKEND_LOAD(free_ns), end;
    do end = backend_max(old, from) + ns;
    while (!__atomic_compare_exchange_n(free_ns, &old, end, 1, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return end;
}

/* Sends `bytes`, which are ready at time `from`, through a sender's and a receiver's NIC. Returns when they have passed
 * both. */
static uint64_t shm_pass(shm_nic *tx, shm_nic *rx, const shm_link *l, uint64_t opened_ns, uint64_t from,
                         uint64_t bytes) {
    uint64_t start = backend_max(from, BACKEND_LOAD(&tx->tx_free_ns));
    uint64_t ns = (uint64_t)((double)bytes * shm_phase_at(l, opened_ns, start)->ns_per_byte + 0.5);
    uint64_t sent = shm_reserve(&tx->tx_free_ns, from, ns);
    uint64_t received = shm_reserve(&rx->rx_free_ns, from, ns);
    return backend_max(sent, received);
}
/* Returns true if data from `rank` pass the emulated link between racks. */
static bool shm_leaves_rack(const shm_comm *m, int32_t rank) { return m->outer.link.n && m->level[rank] > 2; }

ESP__FN uint64_t shm_transfer(shm_comm *m, int32_t rank, uint64_t from, uint64_t bytes) {
    uint64_t opened = m->link.opened_ns;
    uint64_t end = shm_pass(m->nics[rank], m->nics[m->rank], &m->link, opened, from, bytes);
    shm_nic **nics = m->outer.nics;
    if (shm_leaves_rack(m, rank))
        end = backend_max(end, shm_pass(nics[rank], nics[m->rank], &m->outer.link, opened, from, bytes));
    return end;
}

ESP__FN uint64_t shm_latency(const shm_comm *m, int32_t rank, uint64_t ns) {
    uint64_t latency = shm_phase_at(&m->link, m->link.opened_ns, ns)->latency_ns;
    if (shm_leaves_rack(m, rank))
        latency = backend_max(latency, shm_phase_at(&m->outer.link, m->link.opened_ns, ns)->latency_ns);
    return latency;
}

/* ---- racks ---- */
ESP__FN int32_t shm_unit(const esp_group *g, uint32_t level, int32_t q) {
    uint32_t n = (uint32_t)g->n_levels;
    if (level == 1) {
        int32_t first = 0;
        while (g->machine && g->machine[first] != g->machine[q]) first++;
        return first;
    }
    for (int32_t first = 0; first < q; first++)
        if (!memcmp(g->place + (uint32_t)first * n + level, g->place + (uint32_t)q * n + level,
                    (n - level) * sizeof *g->place))
            return first;
    return q;
}

ESP__FN void shm_outer_join(shm_comm *m, const esp_group *g, const shm_comm *parent, shm_nic *nics) {
    const shm_phase *first = &m->outer.link.phases[0];
    bool crossed = false;
    if (!m->outer.on) return;
    for (int32_t q = 0; q < m->size; q++) {
        m->outer.nics[q] = parent ? parent->outer.nics[m->job_rank[q]] : nics + m->size + shm_unit(g, 2, q);
        crossed |= shm_unit(g, 2, q) != shm_unit(g, 2, 0);
    }
    if (!crossed || !m->outer.link.n) return;
    m->pace.on = true;
    if (first->ns_per_byte > m->pace.ns_per_byte) m->pace.ns_per_byte = first->ns_per_byte;
    m->pace.latency_ns = backend_max(m->pace.latency_ns, first->latency_ns);
}
