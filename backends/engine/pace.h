/* pace.h: the emulated link. Every machine has one. Its ranks share its rate, which holds in each direction; each
 * dependent hop costs the latency. Time is logical: a piece begins at its predecessor's logical end, however late
 * this thread wakes, so the scheduler's delays do not lower the rate. Nothing is locked: a link is two times,
 * advanced by compare-and-swap. A link may change while a job runs, at given times or when its file changes. A piece
 * then takes what the link has at the piece's logical begin. Collectives are still cut and routed for the link as it
 * was at the start, since all ranks must do this alike. */
#ifndef ENGINE_PACE_H
#define ENGINE_PACE_H

/* Reads "1gbit", "2.5mbit", "9600kbit": bits a second, or 0 where the text is malformed. */
ENGINE_FN double engine_parse_rate(const char *s) {
    char *end;
    double v = strtod(s, &end);
    double k = !strcmp(end, "gbit")   ? 1e9
               : !strcmp(end, "mbit") ? 1e6
               : !strcmp(end, "kbit") ? 1e3
               : !strcmp(end, "bit")  ? 1
                                      : 0;
    return end != s && v > 0 && v < 1e9 ? v * k : 0;
}
/* Reads "50us", "1.5ms", "0us": nanoseconds, at most `most`, or a negative number where the text is malformed. */
ENGINE_FN double engine_parse_span(const char *s, double most) {
    char *end;
    double v = strtod(s, &end);
    double k = !strcmp(end, "us") ? 1e3 : !strcmp(end, "ms") ? 1e6 : !strcmp(end, "s") ? 1e9 : -1;
    return end != s && v >= 0 && v * k <= most && k > 0 ? v * k : -1;
}
ENGINE_FN double engine_parse_time(const char *s) { return engine_parse_span(s, 1e10); }

/* Copies the text from *at up to one of `stops` to `out`, and moves *at there. */
ENGINE_FN void engine_parse_word(const char **at, const char *stops, char *out, size_t cap) {
    size_t n = strcspn(*at, stops);
    snprintf(out, cap, "%.*s", (int)engine_min(n, cap - 1), *at);
    *at += n;
}
/* Reads "RATE[,LATENCY]", and after each ';' "RATE[,LATENCY]@TIME" with rising times. Returns NULL, or what is
 * expected at *where. */
ENGINE_FN const char *engine_parse_phases(const char *text, engine_link *l, const char **where) {
    const char *at = text;
    char word[32];
    for (l->n = 0;; at++) {
        engine_phase *p = &l->phases[l->n];
        *where = at;
        if (l->n == ENGINE_PHASES) return "no more than 16 of them";
        engine_parse_word(&at, ",;@\n", word, sizeof word);
        double bits = engine_parse_rate(word), ns = 0, from = 0;
        if (bits <= 0) return "a rate, as in 1gbit, 100mbit or 64kbit";
        if (*at == ',') {
            *where = ++at;
            engine_parse_word(&at, ",;@\n", word, sizeof word);
            if ((ns = engine_parse_time(word)) < 0) return "a latency up to 10s, as in 50us or 1ms";
        }
        *where = at;
        if (l->n && *at != '@') return "'@' and the time from which it holds, as in 100mbit,50us@30s";
        if (!l->n && *at == '@') return "no time: the first one holds from the start";
        if (*at == '@') {
            *where = ++at;
            engine_parse_word(&at, ",;@\n", word, sizeof word);
            from = engine_parse_span(word, 1e15);
            if (from < 0) return "a time, as in 30s or 500ms";
            if ((uint64_t)from <= p[-1].from_ns) return "a later time than the one before";
        }
        *p = (engine_phase){8e9 / bits, (uint64_t)ns, (uint64_t)from};
        l->n++;
        *where = at;
        if (*at == ',' || *at == '@') return "';' or the end";
        if (*at != ';') return NULL;
    }
}
/* Reads the link's present state from the file's first line. Returns NULL, or what is wrong. */
ENGINE_FN const char *engine_read_link(const char *path, engine_link *l) {
    char text[ENGINE_LINK_MAX];
    const char *where;
    FILE *f = fopen(path, "re");
    if (!f) return strerror(errno);
    char *got = fgets(text, sizeof text, f);
    fclose(f);
    if (!got) return "it is empty";
    const char *wrong = engine_parse_phases(text, l, &where);
    return wrong ? wrong : l->n > 1 ? "a file holds one rate and latency" : NULL;
}
/* Reads the file again every 100 ms. While the file is malformed the link stays as it is. */
ENGINE_FN void engine_link_look(engine_comm *m, uint64_t now) {
    engine_link *l = &m->link, read;
    if (now < l->looked_ns + 100000000u) return;
    l->looked_ns = now;
    const char *wrong = engine_read_link(l->file, &read);
    if (!wrong)
        l->phases[0] = read.phases[0];
    else if (!l->warned)
        engine_say(m->host, m->name, ESP_OK, "the link's file %s cannot be used (%s): the link stays as it was",
                   l->file, wrong);
    l->warned = wrong != NULL;
}
/* A link at a logical time. */
ENGINE_FN const engine_phase *engine_phase_at(const engine_link *l, uint64_t opened_ns, uint64_t ns) {
    int k = l->n - 1;
    while (k > 0 && ns < opened_ns + l->phases[k].from_ns) k--;
    return &l->phases[k];
}
ENGINE_FN const engine_phase *engine_link_at(const engine_comm *m, uint64_t ns) {
    return engine_phase_at(&m->link, m->link.opened_ns, ns);
}

/* Gives the link `ns` of work that may begin at `from`. Returns when the work ends. */
ENGINE_FN uint64_t engine_reserve(uint64_t *free_ns, uint64_t from, uint64_t ns) {
    uint64_t old = ENGINE_LOAD(free_ns), end;
    do end = engine_max(old, from) + ns;
    while (!__atomic_compare_exchange_n(free_ns, &old, end, 1, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return end;
}

/* Gives `bytes`, ready at `from`, to the links of a sender and a receiver. Returns when both are done, without the latency. */
ENGINE_FN uint64_t engine_pass(engine_nic *tx, engine_nic *rx, const engine_link *l, uint64_t opened_ns, uint64_t from,
                               uint64_t bytes) {
    uint64_t start = engine_max(from, ENGINE_LOAD(&tx->tx_free_ns));
    uint64_t ns = (uint64_t)((double)bytes * engine_phase_at(l, opened_ns, start)->ns_per_byte + 0.5);
    uint64_t sent = engine_reserve(&tx->tx_free_ns, from, ns);
    uint64_t received = engine_reserve(&rx->rx_free_ns, from, ns);
    return engine_max(sent, received);
}
#endif
