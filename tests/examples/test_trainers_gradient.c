/* test_trainers_gradient.c checks the gradients of the models of bench/trainers against finite differences. They are
 * compiled with double instead of float, so that rounding errors do not hide wrong terms. */
#include "tests/lib/test.h"

#define float double
#define sqrtf sqrt
#define expf exp
#define logf log
#define tanhf tanh
#include "examples/train/gemm.c"
#define ENOUGH NET_ENOUGH
#include "bench/trainers/net.c"
#undef ENOUGH
#include "bench/trainers/lstm.c"
#define OUT WIDE_OUT /* both models have an enum OUT */
#define forward wide_forward
#include "bench/trainers/wide.c"
#undef OUT
#undef forward

enum { PIECES = 2, LENGTH = 5, VOCAB = 7 };
static const uint8_t piece[PIECES][LENGTH + 1] = {{0, 3, 3, 6, 1, 2}, {4, 4, 0, 5, 6, 1}};
static const uint8_t *const seq[PIECES] = {piece[0], piece[1]};

static int wide_open_small(net *n, uint64_t seed) { return wide_open_table(n, seed, 11); }

static void open_net(net *n, int (*open)(net *n, uint64_t seed)) {
    *n = (net){.vocab = VOCAB, .width = 3, .hidden = 4, .length = LENGTH, .batch = PIECES};
    assert_int_equal(open(n, 3), 0);
    uint64_t random = 5;
    for (size_t i = 0; i < n->n_values; i++) n->value[i] += 0.6 * ((double)(random_u64(&random) >> 11) * 0x1p-53 - 0.5);
}

static const net *ready_of;
static size_t n_ready;
static double sum_when_ready[NET_PARAMS];
static double sum_of(const net_param *p) {
    double sum = 0;
    for (size_t i = 0; i < p->count; i++) sum += p->grad[i] * (double)(i % 7 + 1);
    return sum;
}
static void ready(void *user, int i) {
    assert_int_equal(i, n_ready);
    sum_when_ready[n_ready++] = sum_of(&ready_of->p[i]);
}

/* Checks gradients against finite differences, and that a gradient is complete when its callback is called. Returns
 * the memory that the model has allocated. */
static void *compare(const net_kind *kind, int (*open)(net *n, uint64_t seed)) {
    static net n;
    open_net(&n, open);
    memset(n.grad, 0xff, n.n_values * sizeof *n.grad); /* NaN, to find what backward does not write */
    n_ready = 0, ready_of = &n;
    const double loss = kind->pass(&n, seq, ready, NULL);
    assert_int_equal(n_ready, n.n_params);
    for (size_t i = 0; i < n_ready; i++) assert_true(sum_when_ready[i] == sum_of(&n.p[i]));
    assert_true(loss == kind->pass(&n, seq, NULL, NULL));
    double worst = 0;
    for (size_t p = 0; p < n.n_params; p++)
        for (size_t i = 0; i < n.p[p].count; i++) {
            const double h = 1e-5, was = n.p[p].value[i];
            n.p[p].value[i] = was + h;
            const double up = kind->pass(&n, seq, NULL, NULL);
            n.p[p].value[i] = was - h;
            const double slope = (up - kind->pass(&n, seq, NULL, NULL)) / (2 * h), off = fabs(slope - n.p[p].grad[i]);
            n.p[p].value[i] = was;
            if (!(off <= 1e-6 * (1 + fabs(slope))))
                fail_msg("%s[%zu]: %g, not %g", n.p[p].name, i, n.p[p].grad[i], slope);
            worst = off > worst ? off : worst;
        }
    printf("%s: %zu numbers, largest difference %.1e\n", kind->name, n.n_values, worst);
    free(n.value);
    return n.own;
}
TEST(test_lstm) {
    lstm *m = compare(&net_lstm, lstm_open);
    free(m->embedded), free(m);
}
TEST(test_wide) {
    wide *m = compare(&net_wide, wide_open_small);
    free(m->row), free(m->right), free(m->x), free(m);
}

TEST(test_update) {
    static net n;
    net_describe(&n, "x", 1, 2, 0);
    assert_int_equal(net_allocate(&n, 1), 0);
    n.grad[0] = 3, n.grad[1] = 4;
    net_update(&n, 0.1, 0.5, 10);
    assert_true(fabs(n.value[0] + 0.3) < 1e-12 && fabs(n.value[1] + 0.4) < 1e-12);
    net_update(&n, 0.1, 0.5, 2.5);
    assert_true(fabs(n.value[0] + 0.6) < 1e-12 && fabs(n.value[1] + 0.8) < 1e-12);
    free(n.value);
}
