/* test_schedule.c checks emulated network links whose speed and latency change while a job runs: their parameters,
 * transfer times, the file that may describe a link, and that collectives stay correct. */
/* runs: quiet tsan */
#include "tests/lib/test.h"

#include "backends/shm/transport.h"
#include "ranks.h"

static const uint64_t second = 1000000000u;

/* ---- the text ---- */
TEST(good_texts) {
    shm_link l;
    const char *where;
    assert_null(shm_parse_phases("1gbit", &l, &where));
    assert_int_equal(l.n, 1);
    assert_true(l.phases[0].ns_per_byte == 8.0);
    assert_int_equal(l.phases[0].latency_ns, 0);
    assert_null(shm_parse_phases("1gbit,50us;100mbit@500ms;2.5mbit,1ms@30s", &l, &where));
    assert_int_equal(*where, 0);
    assert_int_equal(l.n, 3);
    assert_int_equal(l.phases[0].latency_ns, 50000);
    assert_true(l.phases[1].ns_per_byte == 80.0);
    assert_int_equal(l.phases[1].latency_ns, 0);
    assert_int_equal(l.phases[1].from_ns, second / 2);
    assert_true(l.phases[2].ns_per_byte == 3200.0);
    assert_int_equal(l.phases[2].latency_ns, 1000000);
    assert_int_equal(l.phases[2].from_ns, 30 * second);
}

