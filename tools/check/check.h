/* check.h: `espresso plugins --check` checks whether codecs and backends keep the rules in plugins/abi.h. */
#ifndef ESPRESSO_TOOLS_CHECK_H
#define ESPRESSO_TOOLS_CHECK_H
#include "tools/common/args.h"
#include "espresso_impl/executor/executor.h"

typedef unsigned long long check_u; /* printf's %llu takes this type, and uint64_t may be another */

enum { CHECK_TEXT_MAX = 1000 };

typedef struct check_report {
    int passed, failed, skipped;
} check_report;

/* A rule that every codec, or every backend, must keep. */
typedef struct check {
    const char *name, *demands;
    void (*run)(void *target); /* ends with check_fail() or check_skip(), or returns if the check has passed */
} check;
extern int check_in_place, check_pipe;

typedef struct check_fenced {
    unsigned char *map, *data;
    size_t mapped;
} check_fenced;
enum {
    IN_NORMAL,
    IN_ZERO,
    IN_MINUS_ZERO,
    IN_DENORMAL,
    IN_EQUAL,
    IN_NEGATIVE,
    IN_SPIKE,
    IN_LARGE,
    IN_WIDE,
    IN_FEW,
    IN_NAN,
    IN_INF,
    IN_KINDS
};
extern const char *const check_inputs[IN_KINDS];
extern __thread uint64_t check_seed;

typedef struct check_part {
    const esp__codec *codec;
    uint64_t count, rows, cols, step, seed;
    uint32_t n_reduced;
    bool feedback;
    float beta, gamma;
    uint32_t first; /* number of the first exchange that the codec does not skip */
    esp_bound bound[ESP_ROUNDS_MAX];
    check_fenced payload[ESP_ROUNDS_MAX], scratch, state, in, out, residual, phi;
    uint64_t used[ESP_ROUNDS_MAX];
    float *g, *o, *e;
} check_part;
extern const esp_host *check_ctx_host;

enum { CHECK_RANKS = 4, CHECK_MOST = 256, CHECK_OOB = 65536, CHECK_WAIT_S = 120 };

typedef struct check_meet {
    pthread_barrier_t barrier;
    uint8_t oob[CHECK_RANKS][CHECK_OOB];
    int32_t failed;
    char text[CHECK_TEXT_MAX];
    uint64_t hash[CHECK_RANKS];
} check_meet;

/* Connections to the other ranks, if a launcher such as mpirun has started this command. Otherwise `peers` is NULL. */
typedef struct check_launched {
    esp_ctx *ctx;
    esp__peers *peers;
    int32_t rank, size, machine[CHECK_MOST], members[CHECK_MOST];
    int failed; /* 1 if this rank was the first to fail, 2 if another was */
    char text[CHECK_TEXT_MAX];
} check_launched;
extern check_launched check_job;

typedef struct check_backend_target {
    const esp_backend *table;
    const esp_host *host;
    const char *params;
    bool threads;
    esp_devkind where;
} check_backend_target;

typedef struct check_rank {
    const check_backend_target *t;
    check_meet *meet;
    int32_t rank, size, local; /* local: the rank's index on its machine */
    void *comm;
    void (*run)(struct check_rank *r);
} check_rank;
#define CHECK_EACH(n, from) for (int32_t n = (from); n <= check_ranks_most(); n = check_ranks_next(n))

