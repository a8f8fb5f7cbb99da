/* open.h: opens and closes a comm: reads its parameters, exchanges hellos, lays out the region. */
#include "espresso_impl/base/cores.h"

#ifndef ENGINE_OPEN_H
#define ENGINE_OPEN_H

ENGINE_FN uint64_t engine_region_bytes(int32_t n) {
    uint64_t each = sizeof(engine_bell) + ENGINE_NICS * sizeof(engine_nic) + sizeof(engine_line) +
                    engine_cells(n) * (uint64_t)ENGINE_CELL;
    return (sizeof(engine_head) + (uint64_t)n * each + 8191) / 4096 * 4096;
}
ENGINE_FN engine_bell *engine_bells(engine_head *h) { return (engine_bell *)(void *)(h + 1); }
ENGINE_FN engine_nic *engine_nics(engine_head *h, int32_t n) { return (engine_nic *)(void *)(engine_bells(h) + n); }

/* Reads (RATE,LATENCY;RATE,LATENCY@TIME;...): a link at the start, and its changes. */
ENGINE_FN esp_status engine_link_text(engine_comm *m, char *text, engine_link *link) {
    const char *where, *wrong = engine_parse_phases(text, link, &where);
    if (!wrong && !*where) return ESP_OK;
    return engine_say(m->host, m->name, ESP_E_ARG, "link '%s': at character %d ('%.20s') expected %s", text,
                      (int)(where - text) + 1, where, wrong ? wrong : "the end");
}
/* Reads outer=(RATE,LATENCY;...). */
ENGINE_FN esp_status engine_outer_param(engine_comm *m, char *text) {
    size_t n = strlen(text);
    if (n >= 2 && text[0] == '(' && text[n - 1] == ')') text[n - 1] = 0, text++;
    return engine_link_text(m, text, &m->outer.link);
}
/* The same for machines, link=(...), or link=(file:PATH). */
ENGINE_FN esp_status engine_link_param(engine_comm *m, char *text) {
    const char *wrong;
    size_t n = strlen(text);
    if (n >= 2 && text[0] == '(' && text[n - 1] == ')') text[n - 1] = 0, text++;
    if (!strncmp(text, "file:", 5)) {
        snprintf(m->link.file, sizeof m->link.file, "%s", text + 5);
        wrong = engine_read_link(m->link.file, &m->link);
        if (wrong)
            return engine_say(m->host, m->name, ESP_E_ARG,
                              "the link's file %s: %s: write one line into it, as in 1gbit,50us", m->link.file, wrong);
    } else if (engine_link_text(m, text, &m->link)) {
        return ESP_E_ARG;
    }
    m->pace.ns_per_byte = m->link.phases[0].ns_per_byte;
    m->pace.latency_ns = m->link.phases[0].latency_ns;
    return ESP_OK;
}

/* Reads the parameters that both backends know. "cma=0" or "cma=1" sets *cma. */
ENGINE_FN esp_status engine_params(engine_comm *m, const char *params, const char *known, int *cma) {
    char key[32], val[ENGINE_LINK_MAX + 8];
    int more;
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0) {
        double bits = engine_parse_rate(val), ns = engine_parse_time(val);
        if (!strcmp(key, "inter")) {
            if (bits <= 0)
                return engine_say(m->host, m->name, ESP_E_ARG,
                                  "inter=%s is not a rate: write inter=1gbit, 100mbit or 64kbit", val);
            m->pace.ns_per_byte = 8e9 / bits;
        } else if (!strcmp(key, "latency")) {
            if (ns < 0)
                return engine_say(m->host, m->name, ESP_E_ARG,
                                  "latency=%s is not a time up to 10s: write latency=50us or 1ms", val);
            m->pace.latency_ns = (uint64_t)ns;
        } else if (!strcmp(key, "link")) {
            esp_status s = engine_link_param(m, val);
            if (s != ESP_OK) return s;
        } else if (!strcmp(key, "outer")) {
            esp_status s = engine_outer_param(m, val);
            if (s != ESP_OK) return s;
        } else if (!strcmp(key, "cma") && cma && (val[0] == '0' || val[0] == '1') && !val[1]) {
            *cma = val[0] == '1';
        } else {
            return engine_say(m->host, m->name, ESP_E_ARG, "does not know %s=%s: it takes %s", key, val, known);
        }
    }
    if (more < 0) return engine_say(m->host, m->name, ESP_E_ARG, "parameters are malformed: write %s", known);
    m->pace.on = m->pace.ns_per_byte > 0 || m->pace.latency_ns > 0;
    if (!m->link.n) m->link.phases[m->link.n++] = (engine_phase){m->pace.ns_per_byte, m->pace.latency_ns, 0};
    return ESP_OK;
}

