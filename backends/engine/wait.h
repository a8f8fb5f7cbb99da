/* wait.h: telling peers that something changed, and sleeping until a peer does: spin briefly, then yield, then futex.
 * Knows counters and bells only, not collectives. */
#ifndef ENGINE_WAIT_H
#define ENGINE_WAIT_H

ENGINE_FN void engine_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}
ENGINE_FN void engine_ring_bell(engine_bell *b) {
    __atomic_add_fetch(&b->word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &b->word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}
/* Makes the descriptor of the polled bell `b` readable. Returns 0, or -1 with errno. Several threads may call with the same
 * `from`. */
ENGINE_FN int engine_poke(int from, engine_bell *b) {
    struct sockaddr_un a;
    uint32_t polled = ENGINE_POLLED;
    const char byte = 0;
    ssize_t n;
    if (!__atomic_compare_exchange_n(&b->asleep, &polled, ENGINE_AWAKE, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 0;
    socklen_t length = engine_local_address(b->socket, &a);
    do n = sendto(from, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&a, length);
    while (n < 0 && errno == EINTR);
    /* EAGAIN: it is full, so readable. ECONNREFUSED: its process is gone */
    if (n == 1 || errno == EAGAIN || errno == ECONNREFUSED) return 0;
    uint32_t awake = ENGINE_AWAKE; /* not told yet: the next call tries again */
    __atomic_compare_exchange_n(&b->asleep, &awake, ENGINE_POLLED, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return -1;
}
/* Tells a rank that sleeps, or polls. */
ENGINE_FN int engine_tell_bell(engine_job *j, engine_bell *b) {
    uint32_t how = ENGINE_LOAD(&b->asleep);
    if (how == ENGINE_ASLEEP) engine_ring_bell(b);
    if (how != ENGINE_POLLED) return 0;
    if (j->sender < 0) j->sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return j->sender < 0 ? -1 : engine_poke(j->sender, b);
}
/* This rank's own descriptor becomes readable, where it has one. */
ENGINE_FN void engine_poke_self(engine_job *j) {
    if (ENGINE_LOAD(&j->bell->asleep) == ENGINE_POLLED) engine_poke(j->socket, j->bell);
}

/* Wakes sleeping peers after a counter of ours moved. The counter's store is sequentially consistent, and a sleeper
 * looks at counters once more after it has set `asleep`: so we see its `asleep`, or it sees our counter. `news` stays where
 * a peer could not be told. */
ENGINE_FN void engine_tell(engine_comm *m) {
    m->news = 0;
    for (int32_t q = 0; q < m->size; q++)
        if (q != m->rank && ENGINE_LOAD(&m->bells[q]->asleep) && engine_tell_bell(m->job, m->bells[q])) m->news = 1;
}

/* This rank gives up a collective that others are in. They must neither wait for this rank nor read its buffers,
 * which the user owns again. A reader that is inside a read finishes within one column, and is waited for. */
ENGINE_FN void engine_give_up(engine_comm *m) {
    uint32_t none = 0;
    if (!m->head || m->size == 1) return;
    ENGINE_STORE(&m->lines[m->rank].gone, (uint32_t) - (m->error ? m->error : ESP_E_PEER));
    __atomic_compare_exchange_n(&m->head->broken, &none, (uint32_t)m->rank + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    engine_tell(m);
    if (m->reach == ENGINE_REACH_POINTER)
        for (int32_t q = 0; q < m->size; q++)
            while (q != m->rank && ENGINE_LOAD(&m->lines[q].reading)) sched_yield();
}

/* Sleeps until the bell's word is no longer `seen`, at most until `until_ns`. */
ENGINE_FN void engine_sleep(engine_bell *b, uint32_t seen, uint64_t until_ns) {
    struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    syscall(SYS_futex, &b->word, FUTEX_WAIT_BITSET, seen, &t, NULL, FUTEX_BITSET_MATCH_ANY);
}
#endif
