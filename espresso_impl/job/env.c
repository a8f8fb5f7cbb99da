/* env.c: reads rank, size, machine and rank 0's address from the launcher's environment, and ESPRESSO_* variables. */
#include "espresso_impl/job/job.h"
#include "espresso_impl/base/machine.h"
#include <unistd.h>

enum { ESP__STRAGGLER_DEFAULT_MS = 10000 };

static const char *esp__env_get(const char *name) {
    const char *s = getenv(name);
    return s && *s ? s : NULL;
}

static esp_status esp__env_int(const char *name, int64_t min, int64_t max, int64_t *out) {
    const char *s = esp__env_get(name);
    char *end = NULL;
    long long v = s ? strtoll(s, &end, 10) : 0;
    if (!s || end == s || *end || v < min || v > max)
        return esp__fail(NULL, ESP_E_ARG, "%s is \"%s\": it must be a whole number from %lld to %lld", name, s ? s : "",
                         (long long)min, (long long)max);
    *out = v;
    return ESP_OK;
}

/* The names of the variables by which a launcher passes rank, size, and the number of ranks on this host. */
typedef struct esp__launcher {
    const char *name, *rank, *size, *local_size;
    const char *required; /* a variable that must be set, too, or NULL */
} esp__launcher;

static const esp__launcher esp__by_espresso = {"ESPRESSO_RANK and ESPRESSO_SIZE", "ESPRESSO_RANK", "ESPRESSO_SIZE",
                                               NULL, NULL};

/* The first launcher whose variables are set counts. A torchrun job may itself have been started by MPI or Slurm, so
 * torchrun's own variable is tried first. RANK and WORLD_SIZE alone are common names, so they are tried last. */
static const esp__launcher esp__launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", NULL},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, "SLURM_STEP_ID"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", NULL, "SLURM_STEP_ID"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"},
};

/* Did srun start this process? Slurm also sets a rank in batch scripts and shells, with step ids near 2^32. */
static bool esp__env_slurm_step(void) {
    int64_t step = 0;
    const char *s = esp__env_get("SLURM_STEP_ID");
    char *end = NULL;
    if (s) step = strtoll(s, &end, 10);
    return s && end != s && !*end && step >= 0 && step < 0xfffffff0ll;
}

static esp_status esp__env_pair(const char *rank_name, const char *size_name, esp__where *out) {
    int64_t rank = 0, size = 0;
    esp_status s;
    if (!esp__env_get(rank_name) || !esp__env_get(size_name)) {
        const char *have = esp__env_get(rank_name) ? rank_name : size_name;
        return esp__fail(NULL, ESP_E_ARG, "%s is \"%s\" but %s is not set: set both, or neither", have,
                         esp__env_get(have), have == rank_name ? size_name : rank_name);
    }
    s = esp__env_int(size_name, 1, INT32_MAX, &size);
    if (s == ESP_OK) s = esp__env_int(rank_name, 0, INT32_MAX, &rank);
    if (s != ESP_OK) return s;
    if (rank >= size)
        return esp__fail(NULL, ESP_E_ARG, "%s is %lld but %s is %lld: ranks go from 0 to %lld", rank_name,
                         (long long)rank, size_name, (long long)size, (long long)size - 1);
    out->rank = (int32_t)rank;
    out->size = (int32_t)size;
    return ESP_OK;
}

static const esp__launcher *esp__env_launcher(void) {
    for (size_t i = 0; i < sizeof esp__launchers / sizeof *esp__launchers; i++) {
        const esp__launcher *l = &esp__launchers[i];
        const bool slurm = !strcmp(l->name, "Slurm");
        if (!esp__env_get(l->rank) && !esp__env_get(l->size)) continue;
        if (l->required && !esp__env_get(l->required)) continue;
        if (slurm && (!esp__env_slurm_step() || !esp__env_get(l->size))) continue;
        return l;
    }
    return NULL;
}

