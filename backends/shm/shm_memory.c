/* shm_memory.c: creates memory that several processes share, and passes it between them. Rank 0 creates a memfd, which
 * vanishes with the last process that uses it, and sends its descriptor over a local socket. A memfd is a file: if the
 * limit on file sizes forbids it, System V shared memory replaces it, whose number the other ranks need. */
#include "backends/shm/transport.h"
#include "espresso_impl/base/limits.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- Unix sockets with random abstract names ---- */
/* Returns the length of the address of an abstract socket, which needs no file and vanishes with its process. Its
 * name begins with a zero byte and has no terminating zero. */
ESP__FN socklen_t shm_local_address(const char *name, struct sockaddr_un *a) {
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    size_t n = strnlen(name, SHM_LOCAL_NAME - 1);
    memcpy(a->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}
ESP__FN uint64_t shm_local_random(void) {
    uint64_t x = 0;
    if (syscall(SYS_getrandom, &x, sizeof x, 0) != (long)sizeof x)
        x = (uint64_t)(uintptr_t)&x ^ (uint64_t)getpid() << 32;
    return x;
}
ESP__FN void shm_local_close(int fd) {
    int e = errno;
    if (fd >= 0) close(fd);
    errno = e;
}
ESP__FN int shm_local_bound(int type, char name[SHM_LOCAL_NAME]) {
    struct sockaddr_un a;
    int s = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    snprintf(name, SHM_LOCAL_NAME, "espresso.%08x%016llx", (unsigned)(shm_local_random() >> 32),
             (unsigned long long)shm_local_random());
    if (s >= 0 && bind(s, (struct sockaddr *)&a, shm_local_address(name, &a))) {
        shm_local_close(s);
        s = -1;
    }
    return s;
}

/* ---- memory ---- */
/* Seals (fcntl(2)) fix the size of a memfd, so that no peer can shrink it while others access their mappings. */
enum { SHM_ADD_SEALS = 1033, SHM_GET_SEALS = 1034, SHM_SEAL_SIZE = 2 | 4, SHM_SEAL_SEALS = 1 };

ESP__FN int shm_create(uint64_t bytes) {
    int fd = (int)syscall(SYS_memfd_create, "espresso", 3u /* with MFD_CLOEXEC and MFD_ALLOW_SEALING */);
    esp__held_signals held;
    esp__signals_hold(&held); /* beyond the limit on file sizes, ftruncate then returns an error and raises no signal */
    if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
        shm_local_close(fd);
        fd = -1;
    }
    esp__signals_release(&held);
    if (fd >= 0) (void)fcntl(fd, SHM_ADD_SEALS, SHM_SEAL_SIZE | SHM_SEAL_SEALS); /* some sandboxes have no seals */
    return fd;
}
ESP__FN bool shm_has_seals(void) {
    int fd = shm_create(4096), seals = fd < 0 ? -1 : fcntl(fd, SHM_GET_SEALS);
    shm_local_close(fd);
    return seals >= 0 && (seals & SHM_SEAL_SIZE) == SHM_SEAL_SIZE;
}
/* Returns NULL if `fd` is memory that shm_create made, of this user and size; otherwise an error text. */
static const char *shm_invalid(int fd, uint64_t bytes) {
    struct stat st;
    int seals;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return "it is no memory";
    if (st.st_uid != geteuid() && st.st_uid != 0) return "it belongs to another user";
    if ((uint64_t)st.st_size != bytes) return "it has another size: do all ranks run the same version?";
    if (!shm_has_seals()) return NULL;
    seals = fcntl(fd, SHM_GET_SEALS);
    if (seals < 0) return "it is a file, not memory";
    return (seals & SHM_SEAL_SIZE) == SHM_SEAL_SIZE ? NULL : "its size may change";
}
/* A segment that is marked as removed vanishes with the last process that has attached it, and Linux lets other
 * processes attach it until then. */
