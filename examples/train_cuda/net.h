/* net.h: the network of examples/train/model.h on a CUDA device, with its own kernels. All work is enqueued on one
 * stream; only net_open and net_images wait. Independent of espresso: backward calls back for each gradient that is
 * enqueued. */
#ifndef TRAIN_CUDA_NET_H
#define TRAIN_CUDA_NET_H
#include <cuda_runtime.h>
extern "C" {
#include "../train/data.h"
#include "../train/model.h"
}

/** Ends the process with CUDA's error text if a call failed. */
void cuda_must(cudaError_t e, const char *call);
#define CUDA(call) cuda_must((call), #call)

/** Pointers are to device memory. */
typedef struct network {
    const model *m; /* on the host: names, sizes, and this rank's parts */
    cudaStream_t stream;
    float *value[N_PARAMS];    /* the parameters, contiguous at value[0] */
    void *grad[N_PARAMS];      /* their gradients: float or bf16 */
    float *momentum[N_PARAMS]; /* of the parts that this rank updates */
    float *x[N_LAYERS + 1], *dx[N_LAYERS + 1];
    uint8_t *label;     /* of the batch in x[0] */
    uint32_t *right;    /* correctly classified images, counted by net_count */
    size_t state_bytes; /* of momentum */
    int bf16;
} network;

/** Images on the device. */
typedef struct images {
    uint8_t *pixels, *labels;
    size_t size; /* pixels of an image */
} images;

/** Allocates memory for batches of at most `batch` images, and copies m's values. The memory is never freed. */
void net_open(network *n, const model *m, size_t batch, int bf16);
/** Allocates the optimizer's state for each parameter's part, which the caller has set in the model. */
void net_state(network *n);
void net_images(images *im, const dataset *d);
/** Enqueues the scores of `count` images. `order`, on the device, has their numbers; where it is NULL they are those
 *  from `first` on. */
void net_forward(network *n, const images *im, const uint32_t *order, size_t first, size_t count);
/** After net_forward, enqueues all gradients (means over the images), and writes the mean loss to *loss, on the device.
 *  Calls ready(user, i) as soon as the work for gradient i is enqueued. */
void net_backward(network *n, size_t count, double *loss, void (*ready)(void *user, int i), void *user);
/** SGD with momentum. */
void net_update(network *n, float lr, float momentum);
/** After net_forward, adds the number of images that the scores classify correctly to *right. */
void net_count(network *n, size_t count);
#endif
