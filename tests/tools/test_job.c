/* test_job.c: the launcher and the library together: ranks that meet, agree on machines and average, and one that dies.
 * The program is its own rank: started with the word "rank" it takes part in a job. */
/* runs: quiet no-tsan: ranks are processes; unit/test_step has their threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/mman.h>
#include "espresso.h"
#include "spawn.h"

enum { COUNT = 100003 };

/* Steps of one tensor; rank 2 is killed at step `die` where that is not negative. */
static int rank_main(int steps, int die) {
    static float g[COUNT];
    esp_config cfg = ESP_ZERO;
    esp_tensor_desc d = ESP_ZERO;
    esp_stream stream = ESP_ZERO;
    esp_ctx *ctx;
    uint32_t id;
    d.name = "weight";
    d.count = COUNT;
    if (esp_open(&cfg, &ctx) != ESP_OK || esp_tensor_add(ctx, &d, &id) != ESP_OK || esp_start(ctx) != ESP_OK) {
        fprintf(stderr, "%s\n", esp_last_error(NULL));
        return 1;
    }
    for (int s = 0; s < steps; s++) {
        for (int i = 0; i < COUNT; i++) g[i] = (float)(esp_rank(ctx) * 4 + s);
        if (s == die && esp_rank(ctx) == 2) raise(SIGKILL);
        if (esp_push(ctx, id, g, stream) != ESP_OK || esp_wait_all(ctx) != ESP_OK) {
            fprintf(stderr, "%s\n", esp_last_error(ctx));
            return 1;
        }
        printf("step %d: %g %g on machine %d of %d\n", s, (double)g[0], (double)g[COUNT - 1], (int)esp_machine(ctx),
               (int)esp_machines(ctx));
    }
    esp_close(ctx);
    return 0;
}

/* Rank 1 is killed and takes long to end, as its memory has to be given back; rank 0 exits with 1 as soon as rank 1 is ending, as it
 * would when its connection closes. They know each other by `file`. */
static int slow_death_main(const char *file) {
    enum { BYTES = 1 << 30, EXITING = 4 }; /* PF_EXITING */
    char path[64], text[512] = "";
    int rank = atoi(getenv("ESPRESSO_RANK")), pid = 0;
    if (rank == 1) {
        FILE *f = fopen(file, "w");
        char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!f || memory == MAP_FAILED) return 3;
        madvise(memory, BYTES, MADV_NOHUGEPAGE);
        for (size_t i = 0; i < BYTES; i += 4096) memory[i] = 1;
        fprintf(f, "%d\n", (int)getpid());
        fclose(f);
        raise(SIGKILL);
    }
    for (unsigned flags = 0; !(flags & EXITING);) {
        FILE *f = fopen(pid ? path : file, "r");
        if (pid && !f) return 4; /* ended before it was seen to be ending: the test shows nothing */
        if (f && !pid && fscanf(f, "%d", &pid) == 1) snprintf(path, sizeof path, "/proc/%d/stat", pid);
        if (f && pid && fgets(text, sizeof text, f)) {
            char *at = strrchr(text, ')');
            if (at) sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %u", &flags);
        }
        if (f) fclose(f);
    }
    return 1;
}

static char self[4096];

static void check_said(const spawned *s, int k, const char *text) {
    if (!spawn_said(s, k, text)) fail_msg("not said: \"%s\"\nstdout:\n%s\nstderr:\n%s", text, s->text[0], s->text[1]);
}

static void ranks_average(void **state) {
    (void)state;
    spawned s = SPAWN("run", "-n", "4", "--machines", "2", "--inter", "1gbit,50us", "--env",
                      "ESPRESSO_TIMEOUT_MS=15000", "--", self, "rank", "2", "-1");
    if (s.status) fail_msg("status %d\n%s", s.status, s.text[1]);
    check_said(&s, 0, "[0] step 0: 6 6 on machine 0 of 2\n");
    check_said(&s, 0, "[1] step 1: 7 7 on machine 0 of 2\n");
    check_said(&s, 0, "[2] step 0: 6 6 on machine 1 of 2\n");
    check_said(&s, 0, "[3] step 1: 7 7 on machine 1 of 2\n");
    spawn_free(&s);
}

static void uneven_machines(void **state) {
    (void)state;
    spawned s =
        SPAWN("run", "--ranks-per-machine", "1,3", "--env", "ESPRESSO_TIMEOUT_MS=15000", "--", self, "rank", "1", "-1");
    if (s.status) fail_msg("status %d\n%s", s.status, s.text[1]);
    check_said(&s, 0, "[0] step 0: 6 6 on machine 0 of 2\n");
    check_said(&s, 0, "[3] step 0: 6 6 on machine 1 of 2\n");
    spawn_free(&s);
}

/* The launcher says who died and how; the others say it too, and end by themselves before they are made to. */
static void a_rank_is_killed(void **state) {
    (void)state;
    spawned s = SPAWN("run", "-n", "4", "--machines", "2", "--env", "ESPRESSO_TIMEOUT_MS=15000", "--", self, "rank",
                      "1000000", "5");
    assert_int_equal(s.status, 128 + SIGKILL);
    check_said(&s, 1, "espresso run: rank 2 (pid ");
    check_said(&s, 1, "was killed by signal 9 (Killed)\n");
    check_said(&s, 1, "[0] rank 2 died");
    check_said(&s, 1, "[1] rank 2 died");
    check_said(&s, 1, "[3] rank 2 died");
    assert_false(spawn_said(&s, 1, "SIGTERM"));
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

/* The others can be seen to have ended before the one that was the reason. */
static void a_killed_rank_ends_slowly(void **state) {
    (void)state;
    char file[] = "/tmp/espresso-test-job-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    spawned s = SPAWN("run", "-n", "2", "--", self, "slow-death", file);
    unlink(file);
    if (s.status != 128 + SIGKILL) fail_msg("status %d\n%s", s.status, s.text[1]);
    check_said(&s, 1, "espresso run: rank 1 (pid ");
    check_said(&s, 1, "espresso run: rank 0 failed after that\n");
    spawn_free(&s);
}

static void a_rank_never_comes(void **state) {
    (void)state;
    spawned s = SPAWN("run", "-n", "3", "--env", "ESPRESSO_TIMEOUT_MS=500", "--", "sh", "-c",
                      "if [ $ESPRESSO_RANK = 1 ]; then exec sleep 60; else exec \"$0\" rank 1 -1; fi", self);
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "missing rank 1");
    check_said(&s, 1, "SIGTERM: rank 1\n");
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_average),      cmocka_unit_test(uneven_machines),
        cmocka_unit_test(a_rank_is_killed),   cmocka_unit_test(a_killed_rank_ends_slowly),
        cmocka_unit_test(a_rank_never_comes),
    };
    if (argc == 4 && strcmp(argv[1], "rank") == 0) return rank_main(atoi(argv[2]), atoi(argv[3]));
    if (argc == 3 && strcmp(argv[1], "slow-death") == 0) return slow_death_main(argv[2]);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
