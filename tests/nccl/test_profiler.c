/* test_profiler.c plays NCCL: loads libnccl-profiler-espresso.so as NCCL does, makes the calls of each version of the
 * profiler interface with descriptions of events whose members lie where NVIDIA's headers have them, and reads the
 * file. */
/* runs: tsan */
#define _GNU_SOURCE
#include "tests/lib/test.h"
#include <dlfcn.h>
#include <jansson.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct profiler {
    const char *name;
    void *init;
    int (*start)(void *, void **, void *);
    int (*stop)(void *);
    int (*state)(void *, int, void *);
    int (*finalize)(void *);
} profiler;

static int nccl_version; /* 0: ncclGetVersion fails, as if NCCL were not found */
__attribute__((visibility("default"))) int ncclGetVersion(int *version);
int ncclGetVersion(int *version) { return *version = nccl_version, nccl_version == 0; }

static void put(unsigned char *d, size_t at, uint64_t value, size_t bytes) { memcpy(d + at, &value, bytes); }

/* A description of a collective: offsets are those of v3, v4, and v5 to v7. */
static void describe(unsigned char d[160], int version, uint64_t type, int rank, const char *func, uint64_t count,
                     const char *datatype) {
    memset(d, 0xee, 160); /* other members have any value */
    put(d, 0, type, version < 5 ? 1 : 8);
    put(d, 16, (uint64_t)rank, 4);
    if (type == 1 << 9) { /* the call: func, count, datatype, root */
        put(d, 24, (uint64_t)(uintptr_t)func, 8), put(d, 32, count, 8);
        put(d, 40, (uint64_t)(uintptr_t)datatype, 8);
        return;
    }
    const size_t at = version == 3 ? 40 : 24; /* v3: after the communicator's name and hash */
    if (version == 3) put(d, 32, 0xabc, 8);
    put(d, at, 7, 8);
    put(d, at + 8, (uint64_t)(uintptr_t)func, 8);
    put(d, at + 32, count, 8);
    put(d, at + 48, (uint64_t)(uintptr_t)datatype, 8);
}

static void *open_comm(const profiler *p, int version, int *mask) {
    void *context = NULL;
    int r = -1;
    if (version == 3)
        r = ((int (*)(void **, int *))p->init)(&context, mask);
    else if (version == 4)
        r = ((int (*)(void **, int *, const char *, uint64_t, int, int, int, void *))p->init)(&context, mask, "c",
                                                                                              0xabc, 2, 8, 3, NULL);
    else
        r = ((int (*)(void **, uint64_t, int *, const char *, int, int, int, void *))p->init)(&context, 0xabc, mask,
                                                                                              "c", 2, 8, 3, NULL);
    assert_int_equal(r, 0);
    return context;
}

enum { THREADS = 4, EVENTS = 5000 };
typedef struct work {
    const profiler *p;
    void *context;
    int version;
} work;

static void *collectives(void *user) {
    const work *w = user;
    for (int i = 0; i < EVENTS; i++) {
        unsigned char d[160];
        void *handle = NULL;
        describe(d, w->version, 2, 3, "AllReduce", 1000 + (uint64_t)i, "ncclFloat32");
        w->p->start(w->context, &handle, d);
        w->p->state(handle, 1, NULL);
        w->p->stop(handle);
    }
    return NULL;
}

/* In a process of its own, as the file has the process's number. */
static void child(const char *library, int version) {
    char symbol[32];
    unsigned char d[160];
    void *handle, *other;
    int mask = -1;
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    void *const so = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!so) fprintf(stderr, "%s\n", dlerror());
    const profiler *p = so ? dlsym(so, symbol) : NULL;
    assert_non_null(p);
    void *context = open_comm(p, version, &mask);
    if (nccl_version && nccl_version < (version < 7 ? 22600 : 23200)) {
        assert_int_equal(mask, 0); /* nothing is asked for */
        _exit(0);
    }
    assert_int_equal(mask, version < 5 ? 2 : 2 | 1 << 9);
    describe(d, version, 1, 3, "group", 5, "none"); /* a parent, which was not asked for */
    assert_int_equal(p->start(context, &handle, d), 0);
    assert_null(handle);
    assert_int_equal(p->stop(handle), 0);
    if (version >= 5) {
        describe(d, version, 1 << 9, 3, "AllReduce", 123, "ncclBfloat16");
        assert_int_equal(p->start(context, &other, d), 0);
        assert_int_equal(p->stop(other), 0);
    }
    pthread_t thread[THREADS];
    work w = {p, context, version};
    for (int t = 0; t < THREADS; t++) pthread_create(&thread[t], NULL, collectives, &w);
    for (int t = 0; t < THREADS; t++) pthread_join(thread[t], NULL);
    describe(d, version, 2, 3, "Broadcast", 9, "ncclInt8"); /* ends without a stop */
    assert_int_equal(p->start(context, &handle, d), 0);
    assert_int_equal(p->finalize(context), 0);
    assert_int_equal(p->stop(handle), 0); /* late: it must find no other event */
    exit(0);
}

