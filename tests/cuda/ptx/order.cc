/* order.cc checks that accesses of different threads to the same bytes in one launch are ordered, unless none writes or
 * all are atomic. Barriers order the threads of a block, __syncwarp() those of a warp; votes and shuffles order
 * nothing. Blocks are ordered by a counter: what a thread or its block did before a fence, and then an atomic operation
 * on the counter, is ordered before what follows another block's atomic operation on it and a fence.
 *
 * Each word of four bytes has a cell with its last write and two reads since; a word that is also accessed in parts
 * has a cell for each byte. */
#include "tests/cuda/ptx/ptx.h"
#include "tests/cuda/emulator/host.h"
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <unordered_map>
#include <vector>

/* ---- accesses ---------------------------------------------------------------------------------------------------- */
/* By which thread, after how many of its barriers, warp barriers and fences. what: PTX_READ and so on, plus 1; 0: none
 */
struct event {
    uint32_t block, thread : 10, barriers : 22, warps : 20, fences : 12, what : 2, place : 30;
};
struct cell {
    event write, read[2];
};
enum { WORDS = 256, PAGE = 4 * WORDS, SLOTS = 1 << 20, MOST_PAGES = SLOTS / 2, KEPT_PAGES = SLOTS / 32 };
struct page {
    uintptr_t number;
    uint64_t time; /* the cells are of this launch or, for shared memory, of this block */
    cell words[WORDS];
    std::unique_ptr<cell[]> bytes; /* four for each word that is split */
    bool split[WORDS];
};
static page *pages[SLOTS], *last[2];
static std::vector<std::unique_ptr<page>> owned;

static page *find_page(uintptr_t number, uint64_t time) {
    page *&recent = last[number & 1];
    if (!recent || recent->number != number) {
        uint32_t slot = (uint32_t)((number * 0x9E3779B97F4A7C15u) >> 44);
        while (pages[slot] && pages[slot]->number != number) slot = (slot + 1) % SLOTS;
        if (!pages[slot]) {
            if (owned.size() == MOST_PAGES) fprintf(stderr, "ptx: too much memory to check\n"), abort();
            owned.push_back(std::make_unique<page>());
            pages[slot] = owned.back().get();
            pages[slot]->number = number;
        }
        recent = pages[slot];
    }
    if (recent->time != time) {
        recent->time = time;
        memset((void *)recent->words, 0, sizeof recent->words);
        memset(recent->split, 0, sizeof recent->split);
    }
    return recent;
}

/* Call it between launches: what earlier ones accessed no longer counts. */
static void forget_pages(void) {
    if (owned.size() < KEPT_PAGES) return;
    owned.clear();
    memset(pages, 0, sizeof pages);
    last[0] = last[1] = NULL;
}

/* ---- threads and blocks ------------------------------------------------------------------------------------------ */
/* What a block had fenced when it changed a counter */
struct release {
    uint32_t block, before_barrier;
    std::vector<uint16_t> fences; /* of each thread: its accesses before this many fences */
};
/* The first n releases by a counter, which a thread has seen after so many barriers */
struct view {
    const std::vector<release> *by;
    size_t n;
    uint32_t thread, barriers;
};
static struct thread {
    uint32_t barriers, warps, fences, barriers_at_fence;
    std::vector<view> seen;
} threads[1024];
static std::unordered_map<uintptr_t, std::vector<release>> counters;
static std::vector<view> unfenced, seen; /* by this block: without a fence since, and with one */
static uint64_t this_launch, this_block;
static uint32_t block, fences;

