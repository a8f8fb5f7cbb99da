/* collectives.c: how long a collective of backend nccl takes the CPU, with the tests' stand-in for NCCL. As NCCL does,
 * the stand-in launches each call from a new thread of its own, 10 us later; it moves the data at once. Two ranks are
 * threads of this process. Their tensors lie on the tests' fake device.
 *
 *     make build/bench/nccl-collectives && build/bench/nccl-collectives >bench/results/cuda/nccl-collectives.csv */
#include "bench/head.h"
#include "tests/nccl/on_fake_device.h"

enum { ALL = 200, COUNT = 256, WARM = 5, STEPS_TIMED = 21 };
typedef struct row {
    int members; /* tensors in a group */
    double us[STEPS_TIMED];
} row;

static void text_of(int members, char *out, size_t cap) {
    size_t n = (size_t)snprintf(out, cap, "espresso-strategy 1\n");
    for (int t = 0; t < ALL; t++) {
        n += (size_t)snprintf(out + n, cap - n, "tensor t%d %d %s\n", t, (int)COUNT,
                              members > 1 ? "group" : "none flat.allreduce");
        if (members > 1 && t % members == members - 1)
            n += (size_t)snprintf(out + n, cap - n, "group %d none flat.allreduce\n", (int)COUNT * members);
    }
}
static void body(esp_ctx *ctx, void *user) {
    static char text[ALL * 64];
    row *r = user;
    place p[ALL];
    for (int t = 0; t < ALL; t++) {
        char name[16];
        esp_tensor_desc d = {.name = name, .count = COUNT, .device = test_device(0)};
        snprintf(name, sizeof name, "t%d", t);
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        place_open(ctx, &p[t], d.device, COUNT * 4);
        for (int i = 0; i < COUNT; i++) ((float *)p[t].pinned)[i] = (float)i;
    }
    if (esp_rank(ctx) == 0) text_of(r->members, text, sizeof text);
    CHECK(esp_start(ctx) == ESP_OK && esp_barrier(ctx) == ESP_OK && esp_strategy_set(ctx, text) == ESP_OK);
    for (int step = 0; step < WARM + STEPS_TIMED; step++) {
        for (int t = 0; t < ALL; t++) write_late(&p[t]), place_sync(&p[t]);
        CHECK(esp_barrier(ctx) == ESP_OK);
        const uint64_t began = esp__now_ns();
        for (int t = 0; t < ALL; t++) CHECK(esp_push(ctx, (uint32_t)t, p[t].grad, p[t].stream) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        if (esp_rank(ctx) == 0 && step >= WARM) r->us[step - WARM] = (double)(esp__now_ns() - began) / 1e3;
    }
    for (int t = 0; t < ALL; t++) place_close(&p[t]);
}
static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
int main(void) {
    static const int members[] = {1, 2, 8, 40, ALL};
    static const esp_plugin_fn entries[2] = {fake_plugin, espresso_plugin_v1_nccl};
    fake_punctual = true;
    standin_choose();
    standin_load();
    bench_head(stdout,
               "build/bench/nccl-collectives: a step of 200 tensors of 256 elements, allreduce over backend nccl "
               "with the stand-in for NCCL, 2 ranks; the shortest and the median of 21 steps");
    printf("tensors_in_a_group,collectives,us_a_collective_least,us_a_collective,us_a_tensor\n");
    for (size_t k = 0; k < sizeof members / sizeof *members; k++) {
        row r = {.members = members[k]};
        RUN_RANKS(.size = 2, .per_machine = 2, .body = body, .user = &r, .config.backend = "nccl:device=0",
                  .config.progress = "threads", .config.builtin = entries, .config.n_builtin = 2);
        qsort(r.us, STEPS_TIMED, sizeof *r.us, by_size);
        const int n = ALL / r.members;
        printf("%d,%d,%.1f,%.1f,%.1f\n", r.members, n, r.us[0] / n, r.us[STEPS_TIMED / 2] / n,
               r.us[STEPS_TIMED / 2] / ALL);
        fflush(stdout);
    }
    return failures != 0;
}
