/* wait.c: telling peers that something changed, and sleeping until a peer does: spin briefly, then yield, then futex.
 * Knows counters and bells only, not collectives. */
#include "backends/shm/transport.h"
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

static void engine_ring_bell(engine_bell *b) {
    __atomic_add_fetch(&b->word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &b->word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}
/* Makes the descriptor of the polled bell `b` readable. Returns 0, or -1 with errno. Several threads may call with the same
 * `from`. */
static int engine_poke(int from, engine_bell *b) {
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
static int engine_tell_bell(engine_job *j, engine_bell *b) {
    uint32_t how = BACKEND_LOAD(&b->asleep);
    if (how == ENGINE_ASLEEP) engine_ring_bell(b);
    if (how != ENGINE_POLLED) return 0;
    if (j->sender < 0) j->sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return j->sender < 0 ? -1 : engine_poke(j->sender, b);
}
ESP__FN void engine_poke_self(engine_job *j) {
    if (BACKEND_LOAD(&j->bell->asleep) == ENGINE_POLLED) engine_poke(j->socket, j->bell);
}

/* Wakes sleeping peers after a counter of ours moved. The counter's store is sequentially consistent, and a sleeper
 * looks at counters once more after it has set `asleep`: so we see its `asleep`, or it sees our counter. `news` stays where
 * a peer could not be told. */
ESP__FN void engine_tell(engine_comm *m) {
    m->news = 0;
    for (int32_t q = 0; q < m->size; q++)
        if (q != m->rank && BACKEND_LOAD(&m->bells[q]->asleep) && engine_tell_bell(m->job, m->bells[q])) m->news = 1;
}

/* This rank gives up a collective that others are in. They must neither wait for this rank nor read its buffers,
 * which the user owns again. A reader that is inside a read finishes within one column, and is waited for. */
ESP__FN void engine_give_up(engine_comm *m) {
    uint32_t none = 0;
    if (!m->head || m->size == 1) return;
    BACKEND_STORE(&m->lines[m->rank].gone, (uint32_t) - (m->error ? m->error : ESP_E_PEER));
    __atomic_compare_exchange_n(&m->head->broken, &none, (uint32_t)m->rank + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    engine_tell(m);
    if (m->reach == ENGINE_REACH_POINTER)
        for (int32_t q = 0; q < m->size; q++)
            while (q != m->rank && BACKEND_LOAD(&m->lines[q].reading)) sched_yield();
}

/* Sleeps until the bell's word is no longer `seen`, at most until `until_ns`. */
static void engine_sleep(engine_bell *b, uint32_t seen, uint64_t until_ns) {
    struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    syscall(SYS_futex, &b->word, FUTEX_WAIT_BITSET, seen, &t, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* ---- a file descriptor ---- */
/* A file descriptor for a thread that sleeps on several backends. Until somebody asks for it, it costs nothing: a
 * rank that sleeps in progress() is woken through a futex.
 *
 * progress(comm, 0) reads the descriptor empty, sets `asleep` of the rank's bell to POLLED, and then moves what can be moved. A
 * peer that finds POLLED after its counter moved sets `asleep` to 0 and sends one byte to the socket that the bell names, so
 * there is at most one byte for every progress(comm, 0), and no change between that call and poll() is lost. The socket has a
 * name and not a number: a peer that is late cannot write into another file of this process.
 *
 * What happens without a peer is told too: start() and wake() send a byte to their own rank, and data that is under way on
 * the emulated link arrives by a timer. */
ESP__FN void engine_wait_close(engine_job *j) {
    if (j->wait_fd >= 0) BACKEND_STORE(&j->bell->asleep, ENGINE_AWAKE);
    if (j->wait_fd >= 0 && j->wait_fd != j->socket) close(j->wait_fd);
    if (j->timer >= 0) close(j->timer);
    if (j->socket >= 0) close(j->socket);
    if (j->sender >= 0) close(j->sender);
    j->wait_fd = j->timer = j->socket = j->sender = -1;
}
/* With an emulated link, a timer belongs to it: epoll makes one descriptor of the two. */
static int engine_wait_timer(engine_job *j) {
    struct epoll_event ev;
    memset(&ev, 0, sizeof ev);
    ev.events = EPOLLIN;
    j->wait_fd = epoll_create1(EPOLL_CLOEXEC);
    j->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return j->wait_fd < 0 || j->timer < 0 || epoll_ctl(j->wait_fd, EPOLL_CTL_ADD, j->socket, &ev) ||
           epoll_ctl(j->wait_fd, EPOLL_CTL_ADD, j->timer, &ev);
}
ESP__FN int32_t engine_wait_fd(void *comm) {
    engine_comm *m = (engine_comm *)comm;
    engine_job *j = m->job;
    if (j->wait_fd >= 0) return j->wait_fd;
    j->socket = engine_local_bound(SOCK_DGRAM, j->bell->socket);
    if (j->socket < 0 || (j->owner->pace.on && engine_wait_timer(j))) {
        backend_error(m, ESP_OK, "no descriptor to wait on: %s", strerror(errno));
        engine_wait_close(j);
        return -1;
    }
    if (j->wait_fd < 0) j->wait_fd = j->socket;
    BACKEND_STORE(&j->bell->asleep, ENGINE_POLLED);
    engine_poke_self(j); /* readable until the first progress(comm, 0) */
    return j->wait_fd;
}

/* progress(comm, 0) of a rank that has a descriptor: makes it unreadable, unless more can be moved at once. */
static void engine_wait_arm(engine_job *j) {
    enum { ROUNDS = 2, READS = 64 }; /* of at most ENGINE_BUDGET bytes a comm; of bytes that anybody may send */
    char bytes[16];
    int pending, more = 1;
    uint64_t due = UINT64_MAX;
    for (int i = 0; i < READS && recv(j->socket, bytes, sizeof bytes, MSG_DONTWAIT) >= 0; i++) {
    }
    BACKEND_STORE(&j->bell->asleep, ENGINE_POLLED);
    BACKEND_STORE(&j->woken, 0u); /* the caller looks at everything now */
    for (int i = 0; more && i < ROUNDS; i++) more = engine_drive_all(j, &pending, &due) & ENGINE_MOVED;
    if (more) engine_poke_self(j);
    if (j->timer >= 0) {
        struct itimerspec at;
        memset(&at, 0, sizeof at);
        if (due != UINT64_MAX)
            at.it_value.tv_sec = (time_t)(due / 1000000000u), at.it_value.tv_nsec = (long)(due % 1000000000u);
        timerfd_settime(j->timer, TFD_TIMER_ABSTIME, &at, NULL);
    }
}

/* ---- the backend table ---- */
enum { ENGINE_SPINS = 64, ENGINE_YIELDS = 64 }; /* before a sleep */

static int engine_woken(engine_job *j) { return __atomic_exchange_n(&j->woken, 0u, __ATOMIC_SEQ_CST) != 0; }
ESP__FN esp_status engine_progress(void *comm, uint64_t timeout_us) {
    engine_comm *m = (engine_comm *)comm;
    engine_job *j = m->job;
    int pending;
    uint64_t due, until = 0;
    if (j->wait_fd >= 0 && !timeout_us) return engine_wait_arm(j), ESP_OK;
    for (int i = j->spin ? 0 : ENGINE_SPINS; i < ENGINE_SPINS + ENGINE_YIELDS; i++) {
        if (engine_woken(j) | engine_drive_all(j, &pending, &due)) return ESP_OK;
        if (!pending) break;
        if (i < ENGINE_SPINS)
            engine_relax();
        else
            sched_yield();
    }
    until = backend_now_ns() + backend_min(timeout_us, 3600000000u) * 1000u;
    if (m->pace.on) prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    for (;;) {
        uint32_t seen = BACKEND_LOAD(&j->bell->word);
        BACKEND_STORE(&j->bell->asleep, ENGINE_ASLEEP);
        int again = engine_woken(j) | engine_drive_all(j, &pending, &due);
        uint64_t now = backend_now_ns(), end = backend_min(until, due);
        if (again || now >= until) break;
        /* a sleep costs about 50 us, so a shorter wait for the link yields instead */
        if (end > now + 60000)
            engine_sleep(j->bell, seen, due < until ? end - 30000 : end);
        else
            sched_yield();
    }
    BACKEND_STORE(&j->bell->asleep, j->wait_fd < 0 ? ENGINE_AWAKE : ENGINE_POLLED);
    engine_poke_self(j);
    return ESP_OK;
}

ESP__FN void engine_wake(void *comm) {
    engine_job *j = ((engine_comm *)comm)->job;
    BACKEND_STORE(&j->woken, 1u);
    if (BACKEND_LOAD(&j->bell->asleep) == ENGINE_ASLEEP) engine_ring_bell(j->bell);
    engine_poke_self(j);
}
