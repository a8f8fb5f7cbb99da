/* arena.c: allocates the planner's memory in large blocks, which are all freed at once. If an allocation fails, it
 * jumps (longjmp) to where the arena's owner called setjmp, so that no other file needs to check results. */
#include "planner/plan.h"

struct esp__block {
    esp__block *before;
    uint64_t used, size;
    /* the first `dirty` bytes were used before; all others are still zero */
    uint64_t dirty;
};
enum { ESP__BLOCK_HEAD = 64, ESP__BLOCK_BYTES = 1 << 20 };

ESP__FN void *esp__arena_get(esp__arena *arena, uint64_t bytes) {
    esp__block *b = arena->blocks;
    uint64_t want = (bytes + 15u) & ~(uint64_t)15u;
    if (!b || b->size - b->used < want) {
        const uint64_t size = want > ESP__BLOCK_BYTES ? want : (uint64_t)ESP__BLOCK_BYTES;
        if (want >= bytes && arena->spare && arena->spare->size >= want) {
            b = arena->spare;
            arena->spare = NULL;
        } else {
            b = want < bytes || size > SIZE_MAX - ESP__BLOCK_HEAD ? NULL
                : arena->ctx                                      ? esp__alloc(arena->ctx, size + ESP__BLOCK_HEAD)
                                                                  : calloc(1, (size_t)(size + ESP__BLOCK_HEAD));
            if (!b) longjmp(*arena->on_failure, 1);
            b->size = size;
        }
        b->before = arena->blocks;
        b->used = 0;
        arena->blocks = b;
    }
    void *p = (uint8_t *)b + ESP__BLOCK_HEAD + b->used;
    if (b->dirty > b->used) memset(p, 0, (size_t)(b->dirty - b->used < want ? b->dirty - b->used : want));
    b->used += want;
    if (b->used > b->dirty) b->dirty = b->used;
    return p;
}

ESP__FN void *esp__arena_grow(esp__arena *arena, const void *old, uint64_t used, uint64_t bytes) {
    void *more = esp__arena_get(arena, bytes);
    return used ? memcpy(more, old, used) : more;
}

ESP__FN esp__checkpoint esp__arena_checkpoint(const esp__arena *arena) {
    esp__checkpoint m = {arena->blocks, arena->blocks ? arena->blocks->used : 0};
    return m;
}

static void esp__block_free(esp__arena *arena, esp__block *b) {
    if (arena->ctx)
        esp__free(arena->ctx, b);
    else
        free(b);
}

ESP__FN void esp__arena_rewind(esp__arena *arena, esp__checkpoint mark) {
    while (arena->blocks != mark.block) {
        esp__block *last = arena->blocks;
        arena->blocks = last->before;
        esp__block_free(arena, arena->spare);
        arena->spare = last;
    }
    if (arena->blocks) arena->blocks->used = mark.used;
}

ESP__FN void esp__arena_free(esp__arena *arena) {
    esp__checkpoint nothing = {NULL, 0};
    esp__arena_rewind(arena, nothing);
    esp__block_free(arena, arena->spare);
    arena->spare = NULL;
}

ESP__FN char *esp__arena_text(esp__arena *arena, const char *text) {
    size_t n = strlen(text) + 1;
    return memcpy(esp__arena_get(arena, n), text, n);
}
