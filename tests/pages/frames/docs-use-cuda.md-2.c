/* only compiled: NCCL is needed to run it; the types are those of nccl.h and the CUDA runtime */
#include "lib.h"
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct ncclComm *ncclComm_t;
int cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
int cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, cudaStream_t stream);
extern int ncclBfloat16, ncclAvg;
extern cudaStream_t compute, comm_stream;
extern cudaEvent_t ready;
extern ncclComm_t comm;
void one_layer(int layer, int tensors_of_layer, void *(*gradients)[8], uint32_t (*ids)[8], const size_t *count,
               esp_stream stream);
void one_layer(int layer, int tensors_of_layer, void *(*gradients)[8], uint32_t (*ids)[8], const size_t *count,
               esp_stream stream) {
    void *(*grad)[8] = gradients;
    uint32_t(*id)[8] = ids;
    BLOCK;
}
