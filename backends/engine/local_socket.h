/* local_socket.h: Unix sockets with random abstract names: they need no file and end with the process. Any process of the
 * machine that guesses a name can send to it. Knows no engine. */
#ifndef ENGINE_LOCAL_SOCKET_H
#define ENGINE_LOCAL_SOCKET_H
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { ENGINE_LOCAL_NAME = 40 };

/* Fills the address and returns its length. An abstract name begins with a zero byte and has no end mark: the length
 * ends it. */
static inline socklen_t engine_local_address(const char *name, struct sockaddr_un *a) {
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    size_t n = strnlen(name, ENGINE_LOCAL_NAME - 1);
    memcpy(a->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}
static inline uint64_t engine_local_random(void) {
    uint64_t x = 0;
    if (syscall(SYS_getrandom, &x, sizeof x, 0) != (long)sizeof x)
        x = (uint64_t)(uintptr_t)&x ^ (uint64_t)getpid() << 32;
    return x;
}
/* close() that keeps errno, for cleaning up after an error */
static inline void engine_local_shut(int fd) {
    int e = errno;
    if (fd >= 0) close(fd);
    errno = e;
}
/* A socket with a random `name`. Returns -1 with errno on error. */
static inline int engine_local_bound(int type, char name[ENGINE_LOCAL_NAME]) {
    struct sockaddr_un a;
    int s = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    snprintf(name, ENGINE_LOCAL_NAME, "espresso.%08x%016llx", (unsigned)(engine_local_random() >> 32),
             (unsigned long long)engine_local_random());
    if (s >= 0 && bind(s, (struct sockaddr *)&a, engine_local_address(name, &a))) {
        engine_local_shut(s);
        s = -1;
    }
    return s;
}
#endif