ESP__FN int32_t esp__env_process(void) {
    const esp__launcher *l = esp__env_launcher();
    const char *rank = esp__env_get("ESPRESSO_RANK");
    if (!rank && l) rank = esp__env_get(l->rank);
    return rank ? (int32_t)strtol(rank, NULL, 10) : -1;
}

/* Reads rank and size from the variables of `l`, whose name then is out->launcher. */
static esp_status esp__env_launched(const esp__launcher *l, const esp_config *cfg, esp__where *out) {
    out->launcher = l->name;
    const esp_status s = esp__env_pair(l->rank, l->size, out);
    if (s || !cfg || !cfg->rank || cfg->rank == out->rank) return s;
    return esp__fail(NULL, ESP_E_ARG,
                     "esp_config.rank is %d, but %s is %d: set esp_config.size, too, or leave esp_config.rank 0",
                     (int)cfg->rank, l->rank, (int)out->rank);
}

/* Reads rank and size from esp_config if they are set there, since a job of `espresso run` may consist of several
 * groups of ranks; else from ESPRESSO_* or the variables of launcher `l`. */
static esp_status esp__env_rank(const esp_config *cfg, const esp__launcher *l, esp__where *out) {
    if (cfg && cfg->size != 0) {
        out->launcher = "esp_config";
        if (cfg->size < 0 || cfg->rank < 0 || cfg->rank >= cfg->size)
            return esp__fail(NULL, ESP_E_ARG,
                             "esp_config has rank %d of size %d: size must be at least 1 and rank from 0 to size - 1",
                             (int)cfg->rank, (int)cfg->size);
        out->rank = cfg->rank;
        out->size = cfg->size;
        return ESP_OK;
    }
    if (l) return esp__env_launched(l, cfg, out);
    if (cfg && cfg->rank)
        return esp__fail(NULL, ESP_E_ARG,
                         "esp_config.rank is %d, but size is 0: set both, or neither (then a launcher's environment "
                         "has the rank: espresso run, mpirun, srun or torchrun)",
                         (int)cfg->rank);
    out->launcher = "nothing: one rank alone";
    out->rank = 0;
    out->size = 1;
    return ESP_OK;
}

/* Reads the names of a rank's rack and machine, such as "rack1/machine0". Error texts begin with `what`. */
static esp_status esp__env_place(const char *what, const char *place, esp__where *out) {
    uint32_t parts = 1;
    size_t n = strlen(place);
    for (const char *p = place; *p; p++) parts += *p == '/';
    if (n >= sizeof out->machine || place[0] == '/' || place[n - 1] == '/' || strstr(place, "//") ||
        parts >= ESP__LEVELS)
        return esp__fail(NULL, ESP_E_ARG,
                         "%s is \"%s\": it must be one or two names with '/' between, the outermost first, as in "
                         "rack1/machine0, at most %zu characters",
                         what, place, sizeof out->machine - 1);
    snprintf(out->machine, sizeof out->machine, "%s", place);
    out->n_levels = parts + 1;
    return ESP_OK;
}

static esp_status esp__env_machine(const esp_config *cfg, esp__where *out) {
    const char *s = esp__env_get("ESPRESSO_MACHINE"), *place = esp__env_get("ESPRESSO_PLACE");
    char host[64] = "", boot[ESP__BOOT_ID];
    out->n_levels = 2;
    if (place) return esp__env_place("ESPRESSO_PLACE", place, out);
    if (!s && cfg && cfg->place && *cfg->place) return esp__env_place("esp_config.place", cfg->place, out);
    if (s && strlen(s) + 2 > sizeof out->machine)
        return esp__fail(NULL, ESP_E_ARG, "ESPRESSO_MACHINE is %zu characters long: at most %zu are allowed", strlen(s),
                         sizeof out->machine - 2);
    if (s || (cfg && cfg->machine > 0)) {
        if (s) snprintf(out->machine, sizeof out->machine, "m%s", s);
        if (!s) snprintf(out->machine, sizeof out->machine, "m%d", (int)cfg->machine);
        return ESP_OK;
    }
    if (cfg && cfg->machine < 0)
        return esp__fail(NULL, ESP_E_ARG, "esp_config.machine is %d: use 0 for \"by host name\", or a number above 0",
                         (int)cfg->machine);
    gethostname(host, sizeof host - 1);
    /* cloned machines may share a host name, and it may be empty: so add the boot id */
    esp__boot_id(boot);
    snprintf(out->machine, sizeof out->machine, "%s/%s", host, boot);
    return ESP_OK;
}

