/* scale.c: measures how much memory, shared memory, connections and threads a rank uses, by the number of ranks. It
 * prints what esp_start planned and what the kernel counts after some steps. Ranks are forked processes over shm.
 *     build/bench/scale >bench/results/micro/scale.csv */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "bench/head.h"
#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TENSORS = 4, ELEMENTS = 1 << 18, STEPS = 6, RANKS_MAX = 64 };

typedef struct usage {
    uint64_t before, anonymous; /* private memory before esp_open, and after the steps */
    uint64_t shared, window;    /* shared memory that is mapped, and that is in use */
    uint64_t fds, threads;
    esp_stats planned;
    int done;
} usage;

static uint64_t proc_kb(const char *file, const char *name) {
    char line[256];
    unsigned long long kb = 0;
    const size_t n = strlen(name);
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, n) && line[n] == ':') sscanf(line + n + 1, "%llu", &kb);
    if (f) fclose(f);
    return kb * 1024u;
}

/* Sets *mapped to the bytes of the library's shared memory, and returns how many of them this rank has used. */
static uint64_t region(uint64_t *mapped) {
    char line[512];
    unsigned long long from, to, kb;
    uint64_t touched = 0;
    int ours = 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    *mapped = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2 && strchr(line, '-') < strchr(line, ' ')) {
            ours = strstr(line, "memfd:espresso") != NULL;
            if (ours) *mapped += to - from;
        }
        if (ours && sscanf(line, "Rss: %llu", &kb) == 1) touched += kb * 1024u;
    }
    if (f) fclose(f);
    return touched;
}

static uint64_t entries(const char *folder) {
    DIR *d = opendir(folder);
    uint64_t n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n > 2 ? n - 2 : 0;
}

static void rank_run(int32_t rank, int32_t size, int32_t machines, const char *codec, int number, usage *out) {
    static float grads[TENSORS][ELEMENTS];
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    esp_stream here = ESP_ZERO;
    char root[64], name[16];
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint32_t i = 0; i < ELEMENTS; i++)
            grads[t][i] = (float)((i * 2654435761u + (uint32_t)rank) >> 16) - 32768.0f;
    out->before = proc_kb("/proc/self/status", "RssAnon");
    snprintf(root, sizeof root, "unix:espresso-scale-%d-%d", (int)getppid(), number);
    cfg.rank = rank, cfg.size = size, cfg.machine = 1 + rank / (size / machines), cfg.root = root, cfg.backend = "shm";
    cfg.workers = "pthreads:1";
    if (strcmp(codec, "none")) cfg.codec = codec;
    esp_status s = esp_open(&cfg, &ctx);
    for (uint32_t t = 0; t < TENSORS && !s; t++) {
        esp_tensor_desc d = ESP_ZERO;
        snprintf(name, sizeof name, "t%u", t);
        d.name = name, d.count = ELEMENTS;
        s = esp_tensor_add(ctx, &d, NULL);
    }
    if (!s) s = esp_start(ctx);
    out->planned.struct_size = sizeof out->planned;
    if (!s) s = esp_stats_read(ctx, &out->planned); /* planned by esp_start, before the first step */
    for (int k = 0; k < STEPS && !s; k++) {
        for (uint32_t t = 0; t < TENSORS && !s; t++) s = esp_push(ctx, t, grads[t], here);
        if (!s) s = esp_wait_all(ctx);
    }
    if (!s) s = esp_barrier(ctx);
    if (s && !rank) fprintf(stderr, "bench/scale: rank %d: %s\n", (int)rank, esp_last_error(ctx));
    out->anonymous = proc_kb("/proc/self/status", "RssAnon");
    out->window = region(&out->shared);
    out->fds = entries("/proc/self/fd");
    out->threads = entries("/proc/self/task");
    if (!s) s = esp_barrier(ctx); /* no rank closes while others still read */
    esp_close(ctx);
    out->done = s == ESP_OK;
}

static void show(const char *codec, int32_t size, int32_t machines, const usage *all) {
    const double mib = 1048576.0;
    /* the most of all ranks except 0, which also serves the other ranks' connections */
    double most = 0, window = 0;
    const double first = (double)(all[0].anonymous - all[0].before) / mib;
    uint64_t fds = 0;
    for (int32_t r = 0; r < size; r++) {
        const double grew = (double)(all[r].anonymous - all[r].before) / mib;
        if (r && grew > most) most = grew;
        if ((double)all[r].window / mib > window) window = (double)all[r].window / mib;
        if (r && all[r].fds > fds) fds = all[r].fds;
    }
    const esp_stats *x = &all[0].planned;
    printf("%s,%d,%d,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%llu,%llu,%llu\n", codec, (int)size, (int)machines,
           (double)x->memory_bytes / mib, (double)x->slots_bytes / mib, (double)x->feedback_bytes / mib,
           (double)x->backend_bytes / mib, first, most, (double)all[0].shared / mib, window,
           (unsigned long long)all[0].fds, (unsigned long long)fds, (unsigned long long)all[0].threads);
    fflush(stdout);
}

static int job(const char *codec, int32_t size, int32_t machines, int number) {
    usage *all = mmap(NULL, RANKS_MAX * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int bad = 0;
    for (int32_t r = 0; r < size; r++)
        if (fork() == 0) {
            rank_run(r, size, machines, codec, number, &all[r]);
            _exit(0);
        }
    while (wait(NULL) > 0) {
    }
    for (int32_t r = 0; r < size; r++) bad |= !all[r].done;
    if (!bad) show(codec, size, machines, all);
    munmap(all, RANKS_MAX * sizeof *all);
    return bad;
}

int main(void) {
    static const char *const codecs[] = {"none", "topk:ratio=0.01", "fp16"};
    int bad = 0, number = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    bench_head(stdout, "build/bench/scale: what a rank takes over shm, strategy layerwise");
    printf("# %d tensors of %d elements (%.0f MiB of gradients), %d steps. planned, slots, feedback, backend: by "
           "esp_start, "
           "before the first step\n"
           "# private: growth of RssAnon since before esp_open, of rank 0 and the most of another rank\n"
           "# region: shared memory that is mapped; touched: by one rank, all ranks' windows included\n"
           "# fds: open files of rank 0 and the most of another rank\n"
           "codec,ranks,machines,planned_mib,slots_mib,feedback_mib,backend_mib,private_rank0_mib,private_others_mib,"
           "region_mib,touched_mib,fds_rank0,fds_others,threads\n",
           (int)TENSORS, (int)ELEMENTS, TENSORS * ELEMENTS * 4.0 / 1048576.0, (int)STEPS);
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int32_t n = 2; n <= RANKS_MAX; n *= 2) {
            bad |= job(codecs[c], n, 1, number++);
            if (n >= 4) bad |= job(codecs[c], n, 2, number++);
        }
    return bad;
}
