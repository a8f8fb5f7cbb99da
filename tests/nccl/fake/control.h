/* control.h has the functions by which tests control fake.c, the stand-in for NCCL. */
#ifndef FAKE_CONTROL_H
#define FAKE_CONTROL_H
#include <stddef.h>
#include <stdint.h>

/* Functions by which the stand-in uses memory and streams of another fake device, tests/device/fake.c. */
typedef struct fake_hooks {
    /* Returns the address by which the device's thread can access these bytes, or NULL if they are not this device's
     * memory. */
    void *(*own)(const void *p, uint64_t bytes);
    /* Enqueues a kernel with a copy of its arguments. It runs when `ready` is NULL or returns nonzero. */
    void (*launch)(void *stream, int (*ready)(void *arg), int (*run)(void *arg), const void *arg, size_t bytes);
} fake_hooks;
__attribute__((visibility("default"))) void fake_device_use(const fake_hooks *d);
/* Makes the next call of NCCL function `name` by rank `rank` return `result`. The name "async" stands for the status
 * that ncclCommGetAsyncError returns. */
__attribute__((visibility("default"))) void fake_fail(const char *name, int rank, int result);
/* Behaves as if another thread captured a stream in mode global. */
__attribute__((visibility("default"))) void fake_capture(int on);
/* Returns how many streams, events, blocks of memory and communicators are not freed. */
__attribute__((visibility("default"))) int fake_remains(void);
__attribute__((visibility("default"))) void fake_allocations(uint64_t left);
/* Writes to `out` this rank's calls that moved data since the last fake_record(), such as "ncclAllReduce ". Calls in a
 * group are in parentheses: "(ncclSend ncclRecv ) ". */
__attribute__((visibility("default"))) void fake_record(int rank, char *out, size_t cap);
/* Returns the largest number of blocks, or INT_MIN, that the newest communicator was opened with. */
__attribute__((visibility("default"))) int fake_ctas(void);
/* Returns how many buffers passed to NCCL were in registered memory. */
__attribute__((visibility("default"))) int fake_registered(void);
#endif
