/* test_runtime.c checks that the emulator detects faults of kernels: each kernel of faults.cc is correct, and with its
 * fault it gives wrong results in some order of threads, or ends the process. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "tests/cuda/emulator/faults.h"

enum { N = 64, SEEDS = 20 };

/* Runs a kernel in a child process. Returns 0 if the results are `want`, 1 if not, or 2 if the process ended early. Its
 * output is in `said`. */
static int outcome(const char *name, int wrong, uint64_t seed, const float *want, int n, char *said, size_t cap) {
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    const pid_t child = child_fork(0);
    if (child == 0) {
        float got[N];
        dup2(pipes[1], 2);
        if (!faults_run(name, wrong, seed, got, n)) _exit(3);
        _exit(memcmp(got, want, (size_t)n * sizeof *got) ? 11 : 10);
    }
    close(pipes[1]);
    size_t all = 0;
    for (ssize_t m; (m = read(pipes[0], said + all, cap - 1 - all)) > 0; all += (size_t)m) {
    }
    said[all] = 0;
    close(pipes[0]);
    const int ended = child_wait(child);
    if (ended == 3) fail_msg("there is no kernel %s", name);
    return ended == 10 || ended == 11 ? ended - 10 : 2;
}

/* Checks that a fault gives wrong results for some order of threads, or ends the process with this text. */
static void found(const char *name, const float *want, int n, const char *words) {
    static char said[1 << 20];
    int wrong = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        const int right = outcome(name, 0, seed, want, n, said, sizeof said);
        if (right != 0) fail_msg("%s without a fault, seed %d: %d %s", name, (int)seed, right, said);
        const int got = outcome(name, 1, seed, want, n, said, sizeof said);
        if (words && got != 2) fail_msg("%s: the fault was not found: %d", name, got);
        if (words && !strstr(said, words)) fail_msg("%s: \"%s\" lacks \"%s\"", name, said, words);
        wrong += got != 0;
        if (words && seed == 2) return;
    }
    if (!words && !wrong) fail_msg("%s: right in all orders, with the fault", name);
}

TEST(order) {
    float want[N], all = 4 * N;
    for (int i = 0; i < N; i++) want[i] = (float)(N - 1 - i);
    found("reverse", want, N, NULL);
    found("unordered", want, N, NULL);
    found("counted", &all, 1, NULL);
}
TEST(meeting) {
    float ones[N], votes[16];
    for (int i = 0; i < N; i++) ones[i] = 1;
    for (int i = 0; i < 16; i++) votes[i] = 16;
    found("diverge", ones, N, "not all threads of the block reach the same barrier");
    found("two_barriers", ones, N, "not all threads of the block reach the same barrier");
    found("masked", votes, 16, "not all lanes of a mask reach the same warp operation");
    found("shuffled", ones, 16, "a lane reads from one that is not in the mask");
}
TEST(memory) {
    float twos[N];
    for (int i = 0; i < N; i++) twos[i] = 2;
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define MEMORY_SANITIZER 1
#endif
#endif
#ifdef MEMORY_SANITIZER
    found("unwritten", twos, N, "use-of-uninitialized-value");
#else
    found("unwritten", twos, N, NULL);
#endif
#if defined(__SANITIZE_ADDRESS__)
    float want[N], ones[N];
    for (int i = 0; i < N; i++) want[i] = (float)(N - 1 - i), ones[i] = 1;
    found("beyond", ones, N, "heap-buffer-overflow");
    found("beyond_shared", ones, N, "global-buffer-overflow");
    found("touched", want, N, "use-after-poison");
#else
    print_message("skipped: accesses out of bounds, which the address sanitizer finds\n");
#endif
}
TEST(refused) { assert_int_equal(faults_refused(), 0); }
