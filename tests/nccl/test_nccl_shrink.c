/* test_nccl_shrink.c kills a rank while others are in a collective of NCCL. The others go on with esp_shrink, which
 * aborts their communicators and creates new ones. Ranks are processes with the stand-in for NCCL (fake/). Gradients
 * are in host memory, or on the fake device (tests/device), whose streams wait until abort(). */
/* runs: quiet no-tsan: ranks are processes that are killed, in which the sanitizer cannot follow threads */
#include "tests/lib/test.h"
#include "tests/lib/processes.h"
#include "tests/nccl/on_fake_device.h"

enum { SIZE = 4, N = 3000, LOST_STEP = 3, LAST_STEP = 6 };

static struct {
    const char *backend, *option;
    int32_t dies[2];
    int on_device;
} job;

static float point(int32_t origin, int step, int i) { return (float)((i + step) % 7 + 4 * origin * origin); }

static void *die_soon(void *user) {
    usleep(30000);
    raise(SIGKILL);
    return NULL;
}
static esp_status one_step(esp_ctx *ctx, place p[2], int32_t origin, int step) {
    esp_status s = ESP_OK;
    pthread_t end;
    for (uint32_t t = 0; t < 2 && !s; t++) {
        for (int i = 0; i < N; i++) ((float *)p[t].pinned)[i] = point(origin, step, i);
        write_late(&p[t]);
        if (t == 1 && step == LOST_STEP && (origin == job.dies[0] || origin == job.dies[1])) {
            pthread_create(&end, NULL, die_soon, NULL);
            pause();
        }
        s = esp_push(ctx, t, p[t].grad, p[t].stream);
    }
    if (!s) s = esp_wait_all(ctx);
    for (int t = 0; t < 2 && !s && job.on_device; t++) fake_get(p[t].pinned, p[t].grad, N * 4);
    return s;
}
/* Returns whether every element is the mean over the remaining ranks. All sums are exact. */
static int is_mean(const float *g, int step, int gone) {
    for (int i = 0; i < N; i++) {
        float sum = 0, n = 0;
        for (int32_t r = 0; r < SIZE; r++)
            if (!gone || (r != job.dies[0] && r != job.dies[1])) sum += point(r, step, i), n++;
        if (g[i] < sum / n * 0.999999f || g[i] > sum / n * 1.000001f) return 0;
    }
    return 1;
}

static void body(procs *p, int32_t rank) {
    static const esp_plugin_fn entries[2] = {fake_plugin, espresso_plugin_v1_nccl};
    report *me = &p->b->rank[rank];
    alarm(20);
    const esp_device where = {job.on_device ? FAKE_KIND : 0, 0};
    esp_config c = ESP_ZERO;
    esp_ctx *ctx = NULL;
    place at[2];
    int shrunk = 0;
    standin_load();
    c.rank = rank, c.size = p->size, c.root = p->root, c.machine = 1 + rank / 2;
    c.backend = job.backend, c.timeout_ms = 20000, c.log_level = ESP_LOG_ERROR, c.cpu_workers = 1;
    c.builtin = entries, c.n_builtin = 2;
    esp_status s = esp_open(&c, &ctx);
    for (int t = 0; t < 2 && !s; t++) {
        esp_tensor_desc d = {.name = t ? "b" : "a", .count = N, .codec = "none", .option = job.option, .device = where};
        s = esp_tensor_add(ctx, &d, NULL);
        place_open(ctx, &at[t], where, N * 4);
    }
    if (!s) s = esp_start(ctx);
    for (int step = 0; step < LAST_STEP && !s;) {
        s = one_step(ctx, at, rank, step);
        for (int t = 0; t < 2 && !s; t++)
            if (!is_mean((float *)at[t].pinned, step, shrunk))
                snprintf(me->text, sizeof me->text, "step %d", step), s = -99;
        if (!s) step++;
        while (s == ESP_E_PEER && shrunk < 3) {
            shrunk++;
            s = esp_shrink(ctx);
            if (!s) s = esp_broadcast(ctx, &step, sizeof step, 0);
        }
    }
    if (s && s != -99) snprintf(me->text, sizeof me->text, "%.900s", esp_last_error(ctx));
    atomic_store(&me->other, shrunk * 10 + (ctx ? esp_size(ctx) : 0));
    for (int t = 0; t < 2 && ctx; t++) place_close(&at[t]);
    esp_close(ctx);
    if (!s && fake_live) snprintf(me->text, sizeof me->text, "%d blocks or streams are left", fake_live), s = -98;
    atomic_store(&me->status, s);
}

static void lose(const char *backend, const char *option, int32_t first, int32_t second, int on_device) {
    procs p;
    procs_init(&p, SIZE);
    job.backend = backend, job.option = option, job.dies[0] = first, job.dies[1] = second, job.on_device = on_device;
    procs_start_all(&p, body);
    int hung = 0, bad = 0;
    for (int32_t r = 0; r < SIZE; r++) {
        const bool dies = r == first || r == second;
        /* a rank that hangs is killed by an alarm */
        const int status = child_wait(p.pid[r]), want = dies ? -SIGKILL : 0;
        hung += status != want;
        p.pid[r] = 0;
        if (dies) continue;
        bad += atomic_load(&p.b->rank[r].status) || atomic_load(&p.b->rank[r].other) % 10 != (second < 0 ? 3 : 2) ||
               atomic_load(&p.b->rank[r].other) < 10;
        if (bad || hung)
            print_message("%s, %s, rank %d: status %d, ended with %d, %d: %s\n", backend, option, (int)r,
                          atomic_load(&p.b->rank[r].status), status, atomic_load(&p.b->rank[r].other),
                          p.b->rank[r].text);
    }
    procs_end(&p);
    assert_int_equal(hung + bad, 0);
}

#define FLAT "flat.allreduce"
#define BOTH "levels:intra=(nccl:device=0),inter=(nccl:device=0)"
TEST(host_memory) {
    lose("nccl:device=0", FLAT, 2, -1, 0);
    lose("nccl:device=0", FLAT, 0, 3, 0);
    lose("levels:intra=(nccl:device=0),inter=(shm)", FLAT, 1, -1, 0);
}
TEST(device_memory) {
    lose("nccl:device=0", FLAT, 3, -1, 1);
    lose("nccl:device=0", "comp@gpu > flat.allgather > decomp@gpu", 0, -1, 1);
    lose(BOTH, "intra.reduce_scatter > inter.allreduce > intra.allgather", 1, -1, 1);
    lose(BOTH, FLAT, 1, 2, 1);
}

int main(void) {
    char dir[] = "/tmp/nccl-shrink-XXXXXX", rm[64];
    standin_choose();
    if (!mkdtemp(dir)) return 1;
    setenv("TMPDIR", dir, 1); /* killed ranks leave files here */
    const int failed = test_main();
    snprintf(rm, sizeof rm, "rm -rf %s", dir);
    return system(rm) || failed;
}
