/* same.h: notices ranks that run different collectives at the same time, such as a barrier on one rank and a tensor's allreduce
 * on the others. Every rank shows the number and kind of its collective; each compares it with its peers'. Knows nothing of
 * moving data. */
#ifndef ENGINE_SAME_H
#define ENGINE_SAME_H

/* Number of the collective in the high 32 bits, its op in 8, a hash of what else must agree in 24. */
ENGINE_FN uint64_t engine_call_word(uint64_t number, const esp_coll *c) {
    return number << 32 | (uint64_t)(c->op & 255u) << 24 | engine_call_hash(c) >> 40;
}
/* A collective begins: shows it to the peers, before any of its data. */
ENGINE_FN void engine_call_show(engine_comm *m) {
    m->begun++;
    __atomic_store_n(&m->lines[m->rank].call[m->begun % ENGINE_CALLS], engine_call_word(m->begun, &m->op.c),
                     __ATOMIC_RELEASE);
    m->op.compared = m->size == 1;
}
/* Compares this rank's collective with its peers' of the same number. A peer that is behind is looked at again later; one that is
 * ahead, as the root of a broadcast may be, still shows it. */
ENGINE_FN esp_status engine_call_compare(engine_comm *m) {
    const uint64_t at = m->begun % ENGINE_CALLS, mine = m->lines[m->rank].call[at];
    int behind = 0;
    if (m->op.compared || !m->op.begun) return ESP_OK;
    for (int32_t q = 0; q < m->size; q++) {
        const uint64_t theirs = ENGINE_LOAD(&m->lines[q].call[at]);
        behind += (int32_t)((uint32_t)(theirs >> 32) - (uint32_t)(mine >> 32)) < 0;
        if (theirs >> 32 != mine >> 32 || theirs == mine) continue;
        const uint32_t op = (uint32_t)(theirs >> 24) & 255u;
        return engine_say(m->host, m->name, ESP_E_MISMATCH,
                          "rank %d of %d runs %s%s at the same time as this rank runs %s of %llu items: all ranks must "
                          "make the same calls in the same order",
                          (int)m->job_rank[q], (int)m->size, op == m->op.c.op ? "another " : "", engine_op_name(op),
                          engine_op_name(m->op.c.op), (unsigned long long)m->op.c.count);
    }
    m->op.compared = !behind;
    return ESP_OK;
}
#endif
