/* control.h: how tests control the stand-in for NCCL. */
#ifndef FAKE_CONTROL_H
#define FAKE_CONTROL_H
#include <stddef.h>
#include <stdint.h>

/* Another device's memory and streams: that of tests/device/fake.c. */
typedef struct fake_hooks {
    /* where its thread can access the bytes, or NULL for other memory */
    void *(*own)(const void *p, uint64_t bytes);
    /* Enqueues a kernel with a copy of its arguments. It runs when ready(), unless NULL, returns nonzero. */
    void (*launch)(void *stream, int (*ready)(void *arg), int (*run)(void *arg), const void *arg, size_t bytes);
} fake_hooks;
__attribute__((visibility("default"))) void fake_device_use(const fake_hooks *d);
/* Makes the rank's next call of this function return `result`, or for "async" the state of its communicator. */
__attribute__((visibility("default"))) void fake_fail(const char *name, int rank, int result);
/* How many streams, events, blocks of memory and communicators there are. */
__attribute__((visibility("default"))) int fake_remains(void);
/* How many allocations succeed from now on. */
__attribute__((visibility("default"))) void fake_allocations(uint64_t left);
/* The calls that moved data, by this rank (of whatever communicator) in this process since the last fake_record:
 * "ncclAllReduce ", or "(ncclSend ncclRecv ) " of a group. */
__attribute__((visibility("default"))) void fake_record(int rank, char *out, size_t cap);
/* How many buffers of calls lay in memory that was registered with their communicator. */
__attribute__((visibility("default"))) int fake_registered(void);
#endif
