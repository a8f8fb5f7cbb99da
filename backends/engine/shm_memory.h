/* shm_memory.h: memory that several processes share. Rank 0 makes it as a memfd, which has no name and ends with the
 * last process that has it open. Rank 0 sends its descriptor over a local socket. Knows no engine. */
#ifndef SHM_MEMORY_H
#define SHM_MEMORY_H
#include "backends/engine/local_socket.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

enum { SHM_WAIT_MS = 30000 };

/* Makes memory of `bytes` zeros. Returns its descriptor, or -1 with errno. */
static int shm_make(uint64_t bytes) {
    int fd = (int)syscall(SYS_memfd_create, "espresso", 1u /* MFD_CLOEXEC */);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
        engine_local_shut(fd);
        fd = -1;
    }
    return fd;
}
/* Opens a socket at which others ask for the memory, with a random `name`. Returns -1 with errno on error. */
static int shm_listen(char name[ENGINE_LOCAL_NAME], int backlog) {
    int s = engine_local_bound(SOCK_STREAM, name);
    if (s >= 0 && listen(s, backlog)) {
        engine_local_shut(s);
        s = -1;
    }
    return s;
}
/* 1: the peer has our user id. Any user who guesses an abstract name can connect, but only our own user gets the
 * memory. */
static int shm_is_us(int s) {
    struct {
        pid_t pid;
        uid_t uid;
        gid_t gid;
    } who;
    socklen_t n = sizeof who;
    return !getsockopt(s, SOL_SOCKET, SO_PEERCRED, &who, &n) && (who.uid == geteuid() || who.uid == 0);
}

typedef union shm_control { /* CMSG_* macros need the alignment of cmsghdr */
    char data[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
} shm_control;

/* Gives `fd` to the next process that asks. Returns 0, or -1 with errno. */
static int shm_give(int listener, int fd) {
    for (;;) {
        struct pollfd p = {listener, POLLIN, 0};
        int n = poll(&p, 1, SHM_WAIT_MS);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ETIMEDOUT;
        if (n <= 0) return -1;
        int s = accept(listener, NULL, NULL);
        if (s < 0) continue;
        if (!shm_is_us(s)) {
            close(s);
            continue;
        }
        char byte = 'm';
        struct iovec io = {&byte, 1};
        shm_control control;
        struct msghdr msg;
        memset(&msg, 0, sizeof msg);
        memset(&control, 0, sizeof control);
        msg.msg_iov = &io, msg.msg_iovlen = 1;
        msg.msg_control = control.data, msg.msg_controllen = sizeof control.data;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
        (void)sendmsg(s, &msg, MSG_NOSIGNAL); /* fails if the process has died, which others notice */
        engine_local_shut(s);
        return 0;
    }
}
/* Asks for the memory. Returns a socket at which it will arrive, or -1 with errno. */
static int shm_ask(const char *name) {
    struct sockaddr_un a;
    struct timeval limit = {SHM_WAIT_MS / 1000, 0};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0) return -1;
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(s, (struct sockaddr *)&a, engine_local_address(name, &a)) == 0 && shm_is_us(s)) return s;
    engine_local_shut(s);
    return -1;
}
/* Takes the memory, and closes the socket. Returns its descriptor, or -1 with errno. */
static int shm_take(int s) {
    int fd = -1;
    char byte;
    struct iovec io = {&byte, 1};
    shm_control control;
    struct msghdr msg;
    memset(&msg, 0, sizeof msg);
    msg.msg_iov = &io, msg.msg_iovlen = 1;
    msg.msg_control = control.data, msg.msg_controllen = sizeof control.data;
    ssize_t n = recvmsg(s, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n == 1 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    else if (n >= 0)
        errno = ECONNRESET;
    engine_local_shut(s);
    return fd;
}
#endif
