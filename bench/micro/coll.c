/* coll.c: measures the collectives of the shm transport between forked processes, by direct calls. Usage: coll RANKS
 * [params [op...]]. It prints "espresso RANKS OP BYTES MICROSECONDS", the slowest rank's mean in the best batch.
 * bench/peers/coll.sh compares these times with those of other libraries. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "espresso_impl/registry/builtin.h"
#include "bench/peers/coll_table.h"

enum { MAX_RANKS = 64, OOB = 16384 };
typedef struct shared {
    pthread_barrier_t barrier;
    double us[MAX_RANKS];
    uint8_t oob[MAX_RANKS][OOB];
} shared;
static shared *all;
static int rank, size;

static esp_status oob(void *user, const void *in, void *out, uint64_t bytes) {
    (void)user;
    if (bytes > OOB) return ESP_E_ARG;
    memcpy(all->oob[rank], in, bytes);
    pthread_barrier_wait(&all->barrier);
    for (int r = 0; r < size; r++) memcpy((char *)out + (uint64_t)r * bytes, all->oob[r], bytes);
    pthread_barrier_wait(&all->barrier);
    return ESP_OK;
}
static void *host_alloc(void *u, esp_device d, uint64_t bytes, uint64_t align) {
    void *p = NULL;
    (void)u, (void)d;
    return posix_memalign(&p, align, bytes) ? NULL : p;
}
static void host_free(void *u, esp_device d, void *p, uint64_t bytes) { (void)u, (void)d, (void)bytes, free(p); }
static void host_log(void *u, const esp_log_event *ev) {
    (void)u;
    if (rank == 0) fprintf(stderr, "%s: %s\n", ev->component, ev->message);
}

static void once(const esp_backend *b, void *comm, const esp_coll *c) {
    void *req;
    esp_stream none = ESP_ZERO;
    esp_status s = b->start(comm, c, none, &req);
    while (s == ESP_OK && (s = b->test(comm, req)) == ESP_PENDING) s = b->progress(comm, 1000000);
    if (s != ESP_OK) exit(1);
}

static void measure(const esp_backend *b, void *comm, int op, uint64_t bytes, char *src, char *dst) {
    static const uint32_t ops[] = {ESP_COLL_ALLREDUCE, ESP_COLL_REDUCE_SCATTER, ESP_COLL_ALLGATHER, ESP_COLL_ALLTOALL,
                                   ESP_COLL_BROADCAST, ESP_COLL_REDUCE,         ESP_COLL_GATHER};
    esp_coll c = ESP_ZERO, sync = ESP_ZERO;
    float one = 0;
    int n = coll_repeats(bytes);
    c.struct_size = sync.struct_size = sizeof c;
    c.op = ops[op], c.dtype = ESP_F32, c.count = bytes / 4, c.src.ptr = src, c.dst.ptr = dst;
    if (op == COLL_BROADCAST) c.dst.ptr = src;
    if (op == COLL_ALLTOALL) c.count -= c.count % (uint64_t)size;
    sync.op = ESP_COLL_ALLREDUCE, sync.dtype = ESP_F32, sync.count = 1, sync.src.ptr = sync.dst.ptr = &one;
    double best = 1e18;
    for (int i = 0; i < 1 + n / 10; i++) once(b, comm, &c);
    for (int k = 0; k < COLL_BATCHES; k++) {
        once(b, comm, &sync);
        double t = coll_now(), slowest = 0;
        for (int i = 0; i < n; i++) once(b, comm, &c);
        all->us[rank] = (coll_now() - t) / n;
        once(b, comm, &sync);
        for (int r = 0; r < size; r++) slowest = all->us[r] > slowest ? all->us[r] : slowest;
        best = slowest < best ? slowest : best;
    }
    if (rank == 0) coll_print("espresso", size, op, bytes, best);
}

static void run(const char *params, int n_ops, char **only) {
    esp_host host = {
        .struct_size = sizeof host, .abi_major = 1, .alloc = host_alloc, .free_ = host_free, .log = host_log};
    const esp_backend *b = espresso_plugin_v1_shm(&host)->backends[0];
    int32_t machine[MAX_RANKS] = {0};
    esp_group g = ESP_ZERO;
    void *comm;
    char *src = malloc(COLL_LARGEST), *dst = malloc(COLL_LARGEST);
    g.struct_size = sizeof g, g.rank = rank, g.size = size, g.machine = machine, g.oob_allgather = oob;
    if (strstr(params, "inter="))
        for (int r = 0; r < size; r++) machine[r] = r;
    if (!src || !dst || b->open(&host, &g, params, &comm) != ESP_OK) exit(1);
    memset(src, 0, COLL_LARGEST), memset(dst, 0, COLL_LARGEST);
    for (int op = 0; op < COLL_OPS; op++) {
        int wanted = n_ops == 0;
        for (int i = 0; i < n_ops; i++) wanted |= !strcmp(only[i], coll_names[op]);
        for (int k = 0; wanted && k < COLL_SIZES; k++) measure(b, comm, op, coll_sizes[k], src, dst);
    }
    b->close(comm);
}

int main(int argc, char **argv) {
    size = argc > 1 ? atoi(argv[1]) : 2;
    if (size < 1 || size > MAX_RANKS) return fprintf(stderr, "usage: coll RANKS [params [op...]]\n"), 2;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t a;
    pthread_barrierattr_init(&a);
    pthread_barrierattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&all->barrier, &a, (unsigned)size);
    for (rank = 1; rank < size; rank++)
        if (fork() == 0) break;
    rank %= size; /* the parent, with rank == size after the loop, is rank 0 */
    run(argc > 2 ? argv[2] : "", argc > 3 ? argc - 3 : 0, argv + 3);
    if (rank) _exit(0);
    int bad = 0, status;
    while (wait(&status) > 0) bad |= status;
    return bad != 0;
}
