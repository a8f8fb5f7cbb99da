/* wait.c: waits until other ranks advance their counters in the shared memory, and wakes ranks that wait for this
 * rank's counters. A waiting rank first spins, then yields, then sleeps on a futex. */
#include "backends/shm/transport.h"
#include "espresso_impl/base/limits.h"
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

static void shm_ring_doorbell(shm_doorbell *b) {
    __atomic_add_fetch(&b->word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &b->word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}
/* Wakes the thread that polls for doorbell `b`, by sending one byte from socket `from`. Returns 0, or -1 with errno. */
static int shm_notify_socket(int from, shm_doorbell *b) {
    struct sockaddr_un a;
    uint32_t polled = SHM_POLLED;
    const char byte = 0;
    ssize_t n;
    if (!__atomic_compare_exchange_n(&b->asleep, &polled, SHM_AWAKE, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 0;
    socklen_t length = shm_local_address(b->socket, &a);
    do n = sendto(from, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&a, length);
    while (n < 0 && errno == EINTR);
    /* EAGAIN means that the socket is full and therefore readable, ECONNREFUSED that its process has ended. */
    if (n == 1 || errno == EAGAIN || errno == ECONNREFUSED) return 0;
    uint32_t awake = SHM_AWAKE;
    __atomic_compare_exchange_n(&b->asleep, &awake, SHM_POLLED, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return -1;
}
static int shm_notify(shm_job *j, shm_doorbell *b) {
    uint32_t how = BACKEND_LOAD(&b->asleep);
    if (how == SHM_ASLEEP) shm_ring_doorbell(b);
    if (how != SHM_POLLED) return 0;
    if (j->sender < 0) j->sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return j->sender < 0 ? -1 : shm_notify_socket(j->sender, b);
}
ESP__FN void shm_notify_self(shm_job *j) {
    if (BACKEND_LOAD(&j->doorbell->asleep) == SHM_POLLED) shm_notify_socket(j->socket, j->doorbell);
}

/* Every wakeup arrives: a counter's store is sequentially consistent, and a rank that goes to sleep sets `asleep`
 * before it reads the counters once more. So either this function sees `asleep`, or the other rank sees the counter. */
ESP__FN void shm_notify_peers(shm_comm *m) {
    m->must_notify = false;
    for (int32_t q = 0; q < m->size; q++)
        if (q != m->rank && BACKEND_LOAD(&m->doorbells[q]->asleep) && shm_notify(m->job, m->doorbells[q]))
            m->must_notify = true;
}

/* Makes peers stop waiting for this rank and reading its buffers. Waits until none of them reads (they stop after at
 * most one chunk), since the program may free the buffers next. */
ESP__FN void shm_publish_failure(shm_comm *m) {
    uint32_t none = 0;
    if (!m->head || m->size == 1) return;
    BACKEND_STORE(&m->published[m->rank].failed, (uint32_t) - (m->error ? m->error : ESP_E_PEER));
    __atomic_compare_exchange_n(&m->head->broken, &none, (uint32_t)m->rank + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    shm_notify_peers(m);
    if (m->direct)
        for (int32_t q = 0; q < m->size; q++)
            while (q != m->rank && BACKEND_LOAD(&m->published[q].reading)) sched_yield();
}

static void shm_sleep(shm_doorbell *b, uint32_t seen, uint64_t until_ns) {
    struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    syscall(SYS_futex, &b->word, FUTEX_WAIT_BITSET, seen, &t, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* ---- a file descriptor ---- */
/* A thread that waits for several backends polls a file descriptor of each. shm_wait_fd creates this backend's, a
 * datagram socket; ranks without one are woken through a futex. shm_progress with timeout 0 empties the socket and sets
 * `asleep` to SHM_POLLED. A peer that then advances a counter sets SHM_AWAKE and sends one byte, so at most one byte
 * comes from peers between two such calls. shm_start and shm_wake send a byte to their own rank. */
ESP__FN void shm_wait_close(shm_job *j) {
    if (j->wait_fd >= 0) BACKEND_STORE(&j->doorbell->asleep, SHM_AWAKE);
    if (j->wait_fd >= 0 && j->wait_fd != j->socket) close(j->wait_fd);
    if (j->timer >= 0) close(j->timer);
    if (j->socket >= 0) close(j->socket);
    if (j->sender >= 0) close(j->sender);
    j->wait_fd = j->timer = j->socket = j->sender = -1;
}
/* With an emulated link, a timer must also wake the waiting thread, at the time when data arrive: makes an epoll
 * descriptor of the socket and a timer. Returns nonzero on an error. */
static int shm_wait_timer(shm_job *j) {
    struct epoll_event ev;
    memset(&ev, 0, sizeof ev);
    ev.events = EPOLLIN;
    j->wait_fd = epoll_create1(EPOLL_CLOEXEC);
    j->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return j->wait_fd < 0 || j->timer < 0 || epoll_ctl(j->wait_fd, EPOLL_CTL_ADD, j->socket, &ev) ||
           epoll_ctl(j->wait_fd, EPOLL_CTL_ADD, j->timer, &ev);
}
ESP__FN int32_t shm_wait_fd(void *comm) {
    shm_comm *m = (shm_comm *)comm;
    shm_job *j = m->job;
    if (j->wait_fd >= 0) return j->wait_fd;
    j->socket = shm_local_bound(SOCK_DGRAM, j->doorbell->socket);
    if (j->socket < 0 || (j->owner->pace.on && shm_wait_timer(j))) {
        backend_error(m, ESP_OK, "no descriptor to wait on: %s", esp__strerror(errno));
        shm_wait_close(j);
        return -1;
    }
    if (j->wait_fd < 0) j->wait_fd = j->socket;
    BACKEND_STORE(&j->doorbell->asleep, SHM_POLLED);
    shm_notify_self(j);
    return j->wait_fd;
}

/* Makes the descriptor unreadable, moves what it can, and makes the descriptor readable again if more can be moved at
 * once. Any process can send to the socket, so the number of reads is bounded. */
static void shm_wait_arm(shm_job *j) {
    enum { ROUNDS = 2, READS = 64 };
    char bytes[16];
    int pending, more = 1;
    uint64_t due = UINT64_MAX;
    for (int i = 0; i < READS && recv(j->socket, bytes, sizeof bytes, MSG_DONTWAIT) >= 0; i++) {
    }
    BACKEND_STORE(&j->doorbell->asleep, SHM_POLLED);
    BACKEND_STORE(&j->woken, 0u);
    for (int i = 0; more && i < ROUNDS; i++) more = shm_drive_all(j, &pending, &due) & SHM_MOVED;
    if (more) shm_notify_self(j);
    if (j->timer >= 0) {
        struct itimerspec at;
        memset(&at, 0, sizeof at);
        if (due != UINT64_MAX)
            at.it_value.tv_sec = (time_t)(due / 1000000000u), at.it_value.tv_nsec = (long)(due % 1000000000u);
        timerfd_settime(j->timer, TFD_TIMER_ABSTIME, &at, NULL);
    }
}

/* ---- the backend table ---- */
enum { SHM_SPINS = 64, SHM_YIELDS = 64 }; /* checks before a sleep */

static bool shm_woken(shm_job *j) { return __atomic_exchange_n(&j->woken, 0u, __ATOMIC_SEQ_CST) != 0; }
ESP__FN esp_status shm_progress(void *comm, uint64_t timeout_us) {
    shm_comm *m = (shm_comm *)comm;
    shm_job *j = m->job;
    int pending;
    uint64_t due, until = 0;
    if (j->wait_fd >= 0 && !timeout_us) return shm_wait_arm(j), ESP_OK;
    for (int i = j->spin ? 0 : SHM_SPINS; i < SHM_SPINS + SHM_YIELDS; i++) {
        if (shm_woken(j) | shm_drive_all(j, &pending, &due)) return ESP_OK;
        if (!pending) break;
        if (i < SHM_SPINS)
            shm_relax();
        else
            sched_yield();
    }
    until = backend_now_ns() + backend_min(timeout_us, 3600000000u) * 1000u;
    if (m->pace.on) prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    for (;;) {
        uint32_t seen = BACKEND_LOAD(&j->doorbell->word);
        BACKEND_STORE(&j->doorbell->asleep, SHM_ASLEEP);
        int again = shm_woken(j) | shm_drive_all(j, &pending, &due);
        uint64_t now = backend_now_ns(), end = backend_min(until, due);
        if (again || now >= until) break;
        /* A sleep takes about 50 us, so a shorter wait for the link yields instead. */
        if (end > now + 60000)
            shm_sleep(j->doorbell, seen, due < until ? end - 30000 : end);
        else
            sched_yield();
    }
    BACKEND_STORE(&j->doorbell->asleep, j->wait_fd < 0 ? SHM_AWAKE : SHM_POLLED);
    shm_notify_self(j);
    return ESP_OK;
}

ESP__FN void shm_wake(void *comm) {
    shm_job *j = ((shm_comm *)comm)->job;
    BACKEND_STORE(&j->woken, 1u);
    if (BACKEND_LOAD(&j->doorbell->asleep) == SHM_ASLEEP) shm_ring_doorbell(j->doorbell);
    shm_notify_self(j);
}
