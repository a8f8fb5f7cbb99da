/* test_gpt_gradient.c checks the gradients of examples/gpt against finite differences. The model is compiled with
 * double instead of float, so that rounding errors do not hide wrong terms. */
#include "tests/lib/test.h"

#define float double
#define sqrtf sqrt
#define expf exp
#define logf log
#define powf pow
#define param train_param /* avoids a clash with the included file's name */
#define model train_model
#include "examples/train/gemm.c"
#undef param
#undef model
#include "examples/gpt/model.c"

enum { BATCH = 2, CONTEXT = 5, VOCAB = 7, LENGTH = CONTEXT + 2 };
static const uint8_t text[BATCH][LENGTH] = {{0, 3, 3, 6, 1, 2, 5}, {4, 4, 0, 5, 6, 1, 3}};
static const uint8_t *const seq[BATCH] = {text[0], text[1]};

static void open_model(gpt *m) {
    assert_int_equal(gpt_open(m, (shape){VOCAB, CONTEXT, 8, 2, 2, BATCH}, 3), 0);
    uint64_t random = 5;
    for (size_t i = 0; i < m->n_values; i++) m->value[i] += 0.6 * ((double)(random_u64(&random) >> 11) * 0x1p-53 - 0.5);
}

static void close_model(gpt *m) { free(m->l[0].x), free(m->value); }

static double loss_of(gpt *m, int second) {
    gpt_forward(m, seq, BATCH);
    double loss = gpt_loss(m, seq, BATCH);
    if (!second) return loss;
    const size_t n = BATCH * CONTEXT, d = m->s.width;
    memset(m->ahead, 0, n * d * sizeof *m->ahead), memset(m->score, 0, n * VOCAB * sizeof *m->score);
    linear(n, d, d, m->l[m->s.layers].norm1, second_head(m)->value, m->ahead);
    gemm(n, VOCAB, d, m->ahead, d, 1, embedding(m)->value, 1, d, m->score, VOCAB);
    return loss + second_weight * cross_entropy(m, m->score, seq, n, 2, 0, NULL);
}

static size_t ready_ids[MAX_PARAMS], n_ready;
static const gpt *ready_of;
static double sum_when_ready[MAX_PARAMS];
static double sum_of(const param *p) {
    double sum = 0;
    for (size_t i = 0; i < p->count; i++) sum += p->grad[i];
    return sum;
}
static void ready(void *user, int i) {
    sum_when_ready[n_ready] = sum_of(&ready_of->p[i]);
    ready_ids[n_ready++] = (size_t)i;
}

static void compare(int second) {
    static gpt m;
    open_model(&m);
    gpt_forward(&m, seq, BATCH);
    gpt_backward(&m, seq, BATCH, second, 1, NULL, NULL);
    double worst = 0;
    for (size_t p = 0; p < m.n_params; p++)
        for (size_t i = 0; i < m.p[p].count; i++) {
            const double h = 1e-5, was = m.p[p].value[i];
            m.p[p].value[i] = was + h;
            const double up = loss_of(&m, second);
            m.p[p].value[i] = was - h;
            const double slope = (up - loss_of(&m, second)) / (2 * h), off = fabs(slope - m.p[p].grad[i]);
            m.p[p].value[i] = was;
            if (off > 1e-6 * (1 + fabs(slope))) fail_msg("%s[%zu]: %g, not %g", m.p[p].name, i, m.p[p].grad[i], slope);
            worst = off > worst ? off : worst;
        }
    printf("%zu numbers, largest difference %.1e\n", m.n_values, worst);
    close_model(&m);
}
TEST(test_first_head) { compare(0); }
TEST(test_both_heads) { compare(1); }

/* The callback must be called for each gradient in the order of m.p, and only when the gradient is complete. */
TEST(test_ready_means_done) {
    static gpt m;
    open_model(&m);
    ready_of = &m, n_ready = 0;
    gpt_forward(&m, seq, BATCH);
    gpt_backward(&m, seq, BATCH, 1, 1, ready, NULL);
    assert_int_equal(n_ready, m.n_params);
    for (size_t i = 0; i < n_ready; i++) {
        assert_int_equal(ready_ids[i], i);
        assert_true(sum_when_ready[i] == sum_of(&m.p[i]));
    }
    close_model(&m);
}

/* Two passes with one sequence each, scaled by 1 / BATCH, must give the gradient of one pass with the whole batch. */
TEST(test_accumulation) {
    static gpt m, other;
    open_model(&m), open_model(&other);
    gpt_forward(&m, seq, BATCH);
    gpt_backward(&m, seq, BATCH, 0, 1, NULL, NULL);
    for (int b = 0; b < BATCH; b++) {
        gpt_forward(&other, seq + b, 1);
        gpt_backward(&other, seq + b, 1, 0, 1.0 / BATCH, NULL, NULL);
    }
    for (size_t i = 0; i < m.n_values; i++) assert_true(fabs(m.grad[i] - other.grad[i]) < 1e-12);
    for (size_t i = 0; i < m.p[0].count; i++) assert_true(m.p[0].grad[i] == 0);
    close_model(&m), close_model(&other);
}

TEST(test_clipping) {
    static gpt m;
    open_model(&m);
    gpt_forward(&m, seq, BATCH);
    gpt_backward(&m, seq, BATCH, 0, 1, NULL, NULL);
    const double before = gpt_clip(&m, 1e9), first = m.grad[m.p[0].count];
    assert_true(fabs(gpt_clip(&m, before / 4) - before) < 1e-9 && fabs(gpt_clip(&m, 1e9) - before / 4) < 1e-9);
    assert_true(fabs(m.grad[m.p[0].count] - first / 4) < 1e-12);
    close_model(&m);
}
