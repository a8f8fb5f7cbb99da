/* steps.h: times of training steps of one rank with tensors on a GPU. */
#ifndef BENCH_CUDA_STEPS_H
#define BENCH_CUDA_STEPS_H
#include "espresso.h"

typedef struct bench_step {
    const char *codec;
    void **gradient; /* [tensors] */
    uint32_t tensors;
    uint64_t elements; /* of each tensor */
    esp_stream stream;
    void (*begins)(void), (*ended)(void); /* called before and after the last step, or NULL */
    double step_ns, push_ns; /* results: median of a step, from the first push to the end of esp_wait_all, and of the
                                time in esp_push, both divided by the number of tensors */
} bench_step;
double bench_now(void);
int bench_by_size(const void *a, const void *b);
void bench_steps(bench_step *b);
#endif
