/* threads.c replaces pthread_create in tests (ld's --wrap) and leaves a mark for run.sh: a test that starts threads
 * must mention tsan in its line "runs:". */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

int __real_pthread_create(pthread_t *t, const pthread_attr_t *how, void *(*body)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *how, void *(*body)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *how, void *(*body)(void *), void *arg) {
    const char *path = getenv("TEST_THREADS");
    const int fd = path ? open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) close(fd);
    return __real_pthread_create(t, how, body, arg);
}
