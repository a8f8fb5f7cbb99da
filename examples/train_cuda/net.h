/* net.h: the network of examples/train/model.h on a CUDA device, with its own kernels. Functions enqueue their work on
 * one stream and do not wait, except net_open and net_images. The network does not use espresso: backward calls a
 * function of the caller for each gradient. */
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

/** All pointers to numbers are device pointers. */
typedef struct network {
    const model *m; /* on the host: names, sizes, this rank's parts */
    cudaStream_t stream;
    float *value[N_PARAMS];    /* the parameters, contiguous at value[0] */
    void *grad[N_PARAMS];      /* their gradients, float or bf16 */
    float *momentum[N_PARAMS]; /* for the parts that this rank updates */
    float *x[N_LAYERS + 1], *dx[N_LAYERS + 1];
    uint8_t *label;     /* labels of the images in x[0] */
    uint32_t *right;    /* correctly classified images, see net_count */
    size_t state_bytes; /* bytes of momentum */
    int bf16;
} network;

/** Images on the device. */
typedef struct images {
    uint8_t *pixels, *labels;
    size_t size; /* pixels per image */
} images;

/** Allocates memory for batches of up to `batch` images, and copies m's values. The memory is never freed. */
void net_open(network *n, const model *m, size_t batch, int bf16);
/** Allocates the optimizer's state for the part of each parameter that the caller has set in the model. */
void net_state(network *n);
void net_images(images *im, const dataset *d);
/** Enqueues the computation of the scores of `count` images. `order` is an array of image numbers on the device; if it
 * is NULL, the images are those from `first` on. */
void net_forward(network *n, const images *im, const uint32_t *order, size_t first, size_t count);
/** After net_forward, enqueues the computation of all gradients (means over the images) and of the mean loss, *loss on
 * the device. Calls ready(user, i) as soon as the work for gradient i is enqueued. */
void net_backward(network *n, size_t count, double *loss, void (*ready)(void *user, int i), void *user);
/** Enqueues an update by SGD with momentum. */
void net_update(network *n, float lr, float momentum);
/** After net_forward, adds the number of correctly classified images to *right. */
void net_count(network *n, size_t count);
#endif
