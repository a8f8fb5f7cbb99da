/* engine_pace.h: the emulated link. Every machine has one, with a rate in each direction, shared by its ranks; each dependent
 * hop costs the latency. Time is kept logically: a piece follows its predecessor's logical end, however late this thread
 * woke, so no rate is lost to the scheduler. Nothing is locked: a link is two numbers moved by compare-and-swap. */
#ifndef ENGINE_PACE_H
#define ENGINE_PACE_H

/* "1gbit", "2.5mbit", "9600kbit" in bits a second; 0 where it is malformed. */
ENGINE_FN double engine_parse_rate(const char *s) {
    char *end;
    double v = strtod(s, &end);
    double k = !strcmp(end, "gbit") ? 1e9 : !strcmp(end, "mbit") ? 1e6 : !strcmp(end, "kbit") ? 1e3 : 0;
    return end != s && v > 0 && v < 1e9 ? v * k : 0;
}
/* "50us", "1.5ms", "0us" in nanoseconds; negative where it is malformed. */
ENGINE_FN double engine_parse_time(const char *s) {
    char *end;
    double v = strtod(s, &end);
    double k = !strcmp(end, "us") ? 1e3 : !strcmp(end, "ms") ? 1e6 : !strcmp(end, "s") ? 1e9 : -1;
    return end != s && v >= 0 && v * k <= 1e10 && k > 0 ? v * k : -1;
}

/* Gives the link `ns` of work that could begin at `from`; returns when it is through. */
ENGINE_FN uint64_t engine_reserve(uint64_t *free_ns, uint64_t from, uint64_t ns) {
    uint64_t old = ENGINE_LOAD(free_ns), end;
    do end = engine_max(old, from) + ns;
    while (!__atomic_compare_exchange_n(free_ns, &old, end, 1, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return end;
}

/* Gives `bytes` from `rank`, there since `from`, to both links: when they are through, without the latency. */
ENGINE_FN uint64_t engine_transfer(engine_comm *m, int32_t rank, uint64_t from, uint64_t bytes) {
    uint64_t ns = (uint64_t)((double)bytes * m->pace.ns_per_byte + 0.5);
    uint64_t sent = engine_reserve(&m->nics[rank]->tx_free_ns, from, ns);
    uint64_t received = engine_reserve(&m->nics[m->rank]->rx_free_ns, from, ns);
    return engine_max(sent, received);
}
ENGINE_FN void engine_count(engine_comm *m, int32_t rank, uint64_t bytes) {
    if (m->nics[rank] == m->nics[m->rank])
        m->intra_bytes += bytes;
    else
        m->inter_bytes += bytes;
}
#endif
