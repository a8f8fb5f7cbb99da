/* on_fake_device.h lets the stand-in for NCCL (fake/) work on the memory and streams of the fake device
 * (tests/device). */
#ifndef NCCL_ON_FAKE_DEVICE_H
#define NCCL_ON_FAKE_DEVICE_H
#include "tests/lib/test.h"
#include <dlfcn.h>
#define ESP_DEVKIND_OWN ESP_CUDA /* the kind of the fake device included below */
#include "tests/device/device_job.h"
#include "tests/nccl/fake/control.h"
#include "backends/nccl/nccl.h"
#include "tests/lib/entries.h"

static int launched; /* number of NCCL's kernels on the device's streams */
static void *device_own(const void *p, uint64_t bytes) { return fake_own(p, bytes); }
static void device_launch(void *stream, int (*ready)(void *), int (*run)(void *), const void *arg, size_t bytes) {
    const esp_stream s = {{FAKE_KIND, 0}, stream};
    __atomic_fetch_add(&launched, 1, __ATOMIC_SEQ_CST);
    if (fake_launch_when(s, ready, run, arg, bytes)) abort();
}

/* Sets the environment variables by which the backend finds the stand-in. */
static void standin_choose(void) {
    setenv("ESPRESSO_NCCL", built("tests/nccl/new/libcuda.so.1"), 1);
    setenv("FAKE_SHARED", "1", 1);
}

/* Loads the stand-in into this process, and returns its handle for nccl_find(). */
static void *standin_load(void) {
    static const fake_hooks device = {device_own, device_launch};
    void (*use)(const fake_hooks *);
    void *p = dlopen(getenv("ESPRESSO_NCCL"), RTLD_NOW);
    if (!p || !nccl_find(p, "fake_device_use", &use)) {
        fprintf(stderr, "%s is not there: make it\n", getenv("ESPRESSO_NCCL"));
        _exit(9);
    }
    use(&device);
    return p;
}
#endif