ESP__FN uint64_t esp__env_host(void) {
    char boot[ESP__BOOT_ID] = "", space[64] = "";
    unsigned long cores[128] = {0};
    esp__boot_id(boot);
    if (!*boot) gethostname(boot, sizeof boot - 1);
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) *space = 0; /* differs between containers */
    esp__cores_mask(cores);
    return esp__hash64(esp__hash64(esp__hash64(ESP__HASH0, boot, strlen(boot)), space, strlen(space)), cores,
                       sizeof cores);
}

static esp_status esp__env_check_root(const char *what, const char *root) {
    const char *colon = strrchr(root, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!strncmp(root, "unix:", 5)) {
        if (root[5] && strlen(root + 5) <= 100) return ESP_OK;
        return esp__fail(NULL, ESP_E_ARG, "%s is \"%s\": the name after \"unix:\" must have 1 to 100 characters", what,
                         root);
    }
    if (!colon || colon == root || end == colon + 1 || *end || port < 1 || port > 65535 ||
        strlen(root) >= sizeof((esp__where *)0)->root)
        return esp__fail(NULL, ESP_E_ARG, "%s is \"%s\": it must be HOST:PORT or unix:NAME", what, root);
    return ESP_OK;
}

/* Writes a text that identifies an MPICH job on this host. MPICH sets no job id, but one proxy process starts all ranks
 * of a host, and its pid and start time identify the job. If there is no proxy, the parent process is used. */
