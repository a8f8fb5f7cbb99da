/* shim.c: libespresso-mpi-shim.so, which makes an unchanged MPI program average its gradients with this library:
 *
 *     ESPRESSO_MPI_SUMS=4000000,1000000*12 ESPRESSO_CODEC=topk:ratio=0.01 \
 *         mpirun -x LD_PRELOAD=libespresso-mpi-shim.so ... ./trainer
 *
 * ESPRESSO_MPI_SUMS lists the element counts of a step's gradient sums, in the order of the calls; COUNT*N means N sums
 * of COUNT elements. A call of MPI_Allreduce or MPI_Iallreduce that sums the next listed number of floats, over all
 * ranks, goes through the library, and all others to MPI. After the last one of the list, the next step begins. Each
 * entry of the list is a tensor, with error feedback of its own. The calls must have the same order on all ranks.
 *
 * MPI_Allreduce returns a tensor's sum before the next one is pushed, so only strategies that treat each tensor by
 * itself are possible: fp32 and layerwise. MPI_Iallreduce returns a generalized request (MPI 3.1, section 12.2), which
 * MPI_Wait, MPI_Waitall, MPI_Test and their variants complete; no thread of the shim calls MPI. Calls from Fortran are
 * not seen. One thread at a time may make the calls that are listed above. In a forked child of a rank, sums and waits
 * for them return MPI_ERR_OTHER, and MPI_Finalize does nothing: the child is not a rank. */
#include "espresso.h"
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SHIM_TENSORS = 4096 };
/* A sum that MPI_Iallreduce has started and no wait has completed. */
typedef struct shim_sum {
    uint32_t id;
    bool pending;
    int count;
    MPI_Request request;
} shim_sum;
static struct shim {
    esp_ctx *ctx;
    uint64_t counts[SHIM_TENSORS];
    shim_sum sums[SHIM_TENSORS];
    int n, next;   /* tensors; the one that is pushed next */
    pid_t process; /* the rank's, which called MPI_Init */
    bool ready, failed;
    bool inside; /* the library itself calls MPI */
} shim;

/* ---- the list, and the context ------------------------------------------------------------------------------------
 */
static int shim_fail(const char *what) {
    fprintf(stderr, "espresso-mpi-shim: %s: %s\n", what, esp_last_error(shim.ctx));
    shim.failed = true;
    return PMPI_Comm_call_errhandler(MPI_COMM_WORLD, MPI_ERR_OTHER), MPI_ERR_OTHER;
}

/* Returns whether this process is a forked child of a rank. */
static bool shim_child(void) {
    if (!shim.process) shim.process = getpid(); /* MPI was started from Fortran */
    return shim.process != getpid();
}
static int shim_refuse(void) {
    fprintf(stderr, "espresso-mpi-shim: a forked child takes no part in sums\n");
    return MPI_ERR_OTHER;
}
int MPI_Init(int *argc, char ***argv) {
    shim.process = getpid();
    return PMPI_Init(argc, argv);
}
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    shim.process = getpid();
    return PMPI_Init_thread(argc, argv, required, provided);
}

static void shim_read_counts(void) {
    const char *text = getenv("ESPRESSO_MPI_SUMS");
    while (text && *text) {
        char *end;
        const unsigned long long count = strtoull(text, &end, 10);
        unsigned long long times = 1;
        if (count && *end == '*') times = strtoull(end + 1, &end, 10);
        if (!count || count > INT32_MAX || !times || times > (unsigned long long)(SHIM_TENSORS - shim.n) ||
            (*end && *end != ',')) {
            fprintf(
                stderr,
                "espresso-mpi-shim: ESPRESSO_MPI_SUMS: '%s' is no list of element counts, such as 1000,500*12, with "
                "%d sums at most: nothing goes through the library\n",
                text, SHIM_TENSORS);
            shim.n = 0;
            return;
        }
        while (times--) shim.counts[shim.n++] = count;
        text = *end ? end + 1 : end;
    }
}

static esp_status shim_exchange(void *user, const void *in, void *out, uint64_t bytes) {
    (void)user;
    return PMPI_Allgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, MPI_COMM_WORLD) ? ESP_E_COMM : ESP_OK;
}

static esp_status shim_open(void) {
    const char *strategy = getenv("ESPRESSO_STRATEGY");
    esp_config cfg = ESP_ZERO;
    esp_status s;
    if (strategy && *strategy && strcmp(strategy, "fp32") != 0 && strcmp(strategy, "layerwise") != 0) {
        fprintf(stderr, "espresso-mpi-shim: ESPRESSO_STRATEGY=%s: only fp32 and layerwise work here\n", strategy);
        return ESP_E_ARG;
    }
    PMPI_Comm_rank(MPI_COMM_WORLD, &cfg.rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &cfg.size);
    cfg.oob_allgather = shim_exchange;
    s = esp_open(&cfg, &shim.ctx);
    for (int i = 0; i < shim.n && !s; i++) {
        char name[32];
        esp_tensor_desc desc = ESP_ZERO;
        snprintf(name, sizeof name, "sum.%d", i);
        desc.name = name, desc.count = shim.counts[i], desc.flags = ESP_SUM;
        s = esp_tensor_add(shim.ctx, &desc, &shim.sums[i].id);
    }
    return s ? s : esp_start(shim.ctx);
}

/* ---- sums ---------------------------------------------------------------------------------------------------------
 */
/* Returns whether the call is the next sum of the list. */
static bool shim_takes(int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    int same = MPI_UNEQUAL;
    if (shim.inside || shim.failed || type != MPI_FLOAT || op != MPI_SUM) return false;
    if (!shim.ready) {
        shim.ready = true;
        shim_read_counts();
    }
    if (!shim.n || (uint64_t)count != shim.counts[shim.next % shim.n]) return false;
    PMPI_Comm_compare(comm, MPI_COMM_WORLD, &same);
    return same == MPI_IDENT || same == MPI_CONGRUENT;
}