/* Defined in backend.c: */
ESP__FN void check_backend(esp_ctx *ctx, const esp_backend *b, const char *params, check_report *r);
/* Defined in check.c: */
ESP__FN int check_main(const tool_command *self, esp_ctx *ctx, char *const *names, int n_names);
/* Defined in codec.c: */
ESP__FN void check_codec(esp_ctx *ctx, const esp__codec *c, check_report *r);
/* Defined in codec_damage.c: */
ESP__FN void check_corrupt_run(void *target);
ESP__FN void check_among_run(void *target);
/* Defined in codec_inputs.c: */
ESP__FN uint64_t check_rows(const esp__codec *c, uint64_t count, bool matrix);
ESP__FN int check_shapes(const esp__codec *c);
ESP__FN esp_payload_header check_header(check_part *p);
ESP__FN void check_inputs_run(void *target);
ESP__FN void check_steps_run(void *target);
ESP__FN void check_small_run(void *target);
ESP__FN void check_many_run(void *target);
/* Defined in codec_same.c: */
ESP__FN void check_same_run(void *target);
ESP__FN void check_seed_run(void *target);
ESP__FN void check_lists_run(void *target);
ESP__FN void check_threads_run(void *target);
/* Defined in codec_size.c: */
ESP__FN void check_bound_run(void *target);
ESP__FN void check_model_run(void *target);
ESP__FN void check_error_run(void *target);
ESP__FN void check_lossy_run(void *target);
ESP__FN void check_reduce_run(void *target);
/* Defined in device_buffers.c: */
ESP__FN esp_status check_rank_coll(check_rank *r, const esp_coll *c);
/* Defined in part.c: */
ESP__FN check_fenced check_fence(uint64_t bytes, uint64_t align);
ESP__FN void check_unfence(check_fenced *f);
ESP__FN uint32_t check_random(void);
ESP__FN float check_normal(void);
ESP__FN void check_fill(float *x, uint64_t n, int kind);
ESP__FN uint32_t check_last(const check_part *p);
ESP__FN uint8_t *check_payload(check_part *p);
ESP__FN uint64_t check_used(const check_part *p);
ESP__FN esp_status check_bound(const esp__codec *c, uint64_t count, uint64_t rows, uint64_t cols, uint32_t round,
                               uint32_t n_reduced, esp_bound *b);
ESP__FN bool check_feedback(const esp__codec *c);
ESP__FN check_part check_part_make(const esp__codec *c, uint64_t count, uint64_t rows, uint32_t n_reduced);
ESP__FN void check_part_free(check_part *p);
ESP__FN void check_call(check_part *p, const float *data, esp__codec_call *c);
ESP__FN esp_status check_round(check_part *p, uint32_t round, void *data, uint64_t capacity);
ESP__FN esp_status check_compress(check_part *p);
ESP__FN esp_status check_decompress(check_part *p, esp_payload *payloads, uint32_t n, uint32_t mode, float scale);
ESP__FN esp_status check_decode(check_part *p, const void *data, uint64_t bytes);
/* Defined in ranks.c: */
ESP__FN int check_rank_fail(check_rank *r, const char *fmt, ...) ESP__PRINTF(2, 3);
ESP__FN bool check_failed(const check_rank *r);
ESP__FN void check_barrier(check_rank *r);
ESP__FN bool check_same(check_rank *r, uint64_t value);
ESP__FN int32_t check_ranks_most(void);
ESP__FN int32_t check_ranks_next(int32_t n);
ESP__FN esp_status check_oob(void *user, const void *in, void *out, uint64_t bytes);
ESP__FN esp_status check_rank_wait(check_rank *r, void *req);
ESP__FN void check_ranks(const check_backend_target *t, int32_t n, void (*run)(check_rank *r));
ESP__FN int check_launched_open(esp_ctx *ctx, const esp_backend *b, const char *params);
ESP__FN void check_launched_close(void);
/* Defined in report.c: */
ESP__FN void check_doing(const char *fmt, ...) ESP__PRINTF(1, 2);
ESP__FN _Noreturn void check_fail(const char *fmt, ...) ESP__PRINTF(1, 2);
ESP__FN _Noreturn void check_skip(const char *fmt, ...) ESP__PRINTF(1, 2);
ESP__FN void check_catch(void);
ESP__FN void check_one(check_report *r, const check *c, void *target);
ESP__FN void check_all(check_report *r, const check *checks, size_t n, void *target);
#endif
