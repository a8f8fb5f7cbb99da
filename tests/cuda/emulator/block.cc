/* block.cc runs the threads of a CUDA block as fibers (threads that switch without the system), in a random order drawn
 * from the seed. A fiber runs until it reaches a barrier, a warp operation or, at random, an atomic operation. */
#include "tests/cuda/emulator/host.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define FIBERS_TOLD 1
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define FIBERS_MSAN 1
#include <sanitizer/msan_interface.h>
#endif
#endif

/* ---- fibers ------------------------------------------------------------------------------------------------------ */
enum { STACK = 256 * 1024, MOST = 1024 };
#if defined(__x86_64__)
extern "C" void cuda_host_switch(void **save, void *to);
asm(".text\n.p2align 4\n.hidden cuda_host_switch\n.globl cuda_host_switch\n.type cuda_host_switch,@function\n"
    "cuda_host_switch:\n"
    " pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    " movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
    " popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n"
    ".size cuda_host_switch,.-cuda_host_switch\n");
#else
#include <ucontext.h>
#endif

enum { READY, AT_BARRIER, AT_WARP, DONE };
typedef struct fiber {
    unsigned char *stack;
    void *at;
    int state, kind, line;
    const char *file;
    uint3 index;
    int vote;
    unsigned mask, by, width;
    uint64_t value;
} fiber;
static fiber fibers[MOST];
static unsigned n_fibers, running;
static void *scheduler;
static const std::function<void()> *kernel_of;
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

#ifdef FIBERS_TOLD
static const void *scheduler_stack;
static size_t scheduler_size;
#endif
static void fiber_main(void);

static void start(fiber *f) {
    if (!f->stack) {
        f->stack = (unsigned char *)mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (f->stack == MAP_FAILED) abort();
    }
#if defined(__x86_64__)
    void **top = (void **)(void *)(f->stack + STACK);
    top -= 2;
    *top = (void *)fiber_main;
    top -= 6;
    for (int i = 0; i < 6; i++) top[i] = NULL;
    f->at = top;
#else
    ucontext_t *c = f->at ? (ucontext_t *)f->at : new ucontext_t;
    getcontext(c);
    c->uc_stack.ss_sp = f->stack;
    c->uc_stack.ss_size = STACK;
    c->uc_link = NULL;
    makecontext(c, fiber_main, 0);
    f->at = c;
    if (!scheduler) scheduler = new ucontext_t;
#endif
    f->state = READY;
}
static void enter(unsigned i) {
    running = i;
    threadIdx = fibers[i].index;
#ifdef FIBERS_TOLD
    void *fake;
    __sanitizer_start_switch_fiber(&fake, fibers[i].stack, STACK);
#endif
#if defined(__x86_64__)
    cuda_host_switch(&scheduler, fibers[i].at);
#else
    swapcontext((ucontext_t *)scheduler, (ucontext_t *)fibers[i].at);
#endif
#ifdef FIBERS_TOLD
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}
static void leave(void) {
    fiber *f = &fibers[running];
#ifdef FIBERS_TOLD
    void *fake = NULL;
    __sanitizer_start_switch_fiber(f->state == DONE ? NULL : &fake, scheduler_stack, scheduler_size);
#endif
#if defined(__x86_64__)
    cuda_host_switch(&f->at, scheduler);
#else
    swapcontext((ucontext_t *)f->at, (ucontext_t *)scheduler);
#endif
#ifdef FIBERS_TOLD
    __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_size);
#endif
}
static void fiber_main(void) {
#ifdef FIBERS_TOLD
    __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_size);
#endif
    (*kernel_of)();
    fibers[running].state = DONE;
    leave();
    abort();
}

