/* control.h lets tests control the stand-in for NCCL. */
#ifndef FAKE_CONTROL_H
#define FAKE_CONTROL_H
#include <stddef.h>
#include <stdint.h>

/* Memory and streams of another device, the one of tests/device/fake.c. */
typedef struct fake_hooks {
    /* Returns where the device's thread can access the bytes, or NULL for other memory. */
    void *(*own)(const void *p, uint64_t bytes);
    /* Enqueues a kernel with a copy of its arguments. It runs when `ready` is NULL or returns nonzero. */
    void (*launch)(void *stream, int (*ready)(void *arg), int (*run)(void *arg), const void *arg, size_t bytes);
} fake_hooks;
__attribute__((visibility("default"))) void fake_device_use(const fake_hooks *d);
/* Makes the rank's next call of this function return `result`, or for "async" sets its communicator's state to it. */
__attribute__((visibility("default"))) void fake_fail(const char *name, int rank, int result);
/* Returns how many streams, events, blocks of memory and communicators are not freed. */
__attribute__((visibility("default"))) int fake_remains(void);
/* Sets how many allocations succeed from now on. */
__attribute__((visibility("default"))) void fake_allocations(uint64_t left);
/* Writes to `out` the calls of this rank that moved data since the last fake_record, on all communicators:
 * "ncclAllReduce ", or "(ncclSend ncclRecv ) " for a group. */
__attribute__((visibility("default"))) void fake_record(int rank, char *out, size_t cap);
/* Returns how many buffers of calls were in memory that was registered with their communicator. */
__attribute__((visibility("default"))) int fake_registered(void);
#endif