void ptx_order_enter(void) {
    if (this_block == cuda_host_block_number) return;
    this_block = cuda_host_block_number;
    if (this_launch != cuda_host_launch_number) counters.clear(), forget_pages();
    this_launch = cuda_host_launch_number;
    block = blockIdx.y * gridDim.x + blockIdx.x;
    fences = 0, unfenced.clear(), seen.clear();
    for (thread &t : threads) t.barriers = t.warps = t.fences = t.barriers_at_fence = 0, t.seen.clear();
}
void ptx_order_barrier(void) { threads[threadIdx.x].barriers++; }
void ptx_order_warp_barrier(unsigned mask) {
    if (mask == 0xFFFFFFFFu) threads[threadIdx.x].warps++;
}
static bool has(const std::vector<view> &all, const view &v) {
    for (const view &a : all)
        if (a.by == v.by && a.n >= v.n) return true;
    return false;
}
void ptx_order_fence(void) {
    thread &t = threads[threadIdx.x];
    t.fences++, t.barriers_at_fence = t.barriers, fences++;
    for (const view &u : unfenced) {
        const view v = {u.by, u.n, threadIdx.x, t.barriers};
        if (u.thread != threadIdx.x && u.barriers >= t.barriers) continue;
        if (!has(t.seen, v)) t.seen.push_back(v);
        if (!has(seen, v)) seen.push_back(v);
    }
}
/* An atomic operation on global memory publishes what its block has fenced, and sees what others have. */
static void change_counter(uintptr_t at) {
    const thread &me = threads[threadIdx.x];
    const auto known = counters.find(at);
    if (known != counters.end()) unfenced.push_back({&known->second, known->second.size(), threadIdx.x, me.barriers});
    if (!fences) return;
    release r = {block, me.fences ? me.barriers_at_fence : 0, std::vector<uint16_t>(blockDim.x)};
    for (uint32_t i = 0; i < blockDim.x; i++) {
        const thread &t = threads[i];
        if (i == threadIdx.x || t.barriers_at_fence < me.barriers) r.fences[i] = (uint16_t)t.fences;
    }
    counters[at].push_back(std::move(r));
}

/* ---- order ------------------------------------------------------------------------------------------------------- */
static bool published(const view &v, const event &e) {
    for (size_t i = 0; i < v.n; i++) {
        const release &r = (*v.by)[i];
        if (r.block == e.block && (e.barriers < r.before_barrier || e.fences < r.fences[e.thread])) return true;
    }
    return false;
}
static bool ordered(const event &e, const thread &t) {
    if (e.block == block)
        return e.thread == threadIdx.x || e.barriers < t.barriers ||
               (e.thread / 32 == threadIdx.x / 32 && e.warps < t.warps);
    for (const view &v : t.seen)
        if (published(v, e)) return true;
    for (const view &v : seen)
        if (v.barriers < t.barriers && published(v, e)) return true;
    return false;
}
[[noreturn]] static void unordered(const event &was, const event &is, uintptr_t at) {
    static const char *const names[] = {"?", "a read", "a write", "an atomic operation"};
    fprintf(stderr,
            "ptx: not ordered: %s at %s by thread %u of block %u, then %s at %s by thread %u of block %u, of address "
            "%p, in %s\n",
            names[was.what], ptx_place(was.place), was.thread, was.block, names[is.what], ptx_place(is.place),
            is.thread, is.block, (void *)at, ptx_kernel_name());
    abort();
}
static void access(cell *c, const event &is, const thread &t, uintptr_t at) {
    const event &w = c->write;
    const bool atomic = is.what == PTX_ATOMIC + 1;
    if (w.what && !(atomic && w.what == is.what) && !ordered(w, t)) unordered(w, is, at);
    if (is.what == PTX_READ + 1) {
        const event &first = c->read[0];
        c->read[first.what && !ordered(first, t)] = is;
        return;
    }
    for (event &r : c->read)
        if (r.what && !ordered(r, t)) unordered(r, is, at);
    c->write = is, c->read[0].what = c->read[1].what = 0;
}
static void split(page *p, uint32_t word) {
    if (!p->bytes) p->bytes = std::make_unique<cell[]>(PAGE);
    for (int i = 0; i < 4; i++) p->bytes[4 * word + (uint32_t)i] = p->words[word];
    p->split[word] = true;
}
void ptx_order_access(const unsigned char *p, unsigned bytes, int what, int shared, uint32_t place) {
    const thread &t = threads[threadIdx.x];
    const event is = {block, threadIdx.x, t.barriers, t.warps, t.fences, (uint32_t)what + 1, place};
    const uint64_t time = shared ? ~this_block : this_launch;
    uintptr_t at = (uintptr_t)p;
    if (t.barriers >> 22 || t.warps >> 20 || t.fences >> 12) fprintf(stderr, "ptx: too many barriers\n"), abort();
    for (const uintptr_t end = at + bytes; at < end;) {
        page *const g = find_page(at / PAGE, time);
        const uint32_t word = (uint32_t)(at % PAGE) / 4;
        if (bytes < 4 && !g->split[word]) split(g, word);
        if (!g->split[word]) {
            access(&g->words[word], is, t, at);
            at += 4;
        } else {
            const uintptr_t stop = at + (bytes < 4 ? bytes : 4);
            for (; at < stop; at++) access(&g->bytes[at % PAGE], is, t, at);
        }
    }
    if (what == PTX_ATOMIC && !shared) change_counter((uintptr_t)p);
}
