/* test_nccl.c: backend nccl against a stand-in for NCCL and the CUDA driver (fake/): what it calls, with which counts, in which groups
 * and on which streams, when a call fails, and when ranks are late or gone. This is not NCCL: test_nccl_gpu.c is, where a GPU is.
 *
 * Each test has a process of its own, since a library is loaded once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/wait.h>

#include "tests/nccl/fake/control.h"
#include "tests/nccl/rig.h"

static struct {
    void (*fail)(const char *name, int rank, int result);
    int (*live)(void);
    void (*allocations)(uint64_t left);
} fake;

static void fake_path(char *out, size_t cap, const char *version) {
    const char *build = getenv("ESPRESSO_BUILD");
    snprintf(out, cap, "%s/tests/nccl/%s/libcuda.so.1", build ? build : "./build", version);
}
/* The test's process ends here if `why` is a text. */
static void wants(const char *why) {
    if (!why) return;
    fprintf(stderr, "%s\n", why);
    _exit(1);
}
#define WANT(cond)                                                                                                     \
    do {                                                                                                               \
        if (!(cond)) wants(#cond);                                                                                     \
    } while (0)
/* Runs a test in a process, with version "new" or "old" of the stand-in. */
static void with(const char *version, void (*test)(void)) {
    char path[4096];
    fake_path(path, sizeof path, version);
    fflush(NULL);
    const pid_t pid = fork();
    if (!pid) {
        alarm(200);
        setenv("ESPRESSO_NCCL", path, 1);
        ranks_are_threads = 1;
        wants(rig_load());
        void *p = dlopen(path, RTLD_NOW);
        if (!p || !nccl_find(p, "fake_fail", &fake.fail) || !nccl_find(p, "fake_live", &fake.live) ||
            !nccl_find(p, "fake_allocations", &fake.allocations))
            wants("the stand-in lacks its control");
        test();
        if (fake.live()) wants("streams, events, memory or communicators are left");
        exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- collectives ------------------------------------------------------------------------------------------------------ */
static void all_kinds_of(int device) {
    for (int32_t n = 1; n <= (SANITIZED ? 3 : 5); n += SANITIZED ? 2 : 1) {
        wants(rig_run("", n, 0, all_numbers, device));
        wants(rig_run("", n, 0, all_slots, device));
    }
}
static void host_memory(void) { all_kinds_of(0); }
static void device_memory(void) { all_kinds_of(1); }
static void collectives_host(void **s) { (void)s, with("new", host_memory); }
static void collectives_device(void **s) { (void)s, with("new", device_memory); }
static void collectives_host_old(void **s) { (void)s, with("old", host_memory); }
static void collectives_device_old(void **s) { (void)s, with("old", device_memory); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_host),
        cmocka_unit_test(collectives_device),
        cmocka_unit_test(collectives_host_old),
        cmocka_unit_test(collectives_device_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