ENGINE_FN void engine_unlink(engine_comm *m) {
    engine_comm **at = &m->job->comms;
    while (*at && *at != m) at = &(*at)->next;
    if (*at) *at = m->next;
}
ENGINE_FN void engine_free(engine_comm *m) {
    const esp_host *h = m->host;
    uint64_t n = (uint64_t)m->size;
    if (m->head) m->drop_region(m);
    engine_release(h, m->scratch, m->scratch_bytes);
    engine_release(h, m->job_rank, n * sizeof *m->job_rank);
    engine_release(h, m->ring_rank, n * sizeof *m->ring_rank);
    engine_release(h, m->order, n * sizeof *m->order);
    engine_release(h, m->pid, n * sizeof *m->pid);
    engine_release(h, m->bells, n * sizeof *m->bells);
    engine_release(h, m->nics, n * sizeof *m->nics);
    engine_release(h, m->used, n * sizeof *m->used);
    engine_release(h, m->flows, 2 * n * sizeof *m->flows);
    engine_release(h, m->hello, n * sizeof *m->hello);
    engine_outer_free(m);
    engine_release(h, m, sizeof *m);
}
/* The comm of level 0 owns the bells and links of all comms, so its memory stays until the last comm of the job is
 * closed. */
ENGINE_FN void engine_close(void *comm) {
    engine_comm *m = (engine_comm *)comm;
    if (!m) return;
    engine_job *j = m->job;
    if (j) {
        if (engine_running(m)) engine_fail(m, ESP_E_STATE);
        engine_unlink(m);
        if (m != j->owner) engine_free(m);
        if (--j->refs) return;
        m = j->owner;
        engine_wait_close(j);
        engine_release(m->host, j, sizeof *j);
    }
    engine_free(m);
}

/* Makes a comm that has no region yet. */
ENGINE_FN esp_status engine_new(const esp_host *h, const esp_group *g, const char *name, engine_comm **out) {
    *out = NULL;
    if (g->size < 1 || g->rank < 0 || g->rank >= g->size || g->size > ENGINE_RANKS)
        return engine_say(h, name, ESP_E_ARG, "rank %d of %d: the group is malformed (at most %d ranks)", (int)g->rank,
                          (int)g->size, (int)ENGINE_RANKS);
    uint64_t n = (uint64_t)g->size;
    engine_comm *m = (engine_comm *)engine_alloc(h, sizeof *m);
    if (!m) return engine_say(h, name, ESP_E_NOMEM, "no memory for a communicator");
    m->host = h, m->name = name, m->rank = g->rank, m->size = g->size, m->waits_for = -1, m->simd = esp_simd_level();
    m->job_rank = (int32_t *)engine_alloc(h, n * sizeof *m->job_rank);
    m->ring_rank = (int32_t *)engine_alloc(h, n * sizeof *m->ring_rank);
    m->order = (int32_t *)engine_alloc(h, n * sizeof *m->order);
    m->pid = (int32_t *)engine_alloc(h, n * sizeof *m->pid);
    m->bells = (engine_bell **)engine_alloc(h, n * sizeof *m->bells);
    m->nics = (engine_nic **)engine_alloc(h, n * sizeof *m->nics);
    m->used = (uint64_t *)engine_alloc(h, n * sizeof *m->used);
    m->hello = (engine_hello *)engine_alloc(h, n * sizeof *m->hello);
    m->flows = (engine_flow *)engine_alloc(h, 2 * n * sizeof *m->flows);
    m->scratch_bytes = 4 * (uint64_t)ENGINE_CHUNK;
    m->scratch = engine_alloc(h, m->scratch_bytes);
    if (m->job_rank && m->ring_rank && m->order && m->pid && m->bells && m->nics && m->used && m->hello && m->flows &&
        m->scratch) {
        m->sum_acc = (uint8_t *)m->scratch; /* halves are summed as f32: twice the bytes */
        m->sum_in = m->sum_acc + 2 * ENGINE_CHUNK;
        if (engine_outer_open(m, g) == ESP_OK) {
            *out = m;
            return ESP_OK;
        }
    }
    engine_free(m);
    return engine_say(h, name, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)n);
}