static json_t *lines_of(const char *folder, pid_t pid) {
    char path[300], line[1000];
    snprintf(path, sizeof path, "%s/espresso-nccl.%d.jsonl", folder, (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return NULL;
    json_t *all = json_array();
    while (fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        json_array_append_new(all, o);
    }
    fclose(f);
    unlink(path);
    return all;
}

static pid_t play(int version, const char *folder, int *status) {
    char library[500];
    snprintf(library, sizeof library, "%s/lib/libnccl-profiler-espresso.so", getenv("ESPRESSO_BUILD"));
    const pid_t pid = fork();
    if (!pid) {
        setenv("ESPRESSO_NCCL_TRACE", folder, 1);
        child(library, version);
    }
    waitpid(pid, status, 0);
    return pid;
}

TEST(test_each_version) {
    char folder[] = "/tmp/espresso-profiler-XXXXXX";
    assert_non_null(mkdtemp(folder));
    for (int version = 3; version <= 7; version++) {
        int status = -1, calls = 0, broadcasts = 0;
        uint64_t counts = 0;
        nccl_version = version < 7 ? 22600 : 23202;
        const pid_t pid = play(version, folder, &status);
        assert_int_equal(status, 0);
        json_t *all = lines_of(folder, pid), *o;
        size_t i;
        assert_non_null(all);
        assert_int_equal(json_array_size(all), THREADS * EVENTS + 1 + (version >= 5));
        json_array_foreach(all, i, o) {
            const char *func = json_string_value(json_object_get(o, "func"));
            const double start = json_number_value(json_object_get(o, "start_us"));
            const double stop = json_number_value(json_object_get(o, "stop_us"));
            assert_string_equal(json_string_value(json_object_get(o, "comm")), "abc");
            assert_int_equal(json_integer_value(json_object_get(o, "rank")), 3);
            assert_int_equal(json_integer_value(json_object_get(o, "ranks")), version == 3 ? 0 : 8);
            assert_int_equal(json_integer_value(json_object_get(o, "nodes")), version == 3 ? 0 : 2);
            if (!strcmp(json_string_value(json_object_get(o, "event")), "call")) {
                calls++;
                assert_int_equal(json_integer_value(json_object_get(o, "count")), 123);
                assert_string_equal(json_string_value(json_object_get(o, "datatype")), "ncclBfloat16");
                assert_true(stop >= start);
            } else if (!strcmp(func, "Broadcast")) {
                broadcasts++;
                assert_true(stop == 0);
            } else {
                assert_string_equal(func, "AllReduce");
                assert_string_equal(json_string_value(json_object_get(o, "datatype")), "ncclFloat32");
                assert_int_equal(json_integer_value(json_object_get(o, "seq")), 7);
                counts += (uint64_t)json_integer_value(json_object_get(o, "count"));
            }
        }
        assert_int_equal(calls, version >= 5);
        assert_int_equal(broadcasts, 1);
        assert_true(counts == THREADS * (1000ull * EVENTS + (uint64_t)EVENTS * (EVENTS - 1) / 2));
        json_decref(all);
    }
    rmdir(folder);
}

/* NCCLs that use an interface before NVIDIA's did have a layout that is not known: nothing is recorded. */
TEST(test_forks) {
    char folder[] = "/tmp/espresso-profiler-XXXXXX";
    assert_non_null(mkdtemp(folder));
    const int cases[][2] = {{22500, 3}, {22700, 7}, {23100, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status = -1;
        nccl_version = cases[i][0];
        const pid_t pid = play(cases[i][1], folder, &status);
        assert_int_equal(status, 0);
        assert_null(lines_of(folder, pid));
    }
    rmdir(folder);
}
