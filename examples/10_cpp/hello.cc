/* hello.cc: hello.c in C++, where exceptions may end a step. A Step object takes the gradients back before their memory
 * is freed, and a Context object closes the context, so that the other ranks end with an error instead of waiting.
 * Run: espresso run -n 4 -- ./hello, or with the argument "throw": rank 1 fails in its second step. */
#include "espresso.h"
#include <cstdio>
#include <stdexcept>
#include <vector>

static void check(esp_status s, const esp_ctx *ctx) {
    if (s < 0) throw std::runtime_error(esp_last_error(ctx));
}

struct Context {
    esp_ctx *ctx = nullptr;
    Context() { check(esp_open(nullptr, &ctx), nullptr); }
    ~Context() { esp_close(ctx); }
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
};

struct Step {
    const Context &job;
    explicit Step(const Context &of) : job(of) {}
    ~Step() { esp_cancel(job.ctx); } /* does nothing after esp_wait_all */
    Step(const Step &) = delete;
    Step &operator=(const Step &) = delete;
};

static void train(const Context &job, uint32_t id, int number, bool fails) {
    std::vector<float> grad(3); /* freed after the Step that is declared below it */
    Step step(job);
    for (int i = 0; i < 3; i++) grad[size_t(i)] = float(esp_rank(job.ctx) + 10 * i + 100 * number);
    check(esp_push(job.ctx, id, grad.data(), esp_stream{}), job.ctx);
    if (fails) throw std::runtime_error("the loss is NaN");
    check(esp_wait_all(job.ctx), job.ctx);
    std::printf("step %d: the mean is %g %g %g\n", number, double(grad[0]), double(grad[1]), double(grad[2]));
}

int main(int argc, char **) {
    try {
        const Context job;
        esp_tensor_desc desc = ESP_ZERO;
        uint32_t id = 0;
        desc.name = "gradient", desc.count = 3;
        check(esp_tensor_add(job.ctx, &desc, &id), job.ctx);
        check(esp_start(job.ctx), job.ctx);
        for (int number = 0; number < 2; number++)
            train(job, id, number, argc > 1 && number == 1 && esp_rank(job.ctx) == 1);
    } catch (const std::exception &e) {
        std::fprintf(stderr, "hello: %s\n", e.what());
        return 1;
    }
}