/* Gives every rank's hello to every rank. Returns the same status on all of them. */
ENGINE_FN esp_status engine_exchange(engine_comm *m, const esp_group *g, const engine_hello *mine) {
    const engine_hello *all = m->hello;
    const int32_t ranks = g->parent ? ((engine_comm *)g->parent)->size : m->size;
    m->hello[0] = *mine;
    esp_status s = m->size > 1 ? g->oob_allgather(g->user, mine, m->hello, sizeof *mine) : ESP_OK;
    if (s != ESP_OK) return s == ESP_E_PEER || mine->status == ESP_OK ? s : mine->status;
    for (int32_t q = 0; q < m->size; q++) {
        m->pid[q] = all[q].pid, m->job_rank[q] = all[q].job_rank;
        if (all[q].job_rank < 0 || all[q].job_rank >= ranks)
            return engine_say(m->host, m->name, ESP_E_MISMATCH, "rank %d says it is rank %d of a job of %d", (int)q,
                              (int)all[q].job_rank, (int)ranks);
        if (all[q].status == ESP_OK) continue;
        if (mine->status != ESP_OK) return mine->status;
        return engine_say(m->host, m->name, all[q].status, "rank %d could not open: see its own error",
                          (int)all[q].job_rank);
    }
    return ESP_OK;
}
/* Fails unless `params` are the same on every rank. */
ENGINE_FN esp_status engine_same_params(engine_comm *m) {
    for (int32_t q = 1; q < m->size; q++)
        if (m->hello[q].params != m->hello[0].params)
            return engine_say(m->host, m->name, ESP_E_MISMATCH,
                              "ranks 0 and %d were given different parameters: make them the same", (int)q);
    return ESP_OK;
}

/* Orders ranks so that those of one machine, and of one rack, are side by side, machines in the order of their first rank. A ring
 * in this order enters and leaves each machine once. */
ENGINE_FN void engine_ring_order(engine_comm *m, const esp_group *g) {
    for (int32_t a = 0; a < m->size; a++) {
        int32_t at = a;
        m->machines += engine_unit(g, 1, a) == a;
        for (; at > 0 && engine_ring_before(m, g, a, m->ring_rank[at - 1]); at--)
            m->ring_rank[at] = m->ring_rank[at - 1];
        m->ring_rank[at] = a;
    }
}

/* Joins the job: lays out the region, finds bells and links. The region is zeroed memory. */
ENGINE_FN esp_status engine_join(engine_comm *m, const esp_group *g, void *region) {
    engine_comm *parent = (engine_comm *)g->parent;
    uint64_t n = (uint64_t)m->size;
    m->head = (engine_head *)region;
    m->region_bytes = engine_region_bytes(m->size);
    m->lines = (engine_line *)(void *)(engine_nics(m->head, m->size) + ENGINE_NICS * n);
    m->windows = (uint8_t *)(m->lines + n);
    m->cells = engine_cells(m->size);
    engine_ring_order(m, g);
    if (parent) {
        m->job = parent->job;
    } else {
        m->job = (engine_job *)engine_alloc(m->host, sizeof *m->job);
        if (!m->job) return engine_say(m->host, m->name, ESP_E_NOMEM, "no memory for a communicator");
        m->job->owner = m;
        m->job->wait_fd = m->job->socket = m->job->timer = m->job->sender = -1;
        m->job->bell = engine_bells(m->head) + m->rank;
        m->job->spin = m->size <= (int32_t)esp__cores();
    }
    for (int32_t q = 0; q < m->size; q++) {
        m->bells[q] = parent ? parent->bells[m->job_rank[q]] : engine_bells(m->head) + q;
        m->nics[q] = parent ? parent->nics[m->job_rank[q]] : engine_nics(m->head, m->size) + engine_unit(g, 1, q);
    }
    m->link.opened_ns = parent ? parent->link.opened_ns : m->hello[0].opened_ns;
    if (m->machines < 2) m->pace.on = 0;
    engine_outer_join(m, g, parent, engine_nics(m->head, m->size));
    if (m->pace.on) m->reach = ENGINE_REACH_WINDOW; /* the emulated link is slower than any copy, so windows do */
    m->job->refs++;
    m->next = m->job->comms;
    m->job->comms = m;
    return ESP_OK;
}
#endif
