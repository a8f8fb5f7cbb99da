/* capture.cc captures work in a CUDA graph, for tests in C, on the tests' CUDA emulator or on a GPU. */
#include "tests/cuda/emulator/capture.h"
#include <cuda_runtime.h>

int capture_all_begin(void *stream) {
    return (int)cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeGlobal);
}
int capture_all_end(void *stream) {
    cudaGraph_t graph = NULL;
    const cudaError_t e = cudaStreamEndCapture((cudaStream_t)stream, &graph);
    return (int)(e == cudaSuccess ? cudaGraphDestroy(graph) : e);
}
int capture_and_launch(void *stream, void (*call)(void *arg), void *arg, int times) {
    cudaStream_t s = (cudaStream_t)stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t e = cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    if (e == cudaSuccess) {
        call(arg);
        e = cudaStreamEndCapture(s, &graph);
    }
    if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < times && e == cudaSuccess; i++) e = cudaGraphLaunch(exec, s);
    if (e == cudaSuccess) e = cudaStreamSynchronize(s);
    if (exec) (void)cudaGraphExecDestroy(exec);
    if (graph) (void)cudaGraphDestroy(graph);
    return (int)e;
}
