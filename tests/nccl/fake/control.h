/* control.h lets tests control the stand-in for NCCL. */
#ifndef FAKE_CONTROL_H
#define FAKE_CONTROL_H
#include <stddef.h>
#include <stdint.h>

/* Functions of another device, whose memory and streams the stand-in then uses: that of tests/device/fake.c. */
typedef struct fake_hooks {
    /* Returns the address at which the device's thread accesses these bytes, or NULL if they are in other memory. */
    void *(*own)(const void *p, uint64_t bytes);
    /* Enqueues a kernel with a copy of its arguments. It runs when `ready` is NULL or returns nonzero. */
    void (*launch)(void *stream, int (*ready)(void *arg), int (*run)(void *arg), const void *arg, size_t bytes);
} fake_hooks;
__attribute__((visibility("default"))) void fake_device_use(const fake_hooks *d);
/* Makes the rank's next call of function `name` return `result`. "async" sets the state of its communicator instead. */
__attribute__((visibility("default"))) void fake_fail(const char *name, int rank, int result);
/* Returns how many streams, events, blocks of memory and communicators are not freed. */
__attribute__((visibility("default"))) int fake_remains(void);
__attribute__((visibility("default"))) void fake_allocations(uint64_t left);
/* Writes to `out` this rank's calls that moved data since the last fake_record(), such as "ncclAllReduce ". Calls in a
 * group are in parentheses: "(ncclSend ncclRecv ) ". */
__attribute__((visibility("default"))) void fake_record(int rank, char *out, size_t cap);
/* Returns how many buffers in calls were in memory that was registered with the communicator. */
__attribute__((visibility("default"))) int fake_registered(void);
#endif
