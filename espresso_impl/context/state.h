/* state.h: the format of files of esp_state_save, little-endian, each piece padded with zeros to 8 bytes:
 *     esp__state_head
 *     the strategy's text
 *     per tensor: esp__state_tensor, name, and a residual that the strategy has not used yet (count floats), if any
 *     per compression in the strategy: esp__state_comp, residual (count floats) and the codec's state, if any
 *     of an outer context: esp__state_outer, then per tensor the anchor, and the outer momentum if there is one
 *         (count floats each), then the pushed differences or means of the fragment that is not yet applied, if any
 *     u64 checksum of all pieces before it */
#ifndef ESP__STATE_H
#define ESP__STATE_H
#include "espresso_impl/strategy/strategy.h"

enum { ESP__STATE_VERSION = 3, ESP__STATE_RESIDUAL = 1, ESP__STATE_CODEC = 2 };
static const char esp__state_magic[8] = {'E', 'S', 'P', 'S', 'T', 'A', 'T', 'E'};

typedef struct esp__state_head {
    char magic[8];
    uint32_t version;
    int32_t rank, size;
    uint32_t n_tensors, n_feedback;
    uint32_t text_bytes;
    uint64_t step, seed, strategy_hash;
    uint64_t body_bytes; /* bytes between head and checksum */
    uint64_t head_sum;
} esp__state_head;

typedef struct esp__state_tensor {
    uint64_t count;
    uint32_t name_bytes, has_pending;
} esp__state_tensor;

typedef struct esp__state_comp {
    esp__extent place;
    uint64_t codec, option;
    uint32_t comp_index, n_ranges, raw, owner_replica;
    uint64_t offset, count, state_bytes;
    uint32_t has, reserved0;
} esp__state_comp;

/* esp__state_outer.flags; CHOSEN: the library chose every, fragments and delay */
enum { ESP__STATE_MOMENTUM = 1, ESP__STATE_CHOSEN = 2 };
typedef struct esp__state_outer {
    uint32_t every, fragments, delay, flags;
    uint32_t at, left, pushed, applied;
} esp__state_outer;

static inline uint64_t esp__state_padded(uint64_t n) { return (n + 7u) / 8u * 8u; }

/* A checksum over 8-byte words, fast enough for gigabytes. It finds every single wrong word. */
static inline uint64_t esp__state_sum(uint64_t sum, const void *data, uint64_t n) {
    const uint8_t *p = (const uint8_t *)data;
    for (uint64_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        memcpy(&word, p + i, n - i < 8 ? (size_t)(n - i) : 8);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
        sum ^= sum >> 32;
    }
    return sum;
}
#endif
