/* wait_fd.h: a file descriptor for a thread that sleeps on several backends. Until somebody asks for it, it costs nothing: a
 * rank that sleeps in progress() is woken through a futex, as wait.h says.
 *
 * progress(comm, 0) reads the descriptor empty, sets `asleep` of the rank's bell to POLLED, and then moves what can be moved. A
 * peer that finds POLLED after its counter moved sets `asleep` to 0 and sends one byte to the socket that the bell names, so
 * there is at most one byte for every progress(comm, 0), and no change between that call and poll() is lost. The socket has a
 * name and not a number: a peer that is late cannot write into another file of this process.
 *
 * What happens without a peer is told too: start() and wake() send a byte to their own rank, and data that is under way on
 * the emulated link arrives by a timer. */
#ifndef ENGINE_WAIT_FD_H
#define ENGINE_WAIT_FD_H

ENGINE_FN void engine_wait_close(engine_job *j) {
    if (j->wait_fd >= 0) ENGINE_STORE(&j->bell->asleep, ENGINE_AWAKE);
    if (j->wait_fd >= 0 && j->wait_fd != j->socket) close(j->wait_fd);
    if (j->timer >= 0) close(j->timer);
    if (j->socket >= 0) close(j->socket);
    if (j->sender >= 0) close(j->sender);
    j->wait_fd = j->timer = j->socket = j->sender = -1;
}
/* With an emulated link, a timer belongs to it: epoll makes one descriptor of the two. */
ENGINE_FN int engine_wait_timer(engine_job *j) {
    struct epoll_event ev;
    memset(&ev, 0, sizeof ev);
    ev.events = EPOLLIN;
    j->wait_fd = epoll_create1(EPOLL_CLOEXEC);
    j->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    return j->wait_fd < 0 || j->timer < 0 || epoll_ctl(j->wait_fd, EPOLL_CTL_ADD, j->socket, &ev) ||
           epoll_ctl(j->wait_fd, EPOLL_CTL_ADD, j->timer, &ev);
}
ENGINE_FN int32_t engine_wait_fd(void *comm) {
    engine_comm *m = (engine_comm *)comm;
    engine_job *j = m->job;
    if (j->wait_fd >= 0) return j->wait_fd;
    j->socket = engine_local_bound(SOCK_DGRAM, j->bell->socket);
    if (j->socket < 0 || (j->owner->pace.on && engine_wait_timer(j))) {
        engine_say(m->host, m->name, ESP_OK, "no descriptor to wait on: %s", strerror(errno));
        engine_wait_close(j);
        return -1;
    }
    if (j->wait_fd < 0) j->wait_fd = j->socket;
    ENGINE_STORE(&j->bell->asleep, ENGINE_POLLED);
    engine_poke_self(j); /* readable until the first progress(comm, 0) */
    return j->wait_fd;
}

/* progress(comm, 0) of a rank that has a descriptor: makes it unreadable, unless more can be moved at once. */
ENGINE_FN void engine_wait_arm(engine_job *j) {
    enum { ROUNDS = 2, READS = 64 }; /* of at most ENGINE_BUDGET bytes a comm; of bytes that anybody may send */
    char bytes[16];
    int pending, more = 1;
    uint64_t due = UINT64_MAX;
    for (int i = 0; i < READS && recv(j->socket, bytes, sizeof bytes, MSG_DONTWAIT) >= 0; i++) {
    }
    ENGINE_STORE(&j->bell->asleep, ENGINE_POLLED);
    ENGINE_STORE(&j->woken, 0u); /* the caller looks at everything now */
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
#endif
