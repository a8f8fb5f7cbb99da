/* guard.h allocates memory between two guard zones. With the address sanitizer every access to them is an error.
 * Without it, writes are detected when the memory is freed. */
#ifndef ESPRESSO_TESTS_FUZZ_GUARD_H
#define ESPRESSO_TESTS_FUZZ_GUARD_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SANITIZE_ADDRESS__)
#define GUARD_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GUARD_POISONS 1
#endif
#endif
#ifdef GUARD_POISONS
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { GUARD_ZONE = 4096, GUARD_BYTE = 0x5c };

typedef struct guarded {
    uint8_t *data, *all;
    uint64_t bytes, whole;
} guarded;

/* Allocates memory whose address modulo 64 is `misaligned`. */
static inline guarded guard_new(uint64_t bytes, uint32_t misaligned) {
    guarded g = {NULL, NULL, bytes, 2 * GUARD_ZONE + (bytes + misaligned + 63) / 64 * 64};
    g.all = aligned_alloc(64, g.whole);
    if (!g.all) abort();
    memset(g.all, GUARD_BYTE, g.whole);
    g.data = g.all + GUARD_ZONE + misaligned;
    ASAN_POISON_MEMORY_REGION(g.all, g.whole);
    ASAN_UNPOISON_MEMORY_REGION(g.all + GUARD_ZONE, misaligned + bytes);
    if (misaligned >= 8) ASAN_POISON_MEMORY_REGION(g.all + GUARD_ZONE, misaligned / 8 * 8);
    return g;
}

static inline void guard_free(guarded *g, const char *what) {
    ASAN_UNPOISON_MEMORY_REGION(g->all, g->whole);
    const uint8_t *end = g->all + g->whole;
    for (const uint8_t *p = g->all; p < end; p++) {
        if (p == g->data) p += g->bytes;
        if (p < end && *p != GUARD_BYTE) {
            fprintf(stderr, "fuzz: a byte was written %td bytes from the begin of %s, which has %llu bytes\n",
                    p - g->data, what, (unsigned long long)g->bytes);
            abort();
        }
    }
    free(g->all);
    memset(g, 0, sizeof *g);
}
#endif
