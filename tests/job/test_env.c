/* test_env.c checks what environment variables of launchers mean, and the errors of wrong values. */
/* runs: no-tsan: one rank at a time: no thread but the context's own */
#include "tests/lib/test.h"

static const char *const names[] = {"ESPRESSO_RANK",
                                    "ESPRESSO_SIZE",
                                    "ESPRESSO_MACHINE",
                                    "ESPRESSO_ROOT",
                                    "ESPRESSO_SECRET",
                                    "ESPRESSO_BACKEND",
                                    "ESPRESSO_CODEC",
                                    "ESPRESSO_STRATEGY",
                                    "ESPRESSO_LOG",
                                    "ESPRESSO_TRACE",
                                    "ESPRESSO_TIMEOUT_MS",
                                    "ESPRESSO_WORKERS",
                                    "ESPRESSO_PROGRESS",
                                    "ESPRESSO_SIMD",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMIX_NAMESPACE",
                                    "OMPI_MCA_ess_base_jobid",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "MPI_LOCALNRANKS",
                                    "SLURM_PROCID",
                                    "SLURM_NTASKS",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_STEP_ID",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_NUM_NODES",
                                    "SLURM_NNODES",
                                    "RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_WORLD_SIZE",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "TORCHELASTIC_RUN_ID"};

static int clean(void **state) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    return 0;
}