static int shim_complete(shim_sum *sum) {
    if (!sum->pending) return MPI_SUCCESS;
    sum->pending = false;
    shim.inside = true;
    const esp_status s = esp_wait(shim.ctx, sum->id);
    shim.inside = false;
    PMPI_Grequest_complete(sum->request);
    return s ? shim_fail("a sum failed") : MPI_SUCCESS;
}

/* Pushes the next sum. Ends the step before, if this is the first of a step. */
static int shim_push(const void *from, void *to, int count, shim_sum **out) {
    const esp_stream cpu = ESP_ZERO;
    esp_status s = ESP_OK;
    int error = MPI_SUCCESS;
    if (shim_child()) return shim_refuse();
    *out = &shim.sums[shim.next % shim.n];
    for (int i = 0; shim.next == shim.n && i < shim.n && !error; i++) error = shim_complete(&shim.sums[i]);
    if (error) return error;
    shim.inside = true;
    if (!shim.ctx) s = shim_open();
    if (!s && shim.next == shim.n) shim.next = 0, s = esp_wait_all(shim.ctx);
    if (!s && from != MPI_IN_PLACE) memcpy(to, from, (size_t)count * sizeof(float));
    if (!s) s = esp_push(shim.ctx, shim.sums[shim.next].id, to, cpu);
    shim.inside = false;
    shim.next++;
    return s ? shim_fail("a sum failed") : MPI_SUCCESS;
}

int MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    shim_sum *sum;
    if (!shim_takes(count, type, op, comm)) return PMPI_Allreduce(from, to, count, type, op, comm);
    const int error = shim_push(from, to, count, &sum);
    if (error) return error;
    shim.inside = true;
    const esp_status s = esp_wait(shim.ctx, sum->id);
    shim.inside = false;
    return s ? shim_fail("a sum failed") : MPI_SUCCESS;
}

static int shim_query(void *sum, MPI_Status *status) {
    PMPI_Status_set_elements(status, MPI_FLOAT, ((shim_sum *)sum)->count);
    PMPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}
static int shim_free(void *sum) { return (void)sum, MPI_SUCCESS; }
static int shim_cancel(void *sum, int complete) { return (void)sum, (void)complete, MPI_SUCCESS; }

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request) {
    shim_sum *sum;
    if (!shim_takes(count, type, op, comm)) return PMPI_Iallreduce(from, to, count, type, op, comm, request);
    const int error = shim_push(from, to, count, &sum);
    if (error) return error;
    sum->count = count, sum->pending = true;
    const int grequest = PMPI_Grequest_start(shim_query, shim_free, shim_cancel, sum, &sum->request);
    *request = sum->request;
    return grequest;
}

/* ---- waits and tests ----------------------------------------------------------------------------------------------
 */
/* Completes those of the requests that are sums of the library: all of them, or those that are done. */
static int shim_finish(int n, const MPI_Request *requests, bool blocks) {
    int error = MPI_SUCCESS;
    for (int r = 0; r < n && shim.ctx; r++)
        for (int i = 0; i < shim.n && requests[r] != MPI_REQUEST_NULL && !error; i++)
            if (shim.sums[i].pending && shim.sums[i].request == requests[r] &&
                (blocks || shim_child() || esp_test(shim.ctx, shim.sums[i].id) != ESP_PENDING))
                error = shim_child() ? shim_refuse() : shim_complete(&shim.sums[i]);
    return error;
}

/* Defines a call of MPI that first completes sums. */
#define SHIM_WAITS(name, n, requests, blocks, parameters, arguments)                                                   \
    int MPI_##name parameters {                                                                                        \
        const int error = shim_finish(n, requests, blocks);                                                            \
        return error ? error : PMPI_##name arguments;                                                                  \
    }
SHIM_WAITS(Wait, 1, r, true, (MPI_Request * r, MPI_Status *s), (r, s))
SHIM_WAITS(Waitall, n, r, true, (int n, MPI_Request r[], MPI_Status s[]), (n, r, s))
SHIM_WAITS(Waitany, n, r, true, (int n, MPI_Request r[], int *i, MPI_Status *s), (n, r, i, s))
SHIM_WAITS(Waitsome, n, r, true, (int n, MPI_Request r[], int *m, int i[], MPI_Status s[]), (n, r, m, i, s))
SHIM_WAITS(Test, 1, r, false, (MPI_Request * r, int *f, MPI_Status *s), (r, f, s))
SHIM_WAITS(Testall, n, r, false, (int n, MPI_Request r[], int *f, MPI_Status s[]), (n, r, f, s))
SHIM_WAITS(Testany, n, r, false, (int n, MPI_Request r[], int *i, int *f, MPI_Status *s), (n, r, i, f, s))
SHIM_WAITS(Testsome, n, r, false, (int n, MPI_Request r[], int *m, int i[], MPI_Status s[]), (n, r, m, i, s))

int MPI_Finalize(void) {
    if (shim_child()) return MPI_SUCCESS;
    if (shim.n && !shim.ctx && !shim.failed)
        fprintf(stderr, "espresso-mpi-shim: no call summed %llu floats over all ranks: the library did nothing\n",
                (unsigned long long)shim.counts[0]);
    for (int i = 0; i < shim.n && shim.ctx && !shim.failed; i++) shim_complete(&shim.sums[i]);
    shim.inside = true;
    esp_close(shim.ctx);
    shim.ctx = NULL, shim.n = 0;
    return PMPI_Finalize();
}
