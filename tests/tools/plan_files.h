/* plan_files.h: shared by the tests of `espresso plan` and `espresso compare`: a folder with a small model, calls of
 * the command, and its JSON. */
#ifndef ESPRESSO_TESTS_PLAN_FILES_H
#define ESPRESSO_TESTS_PLAN_FILES_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "spawn.h"
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <jansson.h>

static char plan_dir[64];
static const char plan_small[] = "{\"espresso\": 1, \"model\": \"small\", \"forward_us\": 100, \"update_us\": 10, "
                                 "\"dtype\": \"f32\", \"tensors\": [\n"
                                 "  {\"name\": \"head.weight\", \"elements\": 4000000, \"compute_us\": 500},\n"
                                 "  {\"name\": \"norm.bias\", \"elements\": 1000, \"compute_us\": 50},\n"
                                 "  {\"name\": \"norm.weight\", \"elements\": 1000, \"compute_us\": 50},\n"
                                 "  {\"name\": \"body.weight\", \"elements\": 2500000, \"compute_us\": 700.5},\n"
                                 "  {\"name\": \"embed.weight\", \"elements\": 9000000, \"compute_us\": 900}\n"
                                 "]}\n";

/* A path in the folder; five live at a time. */
static inline const char *in_dir(const char *name) {
    static char path[5][384];
    static unsigned at;
    char *out = path[at++ % 5];
    snprintf(out, sizeof path[0], "%s/%s", plan_dir, name);
    return out;
}

static inline void put_file(const char *name, const char *text) {
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

/* A system whose collectives keep a core for a part of their time and give up their link early. */
static inline const char *put_cores(int cores) {
    static const char *const collectives[] = {"allreduce", "reduce_scatter", "allgather", "alltoall",
                                              "gather",    "broadcast",      "reduce"};
    static const char *const links[] = {"intra", "inter", "flat"};
    char tables[2000] = "", all[8000];
    size_t n = 0;
    for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++)
        n += (size_t)snprintf(tables + n, sizeof tables - n,
                              "%s\"%s\": {\"points\": [[1000, 300], [10000000, 20000]], "
                              "\"gap\": [[1000, 100], [10000000, 15000]], \"core\": [[1000, 20], [10000000, 4000]]}",
                              i ? ", " : "", collectives[i]);
    n = (size_t)snprintf(all, sizeof all,
                         "{\"espresso\": 1, \"system\": \"cores\", \"machines\": 2, \"ranks_per_machine\": 2, "
                         "\"devices\": [\"cpu\"], \"cores_per_rank\": %d",
                         cores);
    for (int l = 0; l < 3; l++)
        n += (size_t)snprintf(all + n, sizeof all - n, ", \"%s\": {%s\"tables\": {%s}}", links[l],
                              l < 2 ? "\"alpha_us\": 100, \"bytes_per_us\": 500, " : "", tables);
    snprintf(all + n, sizeof all - n, "}\n");
    put_file("cores.json", all);
    return in_dir("cores.json");
}

static inline char *get_file(const char *name) {
    FILE *f = fopen(in_dir(name), "rb");
    char *text = calloc(1, 1 << 20);
    assert_non_null(f);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

static inline int plan_files_open(void **state) {
    (void)state;
    snprintf(plan_dir, sizeof plan_dir, "/tmp/espresso-plan-%d", (int)getpid());
    if (mkdir(plan_dir, 0700) != 0) return 1;
    setenv("ESPRESSO_MODELS", "planner/models", 0);
    put_file("m.json", plan_small);
    return 0;
}

/* Files in the folder; removes them where asked to. */
static inline int files_there(int remove_them) {
    DIR *d = opendir(plan_dir);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        n++;
        if (remove_them) unlink(in_dir(e->d_name));
    }
    if (d) closedir(d);
    return n;
}

static inline int plan_files_close(void **state) {
    (void)state;
    files_there(1);
    return rmdir(plan_dir);
}

/* `espresso SUBCOMMAND` for the small model, or, where `more` says --model, another one; dgc unless --gc is said. */
#define PLAN(...) plan_run("plan", (const char *const[]){__VA_ARGS__, NULL})
#define COMPARE(...) plan_run("compare", (const char *const[]){__VA_ARGS__, NULL})
static inline spawned plan_run(const char *subcommand, const char *const *more) {
    const char *args[48] = {subcommand};
    int n = 1, model = 0, gc = 0, system = 0;
    for (int i = 0; more[i]; i++) {
        model |= !strcmp(more[i], "--model");
        gc |= !strcmp(more[i], "--gc");
        system |= !strcmp(more[i], "--system");
    }
    if (!model) args[n++] = "--model", args[n++] = in_dir("m.json");
    if (!gc) args[n++] = "--gc", args[n++] = "dgc:ratio=0.01";
    if (!system) args[n++] = "--system", args[n++] = "paper-pcie";
    for (int i = 0; more[i] && n < 47; i++) args[n++] = more[i];
    return spawn_all(args);
}

/* Ends with this status, and says that on stdout (0) or stderr (1). */
static inline void check(spawned s, int status, int k, const char *says) {
    if (s.status != status || !spawn_said(&s, k, says))
        fail_msg("status %d, expected %d saying \"%s\"\nstdout:\n%.2000s\nstderr:\n%.2000s", s.status, status, says,
                 s.text[0], s.text[1]);
    spawn_free(&s);
}

/* What it printed, which must be one JSON object and nothing else. The caller decrefs. */
static inline json_t *json_of(spawned s) {
    json_error_t e;
    json_t *j = NULL;
    if (s.status == 0) j = json_loads(s.text[0], JSON_REJECT_DUPLICATES, &e);
    if (!j) fail_msg("status %d\nstdout:\n%.2000s\nstderr:\n%.2000s", s.status, s.text[0], s.text[1]);
    spawn_free(&s);
    return j;
}

static inline double number(const json_t *j, const char *key) {
    const json_t *v = json_object_get(j, key);
    if (!json_is_number(v)) fail_msg("%s: no number", key);
    return json_number_value(v);
}
static inline const char *text(const json_t *j, const char *key) {
    const json_t *v = json_object_get(j, key);
    if (!json_is_string(v)) fail_msg("%s: no text", key);
    return json_string_value(v);
}
#endif
