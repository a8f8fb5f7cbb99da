/* test_process.c checks that a forked child is told apart from the process that opened a context, however it was
 * forked, and without a call of getpid. */
/* runs: quiet */
#include "tests/lib/test.h"
#include <sys/syscall.h>

/* Runs in a child process. Bit 0 of the result is set if the library takes it for the process that opened `parent`, bit
 * 1 if it knows that it opened `mine` itself. Bits 2 and 3 are the same two answers in a child of this child. */
static int child_says(const esp__process *parent) {
    esp__process mine;
    esp__process_open(&mine);
    int says = esp__process_same(parent) | esp__process_same(&mine) << 1;
    pid_t child = fork();
    if (!child) _exit(esp__process_same(parent) | esp__process_same(&mine) << 1);
    says |= child_wait(child) << 2;
    esp__process_close(&mine);
    return says;
}

TEST(children_are_others) {
    for (int kind = 0; kind < 4; kind++) {
        esp__process p;
        esp__process_open(&p);
        void *page = p.page;
        if (kind & 1) p.page = NULL;
        assert_int_equal(esp__process_same(&p), 1);
        pid_t child = kind & 2 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        assert_true(child >= 0);
        if (!child) _exit(child_says(&p));
        assert_int_equal(child_wait(child), 2);
        assert_int_equal(esp__process_same(&p), 1);
        p.page = page;
        esp__process_close(&p);
    }
}

TEST(asks_no_kernel) {
    esp__process p;
    esp__process_open(&p);
    if (!p.page) test_skip("this kernel cannot wipe a page in forked children");
    p.pid = 0;
    assert_int_equal(esp__process_same(&p), 1);
    void *page = p.page;
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    assert_int_equal(msync(page, bytes, MS_ASYNC), 0);
    esp__process_close(&p);
    assert_null(p.page);
    errno = 0;
    assert_int_equal(msync(page, bytes, MS_ASYNC), -1);
    assert_int_equal(errno, ENOMEM);
}
