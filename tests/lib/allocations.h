/* allocations.h counts the allocations of a test program, by functions that replace malloc and call glibc's.
 * COUNTS_ALLOCATIONS is 0 with other C libraries, and with sanitizers, which have their own allocator. */
#ifndef TEST_ALLOCATIONS_H
#define TEST_ALLOCATIONS_H
#include <stdatomic.h>
#include <stdlib.h>
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
static atomic_int counting, allocations; /* allocations that were made while `counting` was 1 */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
static void allocation_seen(void) {
    if (atomic_load(&counting)) atomic_fetch_add(&allocations, 1);
}
void *malloc(size_t n) { return allocation_seen(), __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return allocation_seen(), __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return allocation_seen(), __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { return allocation_seen(), __libc_memalign(a, n); }
#else
#define COUNTS_ALLOCATIONS 0
#endif
#endif
