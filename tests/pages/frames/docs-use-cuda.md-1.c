/* only compiled: a GPU is needed to run it */
#include "lib.h"
extern void *cuda_stream, *gradient;
void step(int32_t gpu);
void step(int32_t gpu) { BLOCK; }
