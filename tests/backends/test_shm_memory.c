/* test_shm_memory.c checks that a rank accepts shared memory from another process only if it is of the same user, has
 * the right size, and the size cannot change. */
#include "tests/lib/test.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* some included functions are not called */
#include "backends/shm/transport.h"
#pragma GCC diagnostic pop
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { BYTES = 1 << 16 };

/* The kinds of memory, right and wrong, that a process sends. */
enum {
    GIVES_RIGHT,
    GIVES_SHORT,
    GIVES_LONG,
    GIVES_FILE,
    GIVES_UNSEALED,
    GIVES_PIPE,
    GIVES_TWO,
    GIVES_NONE,
    GIVES_KINDS
};
static int make(int kind) {
    char path[] = "/tmp/espresso-shm-XXXXXX";
    int ends[2], fd;
    switch (kind) {
    case GIVES_SHORT: return shm_create(BYTES / 2);
    case GIVES_LONG: return shm_create(BYTES * 2);
    case GIVES_FILE:
        fd = mkstemp(path);
        unlink(path);
        return fd >= 0 && ftruncate(fd, BYTES) == 0 ? fd : -1;
    case GIVES_UNSEALED:
        fd = (int)syscall(SYS_memfd_create, "plain", 1u);
        return fd >= 0 && ftruncate(fd, BYTES) == 0 ? fd : -1;
    case GIVES_PIPE: return pipe(ends) == 0 ? ends[0] : -1;
    default: return shm_create(BYTES);
    }
}
static int give_more(int listener, int fd, int n) {
    int s = accept(listener, NULL, NULL), fds[2] = {fd, fd};
    char byte = 'm', data[CMSG_SPACE(sizeof fds)];
    struct iovec io = {&byte, 1};
    struct msghdr msg;
    memset(&msg, 0, sizeof msg);
    memset(data, 0, sizeof data);
    msg.msg_iov = &io, msg.msg_iovlen = 1;
    if (n) {
        msg.msg_control = data, msg.msg_controllen = sizeof data;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fds);
        memcpy(CMSG_DATA(c), fds, sizeof fds);
    }
    n = sendmsg(s, &msg, MSG_NOSIGNAL) == 1;
    close(s);
    return n ? 0 : -1;
}
static int ask_and_take(const char *name, const char **why) {
    int s = shm_connect(name, why);
    struct pollfd p = {s, POLLIN, 0};
    if (s < 0) return -1;
    poll(&p, 1, 20000);
    int fd = shm_receive_memory(s, BYTES, why);
    close(s);
    return fd;
}
/* Waits at most 20 s for a connection and sends the descriptor to it. */
static int give_once(int listener, int fd) {
    struct pollfd p = {listener, POLLIN, 0};
    return poll(&p, 1, 20000) == 1 ? shm_send_to_all(listener, fd) : -1;
}
static pid_t giver(int kind, uid_t uid, char name[SHM_LOCAL_NAME]) {
    int ends[2];
    pid_t pid;
    assert_int_equal(pipe(ends), 0);
    if (!(pid = child_fork(0))) {
        if (uid && (setgid(uid) != 0 || setuid(uid) != 0)) _exit(3);
        int listener = shm_listen(name, 1), fd = make(kind);
        if (listener < 0 || fd < 0 || write(ends[1], name, SHM_LOCAL_NAME) < 0) _exit(4);
        _exit(kind == GIVES_TWO    ? give_more(listener, fd, 2)
              : kind == GIVES_NONE ? give_more(listener, fd, 0)
                                   : give_once(listener, fd) != 0);
    }
    assert_int_equal(read(ends[0], name, SHM_LOCAL_NAME), SHM_LOCAL_NAME);
    close(ends[0]);
    close(ends[1]);
    return pid;
}