/* Sets variables "A=1 B=2 ..." and unsets all others. */
static void set(const char *pairs) {
    char copy[1024], *save = NULL;
    clean(NULL);
    snprintf(copy, sizeof copy, "%s", pairs);
    for (char *p = strtok_r(copy, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(p, '=');
        *equals = 0;
        setenv(p, equals + 1, 1);
    }
}

static void expect(const char *pairs, int32_t rank, int32_t size, const char *root) {
    esp__where w;
    set(pairs);
    if (esp__env_where(NULL, &w) != ESP_OK) fail_msg("%s: %s", pairs, esp_last_error(NULL));
    assert_int_equal(w.rank, rank);
    assert_int_equal(w.size, size);
    assert_string_equal(w.root, root);
}

static void expect_error(const char *pairs, const char *text) {
    esp__where w;
    set(pairs);
    assert_int_equal(esp__env_where(NULL, &w), ESP_E_ARG);
    if (!strstr(esp_last_error(NULL), text)) fail_msg("%s: %s", pairs, esp_last_error(NULL));
}

TEST(test_launchers, clean) {
    char root[128];
    expect("", 0, 1, "");
    expect("ESPRESSO_RANK=3 ESPRESSO_SIZE=4 ESPRESSO_ROOT=unix:x", 3, 4, "unix:x");
    expect("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 ESPRESSO_ROOT=h:5", 1, 2, "h:5");
    expect("PMI_RANK=1 PMI_SIZE=2 ESPRESSO_ROOT=[::1]:5", 1, 2, "[::1]:5");
    expect("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 ESPRESSO_ROOT=h:5", 1, 2, "h:5");
    expect("RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=29500", 1, 2, "h:29501");
    /* on one host, ranks can find each other by the job's name */
    snprintf(root, sizeof root, "unix:espresso-%u-ompi-77", (unsigned)getuid());
    expect("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=77", 1, 2, root);
    expect("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_ess_base_jobid=77", 1,
           2, root);
    snprintf(root, sizeof root, "unix:espresso-%u-slurm-9.1", (unsigned)getuid());
    expect("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=1 SLURM_JOB_ID=9 SLURM_STEP_NUM_NODES=1", 1, 2, root);
}

#define TWO "ESPRESSO_RANK=0 ESPRESSO_SIZE=2 ESPRESSO_ROOT=unix:x "
TEST(test_secret, clean) {
    esp__where w;
    char longest[300];
    set(TWO);
    assert_int_equal(esp__env_where(NULL, &w), ESP_OK);
    assert_null(w.secret);
    set(TWO "ESPRESSO_SECRET=0123456789abcdef");
    assert_int_equal(esp__env_where(NULL, &w), ESP_OK);
    assert_string_equal(w.secret, "0123456789abcdef");
    memset(longest, 'a', sizeof longest);
    longest[255] = 0;
    setenv("ESPRESSO_SECRET", longest, 1);
    assert_int_equal(esp__env_where(NULL, &w), ESP_OK);
    expect_error(TWO "ESPRESSO_SECRET=hunter2hunter2x", "ESPRESSO_SECRET has 15 characters: it must have 16 to 255");
    assert_null(strstr(esp_last_error(NULL), "hunter2")); /* no error shows the secret */
    expect_error(TWO "ESPRESSO_SECRET=", "ESPRESSO_SECRET has 0 characters");
    longest[255] = 'a';
    longest[256] = 0;
    setenv("ESPRESSO_SECRET", longest, 1);
    assert_int_equal(esp__env_where(NULL, &w), ESP_E_ARG);
    expect_error("ESPRESSO_SECRET=short", "5 characters");
}

TEST(test_mpich_ranks_share_their_parents_name, clean) {
    esp__where a, b;
    char prefix[64];
    set("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2");
    assert_int_equal(esp__env_where(NULL, &a), ESP_OK);
    setenv("PMI_RANK", "1", 1);
    assert_int_equal(esp__env_where(NULL, &b), ESP_OK);
    assert_string_equal(a.root, b.root);
    snprintf(prefix, sizeof prefix, "unix:espresso-%u-pmi-", (unsigned)getuid());
    assert_int_equal(strncmp(a.root, prefix, strlen(prefix)), 0);
}

TEST(test_order_of_launchers, clean) {
    expect("ESPRESSO_RANK=3 ESPRESSO_SIZE=4 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 ESPRESSO_ROOT=unix:x", 3, 4,
           "unix:x");
    expect(
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0 ESPRESSO_ROOT=h:1",
        1, 2, "h:1");
    /* Slurm has started torchrun, and torchrun has started this rank: torchrun's variables count */
    expect("SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0 RANK=5 WORLD_SIZE=8 MASTER_ADDR=h MASTER_PORT=1 "
           "TORCHELASTIC_RUN_ID=none",
           5, 8, "h:2");
    expect("SLURM_PROCID=0 SLURM_NTASKS=4", 0, 1, "");
    expect("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_ID=4294967291", 0, 1, "");
    expect("RANK=admiral", 0, 1, "");
    expect("SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 ESPRESSO_ROOT=h:1", 1, 2, "h:1");
}

TEST(test_wrong_values_are_named, clean) {
    expect_error("ESPRESSO_RANK=1", "ESPRESSO_RANK is \"1\" but ESPRESSO_SIZE is not set");
    expect_error("ESPRESSO_SIZE=2", "ESPRESSO_SIZE is \"2\" but ESPRESSO_RANK is not set");
    expect_error("ESPRESSO_RANK=2 ESPRESSO_SIZE=2", "ESPRESSO_RANK is 2 but ESPRESSO_SIZE is 2");
    expect_error("ESPRESSO_RANK=-1 ESPRESSO_SIZE=2", "ESPRESSO_RANK is \"-1\"");
    expect_error("ESPRESSO_RANK=x ESPRESSO_SIZE=2", "ESPRESSO_RANK is \"x\"");
    expect_error("ESPRESSO_RANK=0 ESPRESSO_SIZE=2x", "ESPRESSO_SIZE is \"2x\"");
    expect_error("ESPRESSO_RANK=0 ESPRESSO_SIZE=99999999999999999999", "ESPRESSO_SIZE");
    expect_error("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not set");
    expect_error("PMI_SIZE=2", "PMI_RANK is not set");
    expect_error("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h", "MASTER_PORT is not set");
    expect_error("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=65535", "MASTER_PORT is \"65535\"");
    expect_error("RANK=0 MASTER_ADDR=h MASTER_PORT=1", "WORLD_SIZE is not set");
    expect_error("ESPRESSO_RANK=0 ESPRESSO_SIZE=2 ESPRESSO_ROOT=unix:", "ESPRESSO_ROOT is \"unix:\"");
    expect_error("ESPRESSO_RANK=0 ESPRESSO_SIZE=2 ESPRESSO_ROOT=host", "ESPRESSO_ROOT is \"host\"");
    expect_error("ESPRESSO_RANK=0 ESPRESSO_SIZE=2 ESPRESSO_ROOT=host:0", "ESPRESSO_ROOT is \"host:0\"");
    expect_error("ESPRESSO_RANK=0 ESPRESSO_SIZE=2 ESPRESSO_ROOT=:7", "ESPRESSO_ROOT is \":7\"");
}

/* A missing address of rank 0 is no error of esp__env_where, since some backends connect ranks without it. */
TEST(test_nowhere_to_meet, clean) {
    static const struct {
        const char *pairs;
        int hosts;
    } cases[] = {{"ESPRESSO_RANK=0 ESPRESSO_SIZE=2", 0},
                 {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=1", 1},
                 {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 SLURM_STEP_ID=0 SLURM_JOB_ID=7", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        esp__where w;
        set(cases[i].pairs);
        assert_int_equal(esp__env_where(NULL, &w), ESP_OK);
        assert_true(w.no_root && !*w.root);
        assert_int_equal(w.several_hosts, cases[i].hosts);
        assert_int_equal(w.explicit_rank, i == 0);
        assert_int_equal(esp__env_no_root(NULL, &w), ESP_E_ARG);
        assert_non_null(strstr(esp_last_error(NULL), "set ESPRESSO_ROOT=HOST:PORT"));
    }
}

TEST(test_config_and_environment, clean) {
    esp__where w;
    esp_config cfg = {.rank = 1, .size = 3, .root = "unix:c"};
    set("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2");
    assert_int_equal(esp__env_where(&cfg, &w), ESP_OK);
    assert_int_equal(w.rank, 1);
    assert_int_equal(w.size, 3);
    assert_string_equal(w.root, "unix:c");
    set("ESPRESSO_RANK=0 ESPRESSO_SIZE=2 ESPRESSO_ROOT=unix:e");
    assert_int_equal(esp__env_where(&cfg, &w), ESP_OK);
    assert_int_equal(w.rank, 1);
    assert_int_equal(w.size, 3);
    assert_string_equal(w.root, "unix:c");
    cfg.rank = cfg.size = 0;
    assert_int_equal(esp__env_where(&cfg, &w), ESP_OK);
    assert_int_equal(w.size, 2);
    assert_string_equal(w.root, "unix:c");
    cfg.size = 3;
    set("");
    cfg.rank = 3;
    assert_int_equal(esp__env_where(&cfg, &w), ESP_E_ARG);
    cfg.rank = 0;
    cfg.size = -1;
    assert_int_equal(esp__env_where(&cfg, &w), ESP_E_ARG);
}

static esp_status no_exchange(void *user, const void *in, void *out, uint64_t bytes) {
    (void)user, (void)in, (void)out, (void)bytes;
    return ESP_E_COMM;
}

/* esp_config describes a group of some of the job's ranks. It must have an address of its own, because all groups
 * would meet at the job's address. */
TEST(test_groups_of_a_job, clean) {
    static const struct {
        const char *pairs, *error;
        const char *root;
    } cases[] = {
        {"ESPRESSO_RANK=1 ESPRESSO_SIZE=4 ESPRESSO_ROOT=unix:e", "esp_config has rank 0 of 2, but ESPRESSO_SIZE is 4",
         NULL},
        {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=1", "WORLD_SIZE is 4, and MASTER_ADDR is the address", NULL},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 ESPRESSO_ROOT=h:1", "OMPI_COMM_WORLD_SIZE is 4", NULL},
        {"PMI_RANK=1 PMI_SIZE=4 ESPRESSO_ROOT=h:1", "PMI_SIZE is 4", NULL},
        {"SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_STEP_ID=0 ESPRESSO_ROOT=h:1", "SLURM_NTASKS is 4", NULL},
        {"ESPRESSO_RANK=1 ESPRESSO_SIZE=2 ESPRESSO_ROOT=unix:e", NULL, "unix:e"},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", NULL, "h:2"},
        {"ESPRESSO_ROOT=unix:e", NULL, "unix:e"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        esp__where w;
        esp_config cfg = {.size = 2};
        set(cases[i].pairs);
        assert_int_equal(esp__env_where(&cfg, &w), cases[i].error ? ESP_E_ARG : ESP_OK);
        if (cases[i].error && !strstr(esp_last_error(NULL), cases[i].error)) fail_msg("%s", esp_last_error(NULL));
        if (cases[i].root) assert_string_equal(w.root, cases[i].root);
        cfg.oob_allgather = no_exchange; /* needs no address */
        assert_int_equal(esp__env_where(&cfg, &w), ESP_OK);
        assert_int_equal(w.size, 2);
        assert_string_equal(w.root, "");
        cfg.oob_allgather = NULL, cfg.root = "unix:own";
        assert_int_equal(esp__env_where(&cfg, &w), ESP_OK);
        assert_string_equal(w.root, "unix:own");
        cfg = (esp_config){.rank = 3}; /* a rank without a size */
        assert_int_equal(esp__env_where(&cfg, &w), ESP_E_ARG);
    }
}

TEST(test_machine, clean) {
    esp_config cfg = ESP_ZERO;
    esp__where a, b;
    char longest[200];
    set("ESPRESSO_MACHINE=0");
    assert_int_equal(esp__env_where(NULL, &a), ESP_OK);
    assert_string_equal(a.machine, "m0");
    cfg.machine = 7; /* the environment takes precedence */
    assert_int_equal(esp__env_where(&cfg, &a), ESP_OK);
    assert_string_equal(a.machine, "m0");
    set("");
    assert_int_equal(esp__env_where(&cfg, &a), ESP_OK);
    assert_string_equal(a.machine, "m7");
    assert_int_equal(esp__env_where(NULL, &a), ESP_OK);
    assert_int_equal(esp__env_where(NULL, &b), ESP_OK);
    assert_string_equal(a.machine, b.machine);
    assert_true(strlen(a.machine) > 30); /* the default name contains the machine's boot id */
    cfg.machine = -1;
    assert_int_equal(esp__env_where(&cfg, &a), ESP_E_ARG);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    setenv("ESPRESSO_MACHINE", longest, 1);
    assert_int_equal(esp__env_where(NULL, &a), ESP_E_ARG);
}

TEST(test_overrides, clean) {
    esp_config cfg = ESP_ZERO, out;
    cfg.codec = "topk";
    cfg.backend = "shm";
    cfg.timeout_ms = 5;
    cfg.seed = 77;
    set("ESPRESSO_CODEC=dgc ESPRESSO_TIMEOUT_MS=1500 ESPRESSO_WORKERS=3 ESPRESSO_LOG=debug ESPRESSO_TRACE=t.json "
        "ESPRESSO_STRATEGY=fp32");
    assert_int_equal(esp__env_config(&cfg, &out), ESP_OK);
    assert_string_equal(out.codec, "dgc");
    assert_string_equal(out.backend, "shm");
    assert_string_equal(out.strategy, "fp32");
    assert_string_equal(out.trace, "t.json");
    assert_int_equal(out.timeout_ms, 1500);
    assert_int_equal(out.cpu_workers, 3);
    assert_int_equal(out.log_level, ESP_LOG_DEBUG);
    assert_true(out.seed == 77);
    set("ESPRESSO_CODEC= ESPRESSO_LOG=2"); /* an empty variable counts as not set */
    assert_int_equal(esp__env_config(&cfg, &out), ESP_OK);
    assert_string_equal(out.codec, "topk");
    assert_int_equal(out.log_level, ESP_LOG_WARN);
    assert_int_equal(esp__env_config(NULL, &out), ESP_OK);
    assert_null(out.codec);
}

TEST(test_workers, clean) {
    static const struct {
        const char *member;
        uint32_t number;
        const char *environment, *workers;
        uint32_t n;
    } cases[] = {
        {NULL, 0, "", NULL, 0},
        {"pthreads", 2, "", NULL, 2},
        {"pthreads:3", 2, "", NULL, 3},
        {"openmp", 0, "", "openmp", 0},
        {"openmp:4096", 2, "", "openmp", 4096},
        {"", 2, "ESPRESSO_WORKERS=openmp", "openmp", 2},
        {NULL, 0, "ESPRESSO_WORKERS=openmp:5", "openmp", 5},
        {"openmp", 2, "ESPRESSO_WORKERS=4", NULL, 4},
        {"openmp:2", 0, "ESPRESSO_WORKERS=pthreads:1", NULL, 1},
        {"openmp", 0, "ESPRESSO_WORKERS=", "openmp", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        esp_config cfg = {.workers = cases[i].member, .cpu_workers = cases[i].number}, out;
        set(cases[i].environment);
        assert_int_equal(esp__env_config(&cfg, &out), ESP_OK);
        assert_int_equal(out.cpu_workers, cases[i].n);
        assert_int_equal(out.workers != NULL, cases[i].workers != NULL);
        if (out.workers) assert_string_equal(out.workers, cases[i].workers);
    }
}

TEST(test_progress, clean) {
    esp_config cfg = {.progress = "threads"}, out;
    set("");
    assert_int_equal(esp__env_config(&cfg, &out), ESP_OK);
    assert_string_equal(out.progress, "threads");
    set("ESPRESSO_PROGRESS=caller");
    assert_int_equal(esp__env_config(&cfg, &out), ESP_OK);
    assert_string_equal(out.progress, "caller");
    assert_int_equal(esp__env_config(NULL, &out), ESP_OK);
    assert_string_equal(out.progress, "caller");
    set("");
    assert_int_equal(esp__env_config(NULL, &out), ESP_OK);
    assert_null(out.progress);
    cfg.progress = "thread";
    assert_int_equal(esp__env_config(&cfg, &out), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "esp_config.progress is \"thread\""));
}

/* A caller built with an older header has a shorter struct, which must not be read past its end. */
TEST(test_short_config, clean) {
    esp_config cfg = ESP_ZERO, out;
    set("");
    cfg.struct_size = offsetof(esp_config, timeout_ms);
    cfg.codec = "topk";
    cfg.timeout_ms = 9;
    cfg.seed = 9;
    assert_int_equal(esp__env_config(&cfg, &out), ESP_OK);
    assert_string_equal(out.codec, "topk");
    assert_int_equal(out.timeout_ms, 0);
    assert_true(out.seed == 0);
    assert_int_equal(out.struct_size, sizeof out);
    cfg.struct_size = 3;
    assert_int_equal(esp__env_config(&cfg, &out), ESP_E_ARG);
    esp_config empty = {.backend = "",
                        .codec = "",
                        .strategy = "",
                        .plugin_path = "",
                        .root = "",
                        .trace = "",
                        .stats = "",
                        .workers = ""};
    assert_int_equal(esp__env_config(&empty, &out), ESP_OK);
    assert_true(!out.backend && !out.codec && !out.strategy && !out.plugin_path && !out.root && !out.trace &&
                !out.stats && !out.workers);
}

TEST(test_wrong_overrides_are_named, clean) {
    static const char *const cases[] = {
        "ESPRESSO_TIMEOUT_MS=0",    "ESPRESSO_TIMEOUT_MS=5s",   "ESPRESSO_WORKERS=-2",      "ESPRESSO_WORKERS=4097",
        "ESPRESSO_WORKERS=4x",      "ESPRESSO_WORKERS=OpenMP",  "ESPRESSO_WORKERS=openmp:", "ESPRESSO_WORKERS=openmp:0",
        "ESPRESSO_WORKERS=openmpi", "ESPRESSO_PROGRESS=thread", "ESPRESSO_LOG=loud",        "ESPRESSO_LOG=5",
        "ESPRESSO_ROOT=nowhere",    "ESPRESSO_SIMD=avx"};
    esp_config out;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        set(cases[i]);
        snprintf(name, sizeof name, "%.*s is \"%s\"", (int)strcspn(cases[i], "="), cases[i], strchr(cases[i], '=') + 1);
        assert_int_equal(esp__env_config(NULL, &out), ESP_E_ARG);
        if (!strstr(esp_last_error(NULL), name)) fail_msg("%s: %s", cases[i], esp_last_error(NULL));
    }
}

static char warned[2048];
static void keep_warnings(void *user, const esp_log_event *ev) {
    if (ev->level == ESP_LOG_WARN)
        snprintf(warned + strlen(warned), sizeof warned - strlen(warned), "%s\n", ev->message);
}

TEST(test_misspelt_names, clean) {
    static const struct {
        const char *set, *meant;
    } cases[] = {
        {"ESPRESSO_STRATEGIE", "ESPRESSO_STRATEGY"},
        {"ESPRESSO_CODECS", "ESPRESSO_CODEC"},
        {"espresso_codec", "ESPRESSO_CODEC"},
        {"EXPRESSO_CODEC", "ESPRESSO_CODEC"},
        {"ESPRESO_TRACE", "ESPRESSO_TRACE"},
        {"ESPRESSO_TIMEOUT", "ESPRESSO_TIMEOUT_MS"},
        {"ESPRESSO_LOG_LEVEL", "ESPRESSO_LOG"},
        {"ESPRESSO_RAW_UP_TO", "ESPRESSO_MIN_COMPRESS_ELEMENTS"}, /* renamed */
        {"ESPRESSO_STALL_MS", "ESPRESSO_STRAGGLER_MS"},
        {"ESPRESSO_WORKER", "ESPRESSO_WORKERS"},
        {"ESPRESSO_PLUGINPATH", "ESPRESSO_PLUGIN_PATH"},
        {"ESPRESSO_HOME", NULL},
        {"MY_CODEC", NULL},
        {"ESPRESSO", NULL},
        {"ESPRESSO_SIMD", NULL},
    };
    esp_host host = {.struct_size = sizeof host, .log = keep_warnings};
    esp_config cfg = {.host = &host, .backend = "loop"};
    esp_ctx *ctx;
    set("");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char expected[256] = "";
        warned[0] = 0;
        setenv(cases[i].set, "scalar", 1);
        esp_ctx fake = {.base = {.user_host = &host, .log_level = ESP_LOG_WARN}};
        esp__env_check_names(&fake);
        if (cases[i].meant)
            snprintf(expected, sizeof expected, "%s is set, but no variable of that name is read: did you mean %s?\n",
                     cases[i].set, cases[i].meant);
        assert_string_equal(warned, expected);
        if (cases[i].meant && i) unsetenv(cases[i].set);
        if (i == 0) { /* a job warns once */
            warned[0] = 0;
            assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
            esp_close(ctx);
            assert_string_equal(warned, expected);
            assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
            esp_close(ctx);
            assert_string_equal(warned, expected);
            unsetenv(cases[i].set);
        }
    }
    unsetenv("ESPRESSO_HOME"), unsetenv("MY_CODEC"), unsetenv("ESPRESSO"), unsetenv("ESPRESSO_SIMD");
}

static esp_status refused(const esp_config *cfg) {
    esp_ctx *ctx;
    return esp_open(cfg, &ctx);
}
TEST(test_wrong_members_are_named, clean) {
    static const struct {
        esp_config cfg;
        const char *says;
    } cases[] = {
        {{.flags = 99},
         "esp_config.flags is 99: known are ESP_ALLOW_OVERRIDE (1), ESP_DISCARDABLE (2) and ESP_JOIN (4)"},
        {{.log_level = 7}, "esp_config.log_level is 7"},
        {{.log_level = -1}, "esp_config.log_level is -1"},
        {{.n_builtin = 2}, "esp_config.n_builtin is 2, but builtin is NULL"},
        {{.workers = "threads"}, "esp_config.workers is \"threads\": it must be \"pthreads\" or \"openmp\""},
        {{.workers = "4"}, "esp_config.workers is \"4\": it must be"},
        {{.rank = 1}, "esp_config.rank is 1, but size is 0: set both, or neither"},
    };
    set("");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(refused(&cases[i].cfg), ESP_E_ARG);
        if (!strstr(esp_last_error(NULL), cases[i].says)) fail_msg("%d: %s", (int)i, esp_last_error(NULL));
    }
}
