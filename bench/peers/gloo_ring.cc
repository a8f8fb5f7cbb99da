// gloo_ring.cc: one rank of bench/peers/mpi.sh: gloo's ring allreduce over TCP. Usage: gloo_ring ADDRESS DIR BYTES
// ROUNDS, with rank and size from mpirun's variables; the ranks meet through files in DIR. Prints "gloo BYTES ring
// MILLISECONDS" of the slowest rank, each round.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
static void add(void *c, const void *a, const void *b, size_t n) { gloo::sum<float>(c, a, b, n); }
static void largest(void *c, const void *a, const void *b, size_t n) { gloo::max<float>(c, a, b, n); }

int main(int argc, char **argv) {
    if (argc < 5) return fprintf(stderr, "usage: gloo_ring ADDRESS DIR BYTES ROUNDS\n"), 2;
    const int rank = atoi(getenv("OMPI_COMM_WORLD_RANK")), size = atoi(getenv("OMPI_COMM_WORLD_SIZE"));
    gloo::transport::tcp::attr attr;
    attr.hostname = argv[1];
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(argv[2]);
    auto ctx = std::make_shared<gloo::rendezvous::Context>(rank, size);
    ctx->connectFullMesh(store, device);
    const size_t n = strtoull(argv[3], nullptr, 10) / 4;
    std::vector<float> src(n), dst(n);
    for (int round = -1; round < atoi(argv[4]); round++) {
        gloo::BarrierOptions b(ctx);
        gloo::barrier(b);
        const double begin = now();
        gloo::AllreduceOptions o(ctx);
        o.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        o.setInput(src.data(), n), o.setOutput(dst.data(), n), o.setReduceFunction(add);
        gloo::allreduce(o);
        float mine = static_cast<float>((now() - begin) * 1e3), most = 0;
        gloo::AllreduceOptions m(ctx);
        m.setInput(&mine, 1), m.setOutput(&most, 1), m.setReduceFunction(largest);
        gloo::allreduce(m);
        if (rank == 0 && round >= 0) printf("gloo %zu ring %.3f\n", n * 4, static_cast<double>(most)), fflush(stdout);
    }
    return 0;
}