TEST(test_kinds) {
    static const char *const words[GIVES_KINDS] = {
        NULL,        "another size", "another size", "a file, not memory", "its size may change",
        "no memory", NULL,           "none came"};
    if (!shm_has_seals()) test_skip("this system has no seals");
    for (int kind = 0; kind < GIVES_KINDS; kind++) {
        char name[SHM_LOCAL_NAME];
        const char *why = NULL;
        const int before = test_count_files("/proc/self/fd", "");
        pid_t pid = giver(kind, 0, name);
        int fd = ask_and_take(name, &why);
        if ((fd >= 0) != !words[kind]) fprintf(stderr, "kind %d: %d, %s\n", kind, fd, why ? why : "");
        assert_int_equal(fd >= 0, !words[kind]);
        if (words[kind]) assert_non_null(strstr(why, words[kind]));
        if (fd >= 0) {
            assert_int_equal(ftruncate(fd, BYTES / 2), -1); /* no process can shrink mapped memory */
            assert_int_equal(ftruncate(fd, BYTES * 2), -1);
            close(fd);
        }
        child_wait(pid);
        assert_int_equal(test_count_files("/proc/self/fd", ""), before);
    }
}

/* Beyond the limit on file sizes, a System V segment replaces the memfd: nothing of it is left, and a rank takes only
 * that of its job. */
TEST(test_segments) {
    const char *why = NULL;
    int segment = -1;
    shm_head *mine = shm_segment_create(BYTES, &segment);
    assert_non_null(mine);
    mine->number = 7;
    assert_null(shm_segment_attach(segment, BYTES, 8, &why));
    assert_non_null(strstr(why, "it is another one"));
    assert_null(shm_segment_attach(segment, BYTES * 2, 7, &why));
    shm_head *other = shm_segment_attach(segment, BYTES, 7, &why);
    assert_non_null(other);
    assert_ptr_not_equal(other, mine);
    other->broken = 5;
    assert_int_equal(mine->broken, 5);
    munmap(mine, BYTES);
    munmap(other, BYTES);
    assert_null(shm_segment_attach(segment, BYTES, 7, &why));
}

TEST(test_from_others) {
    char name[SHM_LOCAL_NAME];
    const char *why = NULL;
    pid_t pid;
    if (geteuid() != 0) test_skip("needs root, to start a process of another user");
    pid = giver(GIVES_RIGHT, 65534, name);
    assert_int_equal(ask_and_take(name, &why), -1);
    assert_non_null(strstr(why, "the process that answers belongs to another user"));
    kill(pid, SIGKILL);
    child_wait(pid);
}

TEST(test_to_others) {
    char name[SHM_LOCAL_NAME];
    const char *why = NULL;
    int listener, fd, status;
    pid_t other, rank;
    if (geteuid() != 0) test_skip("needs root, to start a process of another user");
    fd = shm_create(BYTES);
    listener = shm_listen(name, 1);
    assert_true(fd >= 0 && listener >= 0);
    assert_int_equal(shm_send_to_all(listener, fd), 0);
    if (!(other = child_fork(0))) {
        if (setgid(65534) != 0 || setuid(65534) != 0) _exit(3);
        for (int i = 0; i < 50; i++) {
            struct sockaddr_un a;
            int s = socket(AF_UNIX, SOCK_STREAM, 0), got;
            if (connect(s, (struct sockaddr *)&a, shm_local_address(name, &a)) != 0) _exit(4);
            if ((got = shm_receive_fd(s)) >= 0) _exit(1);
            close(s);
        }
        _exit(0);
    }
    if (!(rank = child_fork(0))) {
        close(fd);
        usleep(20000);
        for (int i = 0; i < 2000; i++) {
            int got = ask_and_take(name, &why);
            if (got >= 0) _exit(0);
            usleep(1000);
        }
        _exit(1);
    }
    for (int i = 0; i < 20000 && waitpid(rank, &status, WNOHANG) == 0; i++, usleep(1000))
        assert_int_equal(shm_send_to_all(listener, fd), 0);
    assert_int_equal(status, 0);
    for (int i = 0; i < 100; i++, usleep(1000)) shm_send_to_all(listener, fd);
    close(listener);
    const int ended = child_wait(other);
    /* The child exits with 1 if it got memory, 0 if it never did, and 4 after the listener has closed. */
    assert_true(ended == 0 || ended == 4);
    close(fd);
}
