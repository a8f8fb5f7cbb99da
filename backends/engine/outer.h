/* outer.h: emulated links between racks, for jobs of three levels. Data between two racks passes the links of both machines and of
 * both racks; the slowest of them decides. In a job of two levels nothing here differs from pace.h. */
#ifndef ENGINE_OUTER_H
#define ENGINE_OUTER_H

/* The outermost level at which the rank's place differs from this rank's. */
ENGINE_FN uint32_t engine_level(const engine_comm *m, int32_t rank) {
    return m->outer.level ? m->outer.level[rank] : m->nics[rank] == m->nics[m->rank] ? 1 : 2;
}

/* Does data between the rank and this rank pass an emulated link of racks? */
ENGINE_FN bool engine_leaves_rack(const engine_comm *m, int32_t rank) {
    return m->outer.link.n && engine_level(m, rank) > 2;
}

/* Gives `bytes` of `rank`, ready at `from`, to all links between it and this rank. Returns when the last of them is done, without
 * the latency. */
ENGINE_FN uint64_t engine_transfer(engine_comm *m, int32_t rank, uint64_t from, uint64_t bytes) {
    uint64_t opened = m->link.opened_ns;
    uint64_t end = engine_pass(m->nics[rank], m->nics[m->rank], &m->link, opened, from, bytes);
    engine_nic **nics = m->outer.nics;
    if (engine_leaves_rack(m, rank))
        end = engine_max(end, engine_pass(nics[rank], nics[m->rank], &m->outer.link, opened, from, bytes));
    return end;
}

/* The latency between the rank and this rank at a logical time: that of the slowest link between them. */
ENGINE_FN uint64_t engine_latency(const engine_comm *m, int32_t rank, uint64_t ns) {
    uint64_t latency = engine_link_at(m, ns)->latency_ns;
    if (engine_leaves_rack(m, rank))
        latency = engine_max(latency, engine_phase_at(&m->outer.link, m->link.opened_ns, ns)->latency_ns);
    return latency;
}

ENGINE_FN void engine_count(engine_comm *m, int32_t rank, uint64_t bytes) {
    if (m->nics[rank] == m->nics[m->rank])
        m->intra_bytes += bytes;
    else
        m->inter_bytes += bytes;
    m->outer.bytes[engine_level(m, rank) - 1] += bytes;
}

/* ---- opening ---- */
/* The lowest rank in the same unit of `level` (1: machine, 2: rack) as rank q. */
ENGINE_FN int32_t engine_unit(const esp_group *g, uint32_t level, int32_t q) {
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

/* Notes the job's levels, and where in them this group's ranks are. */
ENGINE_FN esp_status engine_outer_open(engine_comm *m, const esp_group *g) {
    uint64_t size = (uint64_t)m->size;
    m->outer.on = g->place && g->n_levels > 2;
    if (!m->outer.on) return ESP_OK;
    m->outer.level = (uint8_t *)engine_alloc(m->host, size);
    m->outer.nics = (engine_nic **)engine_alloc(m->host, size * sizeof *m->outer.nics);
    if (!m->outer.level || !m->outer.nics)
        return engine_say(m->host, m->name, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)size);
    for (int32_t q = 0; q < m->size; q++) {
        uint32_t level = 1;
        for (uint32_t k = 1; k <= 2; k++)
            if (engine_unit(g, k, q) != engine_unit(g, k, m->rank)) level = k + 1;
        m->outer.level[q] = (uint8_t)level;
    }
    return ESP_OK;
}
ENGINE_FN void engine_outer_free(engine_comm *m) {
    engine_release(m->host, m->outer.level, (uint64_t)m->size);
    engine_release(m->host, m->outer.nics, (uint64_t)m->size * sizeof *m->outer.nics);
}

/* Finds the links in `nics`, the region's [ENGINE_NICS][size], or the parent's. Then collectives are planned for the slowest link
 * that this group crosses. */
ENGINE_FN void engine_outer_join(engine_comm *m, const esp_group *g, const engine_comm *parent, engine_nic *nics) {
    const engine_phase *first = &m->outer.link.phases[0];
    bool crossed = false;
    if (!m->outer.on) return;
    for (int32_t q = 0; q < m->size; q++) {
        m->outer.nics[q] = parent ? parent->outer.nics[m->job_rank[q]] : nics + m->size + engine_unit(g, 2, q);
        crossed |= engine_unit(g, 2, q) != engine_unit(g, 2, 0);
    }
    if (!crossed || !m->outer.link.n) return;
    m->pace.on = 1;
    if (first->ns_per_byte > m->pace.ns_per_byte) m->pace.ns_per_byte = first->ns_per_byte;
    m->pace.latency_ns = engine_max(m->pace.latency_ns, first->latency_ns);
}

/* Does rank a come before b in a ring that enters and leaves every unit of every level once? */
ENGINE_FN int engine_ring_before(const engine_comm *m, const esp_group *g, int32_t a, int32_t b) {
    for (uint32_t k = m->outer.on ? 2 : 1; k >= 1; k--) {
        int32_t x = engine_unit(g, k, a), y = engine_unit(g, k, b);
        if (x != y) return x < y;
    }
    return a < b;
}
#endif
