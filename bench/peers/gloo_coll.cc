// gloo_coll.cc: the same loop as bench/micro/coll.c over gloo (TCP on the loopback interface: it has no shared memory).
// Usage: gloo_coll RANKS [op...]. Forks the ranks; they meet through files in a temporary directory.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "coll_table.h"

using Context = std::shared_ptr<gloo::Context>;
static void add(void *c, const void *a, const void *b, size_t n) { gloo::sum<float>(c, a, b, n); }

static void once(const Context &ctx, int op, size_t n, float *src, float *dst, gloo::Algorithm *scatter) {
    size_t per = n / static_cast<size_t>(ctx->size);
    switch (op) {
    case COLL_ALLREDUCE: {
        gloo::AllreduceOptions o(ctx);
        o.setInput(src, n), o.setOutput(dst, n), o.setReduceFunction(add);
        return gloo::allreduce(o);
    }
    case COLL_REDUCE_SCATTER: return scatter->run();
    case COLL_ALLGATHER: {
        gloo::AllgatherOptions o(ctx);
        o.setInput(src, per), o.setOutput(dst, n);
        return gloo::allgather(o);
    }
    case COLL_ALLTOALL: {
        gloo::AlltoallOptions o(ctx);
        o.setInput(src, n), o.setOutput(dst, n);
        return gloo::alltoall(o);
    }
    case COLL_BROADCAST: {
        gloo::BroadcastOptions o(ctx);
        o.setOutput(src, n), o.setRoot(0);
        return gloo::broadcast(o);
    }
    case COLL_REDUCE: {
        gloo::ReduceOptions o(ctx);
        o.setInput(src, n), o.setOutput(dst, n), o.setRoot(0), o.setReduceFunction(add);
        return gloo::reduce(o);
    }
    default: {
        gloo::GatherOptions o(ctx);
        o.setInput(src, per), o.setRoot(0);
        if (ctx->rank == 0) o.setOutput(dst, n);
        return gloo::gather(o);
    }
    }
}

static void run(int rank, int ranks, const std::string &dir, int argc, char **argv) {
    gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(dir);
    auto ctx = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    ctx->connectFullMesh(store, device);
    std::vector<float> src(COLL_LARGEST / 4), dst(COLL_LARGEST / 4);
    for (int op = 0; op < COLL_OPS; op++) {
        bool wanted = argc < 3;
        for (int i = 2; i < argc; i++) wanted = wanted || !strcmp(argv[i], coll_names[op]);
        for (int k = 0; wanted && k < COLL_SIZES; k++) {
            size_t n = coll_sizes[k] / 4;
            int repeats = 1 + coll_repeats(coll_sizes[k]) / 4; // gloo is slow: fewer repetitions are enough
            std::vector<int> counts(static_cast<size_t>(ranks), static_cast<int>(n) / ranks);
            std::unique_ptr<gloo::Algorithm> scatter;
            if (op == COLL_REDUCE_SCATTER)
                scatter.reset(
                    new gloo::ReduceScatterHalvingDoubling<float>(ctx, {src.data()}, static_cast<int>(n), counts));
            for (int i = 0; i < 1 + repeats / 10; i++) once(ctx, op, n, src.data(), dst.data(), scatter.get());
            double best = 1e18;
            for (int batch = 0; batch < COLL_BATCHES; batch++) {
                gloo::BarrierOptions b(ctx);
                gloo::barrier(b);
                double t = coll_now();
                for (int i = 0; i < repeats; i++) once(ctx, op, n, src.data(), dst.data(), scatter.get());
                float us = static_cast<float>((coll_now() - t) / repeats);
                gloo::AllreduceOptions o(ctx);
                o.setOutput(&us, 1);
                o.setReduceFunction(
                    [](void *c, const void *x, const void *y, size_t m) { gloo::max<float>(c, x, y, m); });
                gloo::allreduce(o);
                best = us < best ? us : best;
            }
            if (rank == 0) coll_print("gloo", ranks, op, coll_sizes[k], best);
        }
    }
}

int main(int argc, char **argv) {
    int ranks = argc > 1 ? atoi(argv[1]) : 2, rank = 1, status = 0, bad = 0;
    char dir[] = "/tmp/gloo_coll.XXXXXX";
    if (!mkdtemp(dir)) return 1;
    for (; rank < ranks; rank++)
        if (fork() == 0) break;
    rank %= ranks;
    run(rank, ranks, dir, argc, argv);
    if (rank) _exit(0);
    while (wait(&status) > 0) bad |= status;
    std::string clean = std::string("rm -rf ") + dir;
    return system(clean.c_str()) != 0 || bad != 0;
}
