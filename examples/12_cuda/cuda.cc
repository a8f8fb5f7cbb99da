// cuda.cc: a gradient in a GPU's memory. The push follows the work of the compute stream, the wait lets later work of
// that stream follow the mean; the host waits once a step. Run: ESPRESSO_CODEC=int8 espresso run -n 2 -- ./cuda
#include "espresso.h"
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>

static const int COUNT = 100000, STEPS = 3;

static void check(esp_status s, const esp_ctx *ctx) {
    if (s >= 0) return;
    std::fprintf(stderr, "cuda: %s\n", esp_last_error(ctx));
    std::exit(1);
}
static void check(cudaError_t e) {
    if (e == cudaSuccess) return;
    std::fprintf(stderr, "cuda: %s\n", cudaGetErrorString(e));
    std::exit(1);
}

int main() {
    int devices = 0;
    check(cudaGetDeviceCount(&devices));
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx = nullptr;
    check(esp_open(&cfg, &ctx), nullptr);
    const int gpu = esp_rank(ctx) % devices; // on several machines: by the local rank
    check(cudaSetDevice(gpu));
    cudaStream_t compute;
    void *memory = nullptr, *pinned = nullptr;
    check(cudaStreamCreateWithPriority(&compute, cudaStreamNonBlocking, 0));
    check(cudaMalloc(&memory, COUNT * sizeof(float)));
    check(cudaHostAlloc(&pinned, COUNT * sizeof(float), cudaHostAllocPortable));
    float *const grad = static_cast<float *>(memory), *const host = static_cast<float *>(pinned);

    esp_tensor_desc desc = ESP_ZERO;
    uint32_t id = 0;
    desc.name = "gradient", desc.count = COUNT;
    desc.device.kind = ESP_CUDA, desc.device.ordinal = gpu; // the first such tensor loads plugin cuda
    check(esp_tensor_add(ctx, &desc, &id), ctx);
    check(esp_start(ctx), ctx);
    const esp_stream stream = {{ESP_CUDA, gpu}, compute};
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < COUNT; i++) host[i] = float(esp_rank(ctx) * 2 + step);
        // in your trainer: the kernels of backward
        check(cudaMemcpyAsync(grad, host, COUNT * sizeof *grad, cudaMemcpyHostToDevice, compute));
        check(esp_push(ctx, id, grad, stream), ctx); // when the stream's work so far is done; returns at once
        check(esp_wait_on(ctx, id, stream), ctx);    // work that is added to the stream now sees the mean
        check(cudaMemcpyAsync(host, grad, COUNT * sizeof *grad, cudaMemcpyDeviceToHost, compute));
        check(esp_wait_all(ctx), ctx); // before the next push
        check(cudaStreamSynchronize(compute));
        if (esp_rank(ctx) == 0) std::printf("step %d: the mean is %g\n", step, double(host[COUNT - 1]));
    }
    esp_close(ctx);
    check(cudaFree(grad));
    check(cudaFreeHost(host));
    check(cudaStreamDestroy(compute));
}