static int esp__env_proxy(char *out, size_t cap) {
    long pid = (long)getppid(), parent = pid, first = pid;
    unsigned long long start = 0, first_start = 0;
    for (int depth = 0; depth < 16 && pid > 1; depth++, pid = parent) {
        char path[64], line[512] = "", *end;
        FILE *f;
        snprintf(path, sizeof path, "/proc/%ld/stat", pid);
        if (!(f = fopen(path, "re"))) break;
        if (!fgets(line, (int)sizeof line, f)) line[0] = 0;
        fclose(f);
        /* the line is "pid (name) state ppid ...", the start time is 18 fields after ppid, the name may contain ')' */
        if (!(end = strrchr(line, ')')) ||
            sscanf(end + 1, " %*c %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                   &parent, &start) != 2)
            break;
        if (pid == first) first_start = start;
        if (strstr(line, "(hydra_pmi_proxy)")) return snprintf(out, cap, "pmi-%ld-%llu", pid, start);
    }
    return first_start ? snprintf(out, cap, "pmi-%ld-%llu", first, first_start) : 0;
}

/* Writes a name that all of the job's ranks on this host share and that no other job there has, or "". */
static void esp__env_job(const esp__launcher *l, char *out, size_t cap) {
    out[0] = 0;
    if (!strcmp(l->name, "Open MPI")) {
        const char *job = esp__env_get("PMIX_NAMESPACE");
        if (!job) job = esp__env_get("OMPI_MCA_ess_base_jobid");
        if (job) snprintf(out, cap, "ompi-%s", job);
    } else if (!strcmp(l->name, "MPICH")) {
        esp__env_proxy(out, cap);
    } else if (!strcmp(l->name, "Slurm") && esp__env_get("SLURM_JOB_ID")) {
        snprintf(out, cap, "slurm-%s.%s", esp__env_get("SLURM_JOB_ID"), esp__env_get("SLURM_STEP_ID"));
    }
}

enum { ESP__HOSTS_UNKNOWN, ESP__HOSTS_ONE, ESP__HOSTS_SEVERAL };
/* Returns whether the launcher has started ranks on one host or several. */
static int esp__env_hosts(const esp__launcher *l) {
    const char *local = l->local_size ? esp__env_get(l->local_size) : NULL, *all = esp__env_get(l->size);
    const int size = atoi(all ? all : "0");
    const char *step = esp__env_get("SLURM_STEP_NUM_NODES"), *job = esp__env_get("SLURM_NNODES");
    const int n = local ? atoi(local) : 0, nodes = atoi(step ? step : job ? job : "0");
    if (l->local_size) return n == size ? ESP__HOSTS_ONE : n > 0 && n < size ? ESP__HOSTS_SEVERAL : ESP__HOSTS_UNKNOWN;
    return nodes == 1 ? ESP__HOSTS_ONE : step && nodes > 1 ? ESP__HOSTS_SEVERAL : ESP__HOSTS_UNKNOWN;
}

/* Ranks meet at MASTER_ADDR and MASTER_PORT + 1, because torchrun's own store listens at MASTER_PORT. */
static esp_status esp__env_master(esp__where *out) {
    const char *host = esp__env_get("MASTER_ADDR");
    int64_t port = 0;
    esp_status s;
    if (!esp__env_get("MASTER_PORT"))
        return esp__fail(NULL, ESP_E_ARG,
                         "MASTER_ADDR is \"%s\" but MASTER_PORT is not set: set both, or ESPRESSO_ROOT=HOST:PORT",
                         host);
    s = esp__env_int("MASTER_PORT", 1, 65534, &port);
    if (s != ESP_OK) return s;
    if (strlen(host) + 16 > sizeof out->root)
        return esp__fail(NULL, ESP_E_ARG, "MASTER_ADDR is %zu characters long: that is no host name", strlen(host));
    snprintf(out->root, sizeof out->root, "%s:%d", host, (int)port + 1);
    return ESP_OK;
}

/* If the program's group has only some of the launcher's ranks, refuses the address in the environment: all groups
 * would connect there and be taken for one job. */
static esp_status esp__env_root_of_job(const esp_config *cfg, const char *variable, const esp__where *w) {
    const esp__launcher *l = esp__env_get("ESPRESSO_SIZE") ? &esp__by_espresso : esp__env_launcher();
    const char *size = l && cfg && cfg->size ? esp__env_get(l->size) : NULL;
    if (!size || strtol(size, NULL, 10) == w->size) return ESP_OK;
    return esp__fail(NULL, ESP_E_ARG,
                     "esp_config has rank %d of %d, but %s is %s, and %s is the address of all these ranks: give each "
                     "group of ranks an address of its own in esp_config.root, or an exchange in .oob_allgather",
                     (int)w->rank, (int)w->size, l->size, size, variable);
}

static esp_status esp__env_root(const esp_config *cfg, const esp__launcher *l, esp__where *out) {
    const char *root = cfg && cfg->root && *cfg->root ? cfg->root : NULL;
    const char *what = root ? "esp_config.root" : "ESPRESSO_ROOT";
    char job[ESP__NAME_MAX * 2] = "";
    if (!root && cfg && cfg->oob_allgather) return ESP_OK;
    if (!root && (root = esp__env_get("ESPRESSO_ROOT"))) {
        const esp_status s = esp__env_root_of_job(cfg, what, out);
        if (s) return s;
    }
    if (root) {
        esp_status s = esp__env_check_root(what, root);
        if (s == ESP_OK) snprintf(out->root, sizeof out->root, "%s", root);
        return s;
    }
    if (esp__env_get("MASTER_ADDR")) {
        const esp_status s = esp__env_root_of_job(cfg, "MASTER_ADDR", out);
        return s ? s : esp__env_master(out);
    }
    if (l && esp__env_hosts(l) == ESP__HOSTS_ONE) esp__env_job(l, job, sizeof job);
    if (!job[0]) {
        out->no_root = true;
        return ESP_OK;
    }
    if (strlen(job) > 64)
        snprintf(job, sizeof job, "%016llx", (unsigned long long)esp__hash64(ESP__HASH0, job, strlen(job)));
    snprintf(out->root, sizeof out->root, "unix:espresso-%u-%s", (unsigned)getuid(), job);
    out->default_root = true;
    return ESP_OK;
}

ESP__FN esp_status esp__env_no_root(esp_ctx *ctx, const esp__where *w) {
    return esp__fail(ctx, ESP_E_ARG,
                     "rank %d of %d (from %s) does not know where the ranks meet: set ESPRESSO_ROOT=HOST:PORT, the "
                     "same on all ranks, with the host of rank 0 and a free port there; jobs of mpirun and srun meet "
                     "by themselves with backend mpi",
                     (int)w->rank, (int)w->size, w->launcher);
}

/* Fails if the secret is set but empty, since the user meant to protect the job. */
static esp_status esp__env_secret(esp__where *out) {
    const char *s = getenv("ESPRESSO_SECRET");
    size_t n = s ? strlen(s) : 0;
    if (s && (n < ESP__SECRET_MIN || n >= ESP__SPEC_MAX))
        return esp__fail(NULL, ESP_E_ARG,
                         "ESPRESSO_SECRET has %zu characters: it must have %d to %d, random and the same on all ranks, "
                         "as from `head -c 24 /dev/urandom | base64`; unset it for a job without a secret",
                         n, (int)ESP__SECRET_MIN, (int)ESP__SPEC_MAX - 1);
    out->secret = s;
    return ESP_OK;
}

/* Other contexts may meet at a Unix name at the same time, so ranks that join have a name of their own. */
static esp_status esp__env_join(const esp_config *cfg, esp__where *out) {
    const char *root = cfg && cfg->root && *cfg->root ? cfg->root : esp__env_get("ESPRESSO_ROOT");
    esp_status s = ESP_OK;
    if (*out->root) root = out->root;
    if (!root) return ESP_OK;
    if (!*out->root) s = esp__env_check_root(cfg && root == cfg->root ? "esp_config.root" : "ESPRESSO_ROOT", root);
    snprintf(out->join, sizeof out->join, "%.*s%s", (int)sizeof out->join - 8, root,
             strncmp(root, "unix:", 5) ? "" : "/join");
    return s;
}

ESP__FN esp_status esp__env_where(const esp_config *cfg, esp__where *out) {
    const bool own = esp__env_get("ESPRESSO_RANK") || esp__env_get("ESPRESSO_SIZE"), program = cfg && cfg->size;
    const esp__launcher *l = own ? &esp__by_espresso : esp__env_launcher();
    const char *hosts = esp__env_get("ESPRESSO_HOSTS");
    esp_status s;
    memset(out, 0, sizeof *out);
    s = esp__env_rank(cfg, l, out);
    if (s == ESP_OK) s = esp__env_machine(cfg, out);
    if (own) l = NULL;
    out->explicit_rank = (!l || program) && out->size > 1;
    out->by_mpi = l != NULL;
    out->several_hosts = l ? esp__env_hosts(l) == ESP__HOSTS_SEVERAL : hosts && atoi(hosts) > 1;
    if (s == ESP_OK && out->size > 1) s = esp__env_root(cfg, program ? NULL : l, out);
    if (s == ESP_OK) s = esp__env_join(cfg, out);
    if (s == ESP_OK) s = esp__env_secret(out);
    return s;
}

ESP__FN esp__env_links esp__env_links_get(void) {
    const char *inter = esp__env_get("ESPRESSO_INTER_LINK"), *outer = esp__env_get("ESPRESSO_OUTER_LINK");
    return (esp__env_links){inter ? inter : "", outer ? outer : ""};
}

static esp_status esp__env_log(int32_t *level) {
    const char *s = esp__env_get("ESPRESSO_LOG");
    if (s && !esp__log_level_read(s))
        return esp__fail(NULL, ESP_E_ARG, "ESPRESSO_LOG is \"%s\": it must be error, warn, info, debug or 1 to 4", s);
    if (s) *level = esp__log_level_read(s);
    return ESP_OK;
}

/* Treats empty strings as not set, as in the environment, since a program may pass on an unset flag. */
static void esp__config_empty(esp_config *c) {
    const char **const texts[] = {&c->backend, &c->codec, &c->strategy, &c->plugin_path, &c->root,
                                  &c->trace,   &c->stats, &c->workers,  &c->progress};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (*texts[i] && !**texts[i]) *texts[i] = NULL;
}

/* Known optimizers, and which ESP_OPTIMIZER_* each is like where compression is concerned: like Adam if it divides by a
 * second moment, with beta1 = 0 if it has no first moment. Nothing is known for Lion, which takes signs of sums. The
 * table begins with the optimizers that have an ESP_OPTIMIZER_*, in their order. */
static const struct {
    const char *name;
    uint32_t like;
    double momentum;
} esp__optimizer_names[] = {{"unknown", ESP_OPTIMIZER_UNKNOWN, 0},     {"sgd", ESP_OPTIMIZER_SGD, 0},
                            {"momentum", ESP_OPTIMIZER_MOMENTUM, 0.9}, {"adam", ESP_OPTIMIZER_ADAM, 0.9},
                            {"adamw", ESP_OPTIMIZER_ADAM, 0.9},        {"rmsprop", ESP_OPTIMIZER_ADAM, 0},
                            {"adagrad", ESP_OPTIMIZER_ADAM, 0},        {"lion", ESP_OPTIMIZER_UNKNOWN, 0}};
static const float esp__momentum_default = 0.9f;

ESP__FN const char *esp__optimizer_name(uint32_t optimizer) { return esp__optimizer_names[optimizer].name; }

/* Checks optimizer and momentum. The program's momentum 0 means the default, and -1 none; afterwards 0 means none. */
static esp_status esp__config_optimizer(esp_config *c) {
    const bool has = c->optimizer == ESP_OPTIMIZER_MOMENTUM || c->optimizer == ESP_OPTIMIZER_ADAM;
    if (c->optimizer > ESP_OPTIMIZER_ADAM)
        return esp__fail(
            NULL, ESP_E_ARG,
            "esp_config.optimizer is %u: it must be ESP_OPTIMIZER_UNKNOWN (0), _SGD (1), _MOMENTUM (2) or _ADAM (3)",
            (unsigned)c->optimizer);
    if (!(c->momentum == -1.0f || (c->momentum >= 0.0f && c->momentum < 1.0f)))
        return esp__fail(NULL, ESP_E_ARG,
                         "esp_config.momentum is %g: it must be a number from 0 (for %g) to below 1, or -1 (for none)",
                         (double)c->momentum, (double)esp__momentum_default);
    if (!has && c->momentum > 0.0f)
        return esp__fail(
            NULL, ESP_E_ARG,
            "esp_config.momentum is %g, but optimizer %s has none: set ESP_OPTIMIZER_MOMENTUM or ESP_OPTIMIZER_ADAM",
            (double)c->momentum, esp__optimizer_names[c->optimizer].name);
    if (c->momentum == 0.0f && has) c->momentum = esp__momentum_default;
    if (c->momentum < 0.0f || !has) c->momentum = 0.0f;
    return ESP_OK;
}

static esp_status esp__env_optimizer(const char *text, esp_config *out) {
    const size_t n = strcspn(text, ":"), names = sizeof esp__optimizer_names / sizeof *esp__optimizer_names;
    size_t i = 0;
    while (i < names && (strlen(esp__optimizer_names[i].name) != n || memcmp(esp__optimizer_names[i].name, text, n)))
        i++;
    const uint32_t k = i < names ? esp__optimizer_names[i].like : ESP_OPTIMIZER_UNKNOWN;
    double m = i < names ? esp__optimizer_names[i].momentum : 0;
    if (i == names || (text[n] && (k < ESP_OPTIMIZER_MOMENTUM || !esp_params_number(text + n + 1, NULL, &m) ||
                                   !(m >= 0.0 && m < 1.0))))
        return esp__fail(NULL, ESP_E_ARG,
                         "ESPRESSO_OPTIMIZER is \"%s\": it must be sgd, momentum, adam, adamw, rmsprop, adagrad, lion "
                         "or unknown, the nearest of them; behind momentum and adam also a number from 0 to below 1, "
                         "such as adam:0.9, the decay of the first moment",
                         text);
    out->optimizer = k;
    out->momentum = (float)m;
    return ESP_OK;
}

static esp_status esp__config_check(const esp_config *c) {
    const uint32_t known = ESP_ALLOW_OVERRIDE | ESP_DISCARDABLE | ESP_JOIN;
    if (c->flags & ~known)
        return esp__fail(NULL, ESP_E_ARG,
                         "esp_config.flags is %u: known are ESP_ALLOW_OVERRIDE (%u), ESP_DISCARDABLE (%u) and ESP_JOIN "
                         "(%u); was the struct zeroed (esp_config cfg = ESP_ZERO)?",
                         (unsigned)c->flags, (unsigned)ESP_ALLOW_OVERRIDE, (unsigned)ESP_DISCARDABLE,
                         (unsigned)ESP_JOIN);
    if (c->log_level < 0 || c->log_level > ESP_LOG_DEBUG)
        return esp__fail(
            NULL, ESP_E_ARG,
            "esp_config.log_level is %d: it must be 0 (for ESP_LOG_WARN) or ESP_LOG_ERROR (%d) to ESP_LOG_DEBUG (%d)",
            (int)c->log_level, (int)ESP_LOG_ERROR, (int)ESP_LOG_DEBUG);
    if (c->n_builtin && !c->builtin)
        return esp__fail(NULL, ESP_E_ARG, "esp_config.n_builtin is %u, but builtin is NULL: set both, or neither",
                         (unsigned)c->n_builtin);
    return ESP_OK;
}

/* Reads "pthreads", "openmp", "pthreads:N", "openmp:N" or, if `bare`, "N". Sets out->workers to "openmp" or NULL. */
static esp_status esp__env_workers(const char *what, const char *text, bool bare, esp_config *out) {
    static const char *const names[] = {"pthreads", "openmp"};
    const char *number = bare ? text : NULL;
    char *end = NULL;
    bool omp = false, known = bare;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(names[i]);
        if (strncmp(text, names[i], n) || (text[n] && text[n] != ':')) continue;
        omp = i == 1, known = true;
        number = text[n] ? text + n + 1 : NULL;
    }
    long v = number ? strtol(number, &end, 10) : 0;
    if (!known || (number && (end == number || *end || v < 1 || v > 4096)))
        return esp__fail(NULL, ESP_E_ARG,
                         "%s is \"%s\": it must be %s\"pthreads\" or \"openmp\", also with a number of threads from 1 "
                         "to 4096 behind it (\"openmp:4\")",
                         what, text, bare ? "a number of threads from 1 to 4096, " : "");
    out->workers = omp ? "openmp" : NULL;
    if (number) out->cpu_workers = (uint32_t)v;
    return ESP_OK;
}

static esp_status esp__env_progress(const char *what, const char *text) {
    if (!strcmp(text, "caller") || !strcmp(text, "threads")) return ESP_OK;
    return esp__fail(NULL, ESP_E_ARG, "%s is \"%s\": it must be \"caller\" or \"threads\"", what, text);
}

ESP__FN esp_status esp__env_memory_max(uint64_t *bytes) {
    static const char letters[] = "KMGT";
    const char *s = esp__env_get("ESPRESSO_MEMORY_MAX"), *letter;
    char *end = NULL;
    *bytes = 0;
    if (!s) return ESP_OK;
    const unsigned long long n = *s >= '0' && *s <= '9' ? strtoull(s, &end, 10) : 0;
    uint32_t shift = 0;
    if (end && *end && (letter = strchr(letters, *end)) != NULL) {
        shift = 10u * (uint32_t)(letter - letters + 1);
        end++;
        if (!strcmp(end, "iB")) end += 2;
    }
    if (!end || *end || !n || n > UINT64_MAX >> (shift + 1))
        return esp__fail(
            NULL, ESP_E_ARG,
            "ESPRESSO_MEMORY_MAX is \"%s\": it must be a number of bytes above 0, or such as 512M, 512MiB or 8G", s);
    *bytes = (uint64_t)n << shift;
    return ESP_OK;
}

ESP__FN esp_status esp__env_straggler(int64_t *ms) {
    *ms = ESP__STRAGGLER_DEFAULT_MS;
    return esp__env_get("ESPRESSO_STRAGGLER_MS") ? esp__env_int("ESPRESSO_STRAGGLER_MS", 0, UINT32_MAX, ms) : ESP_OK;
}

/* ESPRESSO_PLUGIN_PATH overrides nothing: loader.c searches its directories after those of esp_config. */
ESP__FN esp_status esp__env_config(const esp_config *cfg, esp_config *out) {
    const char *s;
    int64_t v = 0;
    esp_status status = ESP_OK;
    memset(out, 0, sizeof *out);
    if (cfg) {
        uint32_t n = cfg->struct_size ? cfg->struct_size : (uint32_t)sizeof *out;
        if (n < offsetof(esp_config, backend))
            return esp__fail(NULL, ESP_E_ARG, "esp_config.struct_size is %u: use sizeof(esp_config), or 0",
                             (unsigned)n);
        memcpy(out, cfg, n < sizeof *out ? n : sizeof *out);
        if ((status = esp__config_check(out)) != ESP_OK) return status;
        esp__config_empty(out);
        if ((status = esp__config_optimizer(out)) != ESP_OK) return status;
    }
    out->struct_size = sizeof *out;
    if ((s = esp__env_get("ESPRESSO_OPTIMIZER")) && (status = esp__env_optimizer(s, out)) != ESP_OK) return status;
    if ((s = esp__env_get("ESPRESSO_SIMD")) && strcmp(s, "scalar") && strcmp(s, "avx2") && strcmp(s, "avx512"))
        return esp__fail(NULL, ESP_E_ARG, "ESPRESSO_SIMD is \"%s\": it must be scalar, avx2 or avx512", s);
    if ((s = esp__env_get("ESPRESSO_BACKEND"))) out->backend = s;
    if ((s = esp__env_get("ESPRESSO_CODEC"))) out->codec = s;
    if ((s = esp__env_get("ESPRESSO_STRATEGY"))) out->strategy = s;
    if ((s = esp__env_get("ESPRESSO_TRACE"))) out->trace = s;
    if ((s = esp__env_get("ESPRESSO_STATS"))) out->stats = s;
    s = esp__env_get("ESPRESSO_ROOT");
    if (s && (status = esp__env_check_root("ESPRESSO_ROOT", s)) != ESP_OK) return status;
    if (esp__env_get("ESPRESSO_TIMEOUT_MS")) {
        if ((status = esp__env_int("ESPRESSO_TIMEOUT_MS", 1, UINT32_MAX, &v)) != ESP_OK) return status;
        out->timeout_ms = (uint32_t)v;
    }
    uint64_t memory_max;
    if ((status = esp__env_memory_max(&memory_max)) != ESP_OK) return status;
    if ((status = esp__env_straggler(&v)) != ESP_OK) return status;
    if (out->workers && (status = esp__env_workers("esp_config.workers", out->workers, false, out)) != ESP_OK)
        return status;
    s = esp__env_get("ESPRESSO_WORKERS");
    if (s && (status = esp__env_workers("ESPRESSO_WORKERS", s, true, out)) != ESP_OK) return status;
    if (out->progress && (status = esp__env_progress("esp_config.progress", out->progress)) != ESP_OK) return status;
    if ((s = esp__env_get("ESPRESSO_PROGRESS"))) out->progress = s;
    if (s && (status = esp__env_progress("ESPRESSO_PROGRESS", s)) != ESP_OK) return status;
    if (esp__env_get("ESPRESSO_MIN_COMPRESS_ELEMENTS")) {
        if ((status = esp__env_int("ESPRESSO_MIN_COMPRESS_ELEMENTS", 0, INT64_MAX, &v)) != ESP_OK) return status;
        out->min_compress_elements = v ? (uint64_t)v : 1;
    }
    return esp__env_log(&out->log_level);
}
