/* capture.h lets tests in C capture work in a CUDA graph. */
#ifndef CUDA_HOST_CAPTURE_H
#define CUDA_HOST_CAPTURE_H
#ifdef __cplusplus
extern "C" {
#endif
/* Begins and ends the capture of a stream in mode global, in which threads may not wait unless they exchange their
 * mode. They return CUDA's error. */
int capture_all_begin(void *stream);
int capture_all_end(void *stream);
/* Captures the work that call(arg) enqueues on the stream, launches the graph `times` times, and waits. Returns 0 or
 * CUDA's first error. */
int capture_and_launch(void *stream, void (*call)(void *arg), void *arg, int times);
#ifdef __cplusplus
}
#endif
#endif