typedef struct bad {
    const char *text;
    int at; /* position of the error in the text, counted from 1 */
    const char *expected;
} bad;
TEST(bad_texts) {
    static const bad all[] = {
        {"", 1, "a rate"},
        {"fast", 1, "a rate"},
        {"0gbit", 1, "a rate"},
        {"1gbit,", 7, "a latency"},
        {"1gbit,50", 7, "a latency"},
        {"1gbit,50us,1us", 11, "';' or the end"},
        {"1gbit@3s", 6, "no time"},
        {"1gbit;", 7, "a rate"},
        {"1gbit;1mbit", 12, "'@'"},
        {"1gbit;1mbit,1us", 16, "'@'"},
        {"1gbit;1mbit@", 13, "a time"},
        {"1gbit;1mbit@3", 13, "a time"},
        {"1gbit;1mbit@3s@4s", 15, "';' or the end"},
        {"1gbit;1mbit@3s;2mbit@2s", 22, "a later time"},
        {"1gbit;1mbit@0s", 13, "a later time"},
        {"1gbit;1mbit@1s;1mbit@2s;1mbit@3s;1mbit@4s;1mbit@5s;1mbit@6s;1mbit@7s;1mbit@8s;1mbit@9s;1mbit@10s;1mbit@11s;"
         "1mbit@12s;1mbit@13s;1mbit@14s;1mbit@15s;1mbit@16s",
         148, "no more than 16"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        shm_link l;
        const char *where, *wrong = shm_parse_phases(all[i].text, &l, &where);
        if (!wrong || !strstr(wrong, all[i].expected) || where - all[i].text + 1 != all[i].at)
            fail_msg("'%s': expected %s at %d, got %s at %d", all[i].text, all[i].expected, all[i].at,
                     wrong ? wrong : "no error", (int)(where - all[i].text) + 1);
    }
}

static void one_open(ranks_me *me) {
    esp_group g;
    void *comm = NULL;
    memset(&g, 0, sizeof g);
    g.struct_size = sizeof g;
    g.size = 1;
    ranks_said[0] = 0;
    if (me->b->open(&ranks_host, &g, me->params, &comm) == ESP_OK) {
        me->b->close(comm);
        ranks_fail(me, "it opened");
    } else if (!strstr(ranks_said, (const char *)me->arg)) {
        ranks_fail(me, "%s", ranks_said);
    }
}
static void open_says(const char *params, const char *text) {
    const char *why = ranks_run(ranks_backend("loop"), params, 1, 0, one_open, (void *)(uintptr_t)text, -1);
    if (why[0]) fail_msg("expected '%s': %s", text, why);
}
TEST(errors_of_opening) {
    open_says("link=(1gbit,50us;1mbit)", "at character 17 ('') expected '@'");
    open_says("link=(1gbit;fast@3s)", "at character 7 ('fast@3s') expected a rate");
    open_says("link=(file:/no/such/file)", "/no/such/file: No such file or directory: write one line");
    open_says("link=(file:/dev/null)", "it is empty");
    open_says("link=1gbit,latency=1x", "latency=1x is not a time");
}

/* ---- transfer times, computed without waiting ---- */
TEST(costs_follow_the_time) {
    shm_comm m;
    shm_nic nics[2];
    shm_nic *at[2] = {&nics[0], &nics[1]};
    const char *where;
    memset(&m, 0, sizeof m);
    memset(nics, 0, sizeof nics);
    m.nics = at;
    m.size = 2;
    assert_null(shm_parse_phases("1gbit,1us;100mbit,2us@1s;10gbit,3us@2s", &m.link, &where));
    m.link.opened_ns = 100 * second;
    uint64_t t = 100 * second;
    assert_int_equal(shm_transfer(&m, 1, t, 1000), t + 8000);
    assert_int_equal(shm_latency(&m, 1, t), 1000);
    assert_int_equal(shm_transfer(&m, 1, t, 1000), t + 16000);
    assert_int_equal(shm_latency(&m, 1, t + second - 1), 1000);
    t += second;
    assert_int_equal(shm_latency(&m, 1, t), 2000);
    assert_int_equal(shm_transfer(&m, 1, t, 1000), t + 80000);
    t += second;
    assert_int_equal(shm_latency(&m, 1, t), 3000);
    assert_int_equal(shm_transfer(&m, 1, t, 1000), t + 800);
    /* The data is ready at 100 s, but the link is busy until 300 s. */
    nics[1].tx_free_ns = 300 * second;
    assert_int_equal(shm_transfer(&m, 1, 100 * second, 1000), 300 * second + 800);
}

/* ---- the file ---- */
static char path[] = "/tmp/test_schedule_XXXXXX";
static void put(const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}
TEST(file_is_read_again) {
    shm_comm m;
    uint64_t now = 7 * second;
    memset(&m, 0, sizeof m);
    m.host = &ranks_host;
    snprintf(m.link.file, sizeof m.link.file, "%s", path);
    put("1gbit,50us\n");
    assert_null(shm_read_link(path, &m.link));
    m.link.polled_ns = now;
    put("100mbit,60us\n");
    shm_link_poll(&m, now + second / 10 - 1);
    assert_true(m.link.phases[0].ns_per_byte == 8.0);
    shm_link_poll(&m, now += second / 10);
    assert_true(m.link.phases[0].ns_per_byte == 80.0);
    assert_int_equal(m.link.phases[0].latency_ns, 60000);
    static const char *const unfit[] = {"", "\n", "slow\n", "1gbit,50\n", "1gbit;1mbit@1s\n"};
    for (size_t i = 0; i < sizeof unfit / sizeof *unfit; i++) {
        put(unfit[i]);
        shm_link_poll(&m, now += second);
        assert_true(m.link.warned);
        assert_true(m.link.phases[0].ns_per_byte == 80.0);
    }
    put("10gbit");
    shm_link_poll(&m, now += second);
    assert_false(m.link.warned);
    assert_true(m.link.phases[0].ns_per_byte == 0.8);
    unlink(path);
    shm_link_poll(&m, now += second);
    assert_true(m.link.phases[0].ns_per_byte == 0.8);
}

/* ---- a job ---- */
enum { COUNT = 30011, ROUNDS = 60 };

static void coll_init(esp_coll *c, uint32_t op, float *src, float *dst, int32_t root) {
    memset(c, 0, sizeof *c);
    c->struct_size = sizeof *c;
    c->op = op;
    c->dtype = ESP_F32;
    c->count = COUNT;
    c->root = root;
    c->src.ptr = src, c->dst.ptr = dst;
    c->src.bytes = c->dst.bytes = COUNT * 4;
    c->src.dev.kind = c->dst.dev.kind = ESP_CPU;
}

/* Returns small integers, whose sums are exact in any order. */
static float value(int32_t rank, int round, uint64_t i) {
    return (float)((i * 7 + (uint64_t)(rank * 31 + round)) % 64);
}

static void sums_stay_right(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL);
    float *x = (float *)malloc(COUNT * sizeof *x);
    int wrong = 0;
    for (int k = 0; comm && k < ROUNDS && !wrong; k++) {
        esp_coll c;
        int32_t root = k % me->size;
        for (uint64_t i = 0; i < COUNT; i++) x[i] = value(me->rank, k, i);
        coll_init(&c, k % 3 ? ESP_COLL_ALLREDUCE : ESP_COLL_BROADCAST, x, x, root);
        esp_status s = ranks_coll(me, comm, &c);
        if (s != ESP_OK && (wrong = 1)) ranks_fail(me, "round %d: status %d: %s", k, (int)s, ranks_said);
        for (uint64_t i = 0; i < COUNT && !wrong; i++) {
            float want = 0;
            for (int32_t r = 0; r < me->size; r++)
                if (k % 3 || r == root) want += value(r, k, i);
            if (x[i] != want && (wrong = 1))
                ranks_fail(me, "round %d: element %d is %g, not %g", k, (int)i, (double)x[i], (double)want);
        }
    }
    free(x);
    if (comm) me->b->close(comm);
}

