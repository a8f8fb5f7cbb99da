/* child.h runs a test of backend nccl in its own process, with one version of the stand-in for NCCL (fake/), since a
 * process can load only one. */
#ifndef NCCL_CHILD_H
#define NCCL_CHILD_H
#include "tests/nccl/device_memory.h"
#include "tests/nccl/fake/control.h"

static struct {
    void (*fails)(const char *name, int rank, int result);
    int (*live)(void);
    void (*allocations)(uint64_t left);
    void (*record)(int rank, char *out, size_t cap);
    int (*registered)(void);
    int (*ctas)(void);
    void (*capture)(int on);
} fake;

static void fake_path(char *out, size_t cap, const char *version) {
    const char *build = getenv("ESPRESSO_BUILD");
    snprintf(out, cap, "%s/tests/nccl/%s/libcuda.so.1", build ? build : "./build", version);
}
static void wants(const char *why) {
    if (!why) return;
    fprintf(stderr, "%s\n", why);
    _exit(1);
}
#define WANT(cond)                                                                                                     \
    do {                                                                                                               \
        if (!(cond)) wants(#cond);                                                                                     \
    } while (0)
/* Runs a test in a process with version "new" or "old" of the stand-in, or without it if `version` is NULL. */
static void with(const char *version, void (*test)(void)) {
    char path[4096];
    fake_path(path, sizeof path, version ? version : "");
    const pid_t pid = child_fork(200);
    if (!pid) {
        if (!version) test(), _exit(0);
        setenv("ESPRESSO_NCCL", path, 1);
        ranks_are_threads = true;
        wants(driver_load());
        void *p = dlopen(path, RTLD_NOW);
        if (!p || !nccl_find(p, "fake_fail", &fake.fails) || !nccl_find(p, "fake_remains", &fake.live) ||
            !nccl_find(p, "fake_allocations", &fake.allocations) || !nccl_find(p, "fake_record", &fake.record) ||
            !nccl_find(p, "fake_registered", &fake.registered) || !nccl_find(p, "fake_ctas", &fake.ctas) ||
            !nccl_find(p, "fake_capture", &fake.capture))
            wants("the stand-in lacks its control");
        test();
        if (fake.live()) wants("streams, events, memory or communicators are left");
        exit(0); /* runs the leak check, as _exit() would not */
    }
    assert_int_equal(child_wait(pid), 0);
}
#endif