ESP__FN void *shm_segment_create(uint64_t bytes, int *segment) {
    *segment = shmget(IPC_PRIVATE, bytes, 0600);
    if (*segment < 0) return NULL;
    void *p = shmat(*segment, NULL, 0);
    shmctl(*segment, IPC_RMID, NULL);
    return p == (void *)-1 ? NULL : p;
}
/* The number may name another segment, if the ranks are in different IPC namespaces: then its random number differs. */
ESP__FN void *shm_segment_attach(int segment, uint64_t bytes, uint64_t number, const char **why) {
    struct shmid_ds ds;
    void *p = (void *)-1;
    if (shmctl(segment, IPC_STAT, &ds) != 0 || (p = shmat(segment, NULL, 0)) == (void *)-1)
        *why = esp__strerror(errno);
    else if (ds.shm_perm.uid != geteuid() && ds.shm_perm.uid != 0)
        *why = "it belongs to another user";
    else if (ds.shm_segsz != bytes || ((const shm_head *)p)->number != number)
        *why = "it is another one: do the ranks share an IPC namespace?";
    else
        return p;
    if (p != (void *)-1) shmdt(p);
    return NULL;
}
ESP__FN int shm_listen(char name[SHM_LOCAL_NAME], int backlog) {
    int s = shm_local_bound(SOCK_STREAM, name);
    if (s >= 0 && listen(s, backlog)) {
        shm_local_close(s);
        s = -1;
    }
    return s;
}
/* Returns true if the peer runs as this user or root: processes of other users could connect, too, but must not get the
 * memory. */
static bool shm_same_user(int s) {
    struct {
        pid_t pid;
        uid_t uid;
        gid_t gid;
    } who;
    socklen_t n = sizeof who;
    return !getsockopt(s, SOL_SOCKET, SO_PEERCRED, &who, &n) && (who.uid == geteuid() || who.uid == 0);
}

typedef union shm_control { /* gives `data` the alignment that CMSG_* macros need */
    char data[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
} shm_control;

/* Prepares a message of one byte and `room` bytes of control data, in which a descriptor travels. */
static struct msghdr shm_message(struct iovec *byte, shm_control *control, size_t room) {
    struct msghdr msg;
    memset(&msg, 0, sizeof msg);
    memset(control, 0, sizeof *control);
    msg.msg_iov = byte, msg.msg_iovlen = 1;
    msg.msg_control = control->data, msg.msg_controllen = room;
    return msg;
}
static int shm_send_fd(int s, int fd) {
    char byte = 'm';
    struct iovec io = {&byte, 1};
    shm_control control;
    struct msghdr msg = shm_message(&io, &control, sizeof control.data);
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    return sendmsg(s, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : -1;
}
ESP__FN int shm_send_to_all(int listener, int fd) {
    for (;;) {
        struct pollfd p = {listener, POLLIN, 0};
        int n = poll(&p, 1, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n;
        int s = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);
        if (s < 0 && (errno == EINTR || errno == ECONNABORTED || errno == EAGAIN)) continue;
        if (s < 0) return -1;
        const int failed = shm_same_user(s) && shm_send_fd(s, fd) && errno != EPIPE && errno != ECONNRESET;
        shm_local_close(s);
        if (failed) return -1;
    }
}
ESP__FN int shm_receive_fd(int s) {
    char byte;
    int fd = -1;
    struct iovec io = {&byte, 1};
    shm_control control;
    /* There is room for one descriptor only: the kernel closes any others that a sender may have added. */
    struct msghdr msg = shm_message(&io, &control, CMSG_LEN(sizeof fd));
    ssize_t n = recvmsg(s, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n == 1 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}
ESP__FN int shm_connect(const char *name, const char **why) {
    struct sockaddr_un a;
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0 || connect(s, (struct sockaddr *)&a, shm_local_address(name, &a)) != 0)
        *why = esp__strerror(errno);
    else if (!shm_same_user(s))
        *why = "the process that answers belongs to another user";
    else
        return s;
    shm_local_close(s);
    return -1;
}
ESP__FN int shm_receive_memory(int s, uint64_t bytes, const char **why) {
    int fd = shm_receive_fd(s);
    *why = fd < 0 ? "none came, or this process has too many files open (see ulimit -n)" : shm_invalid(fd, bytes);
    if (fd < 0 || !*why) return fd;
    shm_local_close(fd);
    return -1;
}