/* ---- errors of kernels ------------------------------------------------------------------------------------------- */
static void describe(const char *what) {
    fprintf(stderr, "cuda_host: %s, in block (%u, %u, %u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z);
    for (unsigned i = 0, said = 0; i < n_fibers && said < 8; i++) {
        const fiber *f = &fibers[i];
        const int same = i && f->state == f[-1].state && f->line == f[-1].line && f->file == f[-1].file;
        if (same) continue;
        said++;
        if (f->state == DONE)
            fprintf(stderr, "  thread %u has ended\n", i);
        else
            fprintf(stderr, "  thread %u is at %s:%d%s\n", i, f->file, f->line,
                    f->state == AT_WARP      ? " (a warp operation)"
                    : f->state == AT_BARRIER ? " (a barrier)"
                                             : "");
    }
    abort();
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */
static void release_barrier(void) {
    const fiber *first = &fibers[0];
    int sum = 0;
    for (unsigned i = 0; i < n_fibers; i++) {
        const fiber *f = &fibers[i];
        if (f->state != AT_BARRIER || f->line != first->line || f->file != first->file || f->kind != first->kind)
            describe("not all threads of the block reach the same barrier");
        sum += f->vote;
    }
    const int result = first->kind == CUDA_HOST_SUM  ? sum
                       : first->kind == CUDA_HOST_OR ? sum > 0
                                                     : sum == (int)n_fibers;
    for (unsigned i = 0; i < n_fibers; i++) fibers[i].vote = result, fibers[i].state = READY;
}
int cuda_host_barrier(const char *file, int line, int kind, int value) {
    fiber *f = &fibers[running];
    f->state = AT_BARRIER, f->file = file, f->line = line, f->kind = kind, f->vote = value;
    leave();
    return f->vote;
}

/* ---- warps ------------------------------------------------------------------------------------------------------- */
/* Returns which thread of the warp `lane` reads from in a shuffle: `lane` itself if the other thread is outside of
 * its group. */
static unsigned source(const fiber *f, unsigned lane) {
    const unsigned first = lane / f->width * f->width, end = first + f->width;
    unsigned from = lane;
    if (f->kind == CUDA_HOST_LANE) from = first + f->by % f->width;
    if (f->kind == CUDA_HOST_UP) from = lane >= first + f->by ? lane - f->by : lane;
    if (f->kind == CUDA_HOST_DOWN) from = lane + f->by < end ? lane + f->by : lane;
    if (f->kind == CUDA_HOST_XOR) from = (lane ^ f->by) < end ? lane ^ f->by : lane;
    return from;
}
static void finish_warp(fiber *warp, unsigned lanes, const fiber *like) {
    const unsigned mask = like->mask, kind = (unsigned)like->kind;
    uint64_t was[32], ballot = 0;
    for (unsigned l = 0; l < lanes; l++) {
        was[l] = warp[l].value;
        if (mask >> l & 1u && was[l]) ballot |= 1u << l;
    }
    for (unsigned l = 0; l < lanes; l++) {
        fiber *f = &warp[l];
        if (!(mask >> l & 1u)) continue;
        if (kind == CUDA_HOST_BALLOT) {
            f->value = ballot;
        } else if (kind == CUDA_HOST_MATCH) {
            f->value = 0;
            for (unsigned k = 0; k < lanes; k++)
                if (mask >> k & 1u && was[k] == was[l]) f->value |= 1u << k;
        } else if (kind != CUDA_HOST_WARP) {
            const unsigned from = source(f, l);
            if (!(mask >> from & 1u)) describe("a lane reads from one that is not in the mask");
            f->value = was[from];
        }
        f->state = READY;
    }
}
uint64_t cuda_host_warp(const char *file, int line, int kind, unsigned mask, uint64_t value, unsigned by,
                        unsigned width) {
    fiber *f = &fibers[running], *warp = &fibers[running / 32 * 32];
    const unsigned left = n_fibers - running / 32 * 32, lanes = left < 32 ? left : 32;
    f->state = AT_WARP, f->file = file, f->line = line, f->kind = kind;
    f->mask = lanes < 32 ? mask & ((1u << lanes) - 1) : mask;
    f->value = value, f->by = by, f->width = width;
    if (!(f->mask >> running % 32 & 1u)) describe("a lane calls a warp operation whose mask leaves it out");
    int all = 1;
    for (unsigned l = 0; l < lanes && all; l++)
        all = !(f->mask >> l & 1u) || (warp[l].state == AT_WARP && warp[l].line == line && warp[l].file == file &&
                                       warp[l].mask == f->mask && warp[l].kind == kind);
    if (all) finish_warp(warp, lanes, f);
    leave();
    return f->value;
}
void cuda_host_yield(void) {
    if (cuda_host_random(8) == 0) {
        fibers[running].line = 0, fibers[running].file = "an atomic";
        leave();
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */
extern "C" unsigned char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));
void cuda_host_unwritten(void *p, size_t bytes) {
#ifdef FIBERS_MSAN
    __msan_allocated_memory(p, bytes);
#else
    (void)p, (void)bytes;
#endif
}
#if defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize("address")))
#endif
static void
spoil_shared(void) {
    uint64_t garbage = cuda_host_random(0x7FFFFFFF) | 1u;
    for (volatile unsigned char *p = __start_cuda_shared; p < __stop_cuda_shared; p += 8) {
        garbage ^= garbage << 13, garbage ^= garbage >> 7, garbage ^= garbage << 17;
        if (__stop_cuda_shared - p >= 8)
            *(volatile uint64_t *)(volatile void *)p = garbage;
        else
            *p = (unsigned char)garbage;
    }
    cuda_host_unwritten(__start_cuda_shared, (size_t)(__stop_cuda_shared - __start_cuda_shared));
}
uint64_t cuda_host_launch_number, cuda_host_block_number;
static void run_block(void) {
    static unsigned ready[MOST], late[MOST];
    /* Some warps are slow: they run only while all others wait. If all were equally fast, a missing barrier would
     * have no effect. */
    const uint32_t slow = cuda_host_random(4) ? cuda_host_random(0x7FFFFFFF) : 0;
    cuda_host_block_number++;
    if (__start_cuda_shared) spoil_shared();
    for (unsigned i = 0; i < n_fibers; i++) {
        fibers[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
        start(&fibers[i]);
    }
    for (;;) {
        unsigned n = 0, n_late = 0, done = 0, barrier = 0;
        for (unsigned i = 0; i < n_fibers; i++) {
            if (fibers[i].state == READY) (slow >> i / 32 & 1u) ? late[n_late++] = i : ready[n++] = i;
            done += fibers[i].state == DONE;
            barrier += fibers[i].state == AT_BARRIER;
        }
        if (done == n_fibers) return;
        if (!n) memcpy(ready, late, n_late * sizeof *late), n = n_late;
        if (!n && barrier) release_barrier();
        if (!n && !barrier) describe("not all lanes of a mask reach the same warp operation");
        /* Runs the fibers that are ready in random order. Those that become ready meanwhile run afterwards. */
        for (; n; n--) {
            const unsigned k = cuda_host_random(n), i = ready[k];
            ready[k] = ready[n - 1];
            if (fibers[i].state == READY) enter(i);
        }
    }
}
void cuda_host_run(dim3 grid, dim3 block, const std::function<void()> &kernel) {
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    std::vector<uint32_t> order(blocks);
    cuda_host_launch_number++;
    gridDim = grid, blockDim = block;
    n_fibers = block.x * block.y * block.z;
    kernel_of = &kernel;
    for (uint64_t i = 0; i < blocks; i++) order[i] = (uint32_t)i;
    for (uint64_t left = blocks; left; left--) {
        const uint32_t k = cuda_host_random((uint32_t)left), b = order[k];
        order[k] = order[left - 1];
        blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
        run_block();
    }
}