/* A link whose speed and latency rise and fall while collectives run. */
static const char changing[] =
    "link=(1gbit,20us;200mbit,2ms@5ms;10gbit,1us@40ms;500mbit@60ms;1gbit,1ms@80ms;300mbit,5us@100ms;10gbit@120ms)";

TEST(results_while_it_changes) {
    static const char *const backends[] = {"loop", "shm"};
    static const int32_t shape[][2] = {{2, 1}, {3, 1}, {4, 2}}; /* {ranks, ranks per machine} */
    for (int b = 0; b < 2; b++)
        for (int k = 0; k < 3; k++) {
            const char *why =
                ranks_run(ranks_backend(backends[b]), changing, shape[k][0], shape[k][1], sums_stay_right, NULL, -1);
            if (why[0]) fail_msg("%s", why);
        }
}

/* All ranks count time from the moment when rank 0 opened its communicator, so that the link changes at the same
 * moment for all. */
static void one_clock(ranks_me *me) {
    uint64_t *opened = (uint64_t *)me->arg;
    shm_comm *all = (shm_comm *)ranks_open(me, 0, NULL);
    shm_comm *inter = all ? (shm_comm *)ranks_open(me, 2, all) : NULL;
    if (all) opened[me->rank] = all->link.opened_ns;
    if (inter && inter->link.opened_ns != all->link.opened_ns) ranks_fail(me, "scopes count from different moments");
    if (all && all->link.n != 7) ranks_fail(me, "the link has %d phases", all->link.n);
    if (inter) me->b->close(inter);
    if (all) me->b->close(all);
}
TEST(all_ranks_share_a_clock) {
    uint64_t opened[4] = {0};
    const char *why = ranks_run(ranks_backend("loop"), changing, 4, 2, one_clock, opened, -1);
    if (why[0]) fail_msg("%s", why);
    for (int r = 0; r < 4; r++) assert_true(opened[r] && opened[r] == opened[0]);
}

/* A change of the link's file slows a running job: 120 kB at 8 Mbit/s take at least 0.12 s. */
static void slows_down(ranks_me *me) {
    void *comm = ranks_open(me, 0, NULL);
    float *x = (float *)calloc(COUNT, sizeof *x);
    for (int k = 0; comm && k < 2; k++) {
        esp_coll c;
        uint64_t before = backend_now_ns();
        coll_init(&c, ESP_COLL_BROADCAST, x, x, 0);
        if (ranks_coll(me, comm, &c) != ESP_OK) ranks_fail(me, "%s", ranks_said);
        if (k && me->rank == 1 && backend_now_ns() - before < second / 10) ranks_fail(me, "the link was not slowed");
        pthread_barrier_wait(&me->shared->barrier[0]);
        if (k == 0 && me->rank == 0) put("8mbit");
        pthread_barrier_wait(&me->shared->barrier[0]);
        usleep(110000); /* longer than the interval at which ranks read the file */
    }
    free(x);
    if (comm) me->b->close(comm);
}
TEST(file_slows_a_job) {
    char params[128];
    put("1gbit");
    snprintf(params, sizeof params, "link=(file:%s)", path);
    const char *why = ranks_run(ranks_backend("loop"), params, 2, 1, slows_down, NULL, -1);
    unlink(path);
    if (why[0]) fail_msg("%s", why);
}

int main(void) {
    const int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    return test_main();
}
