/* host.h is the interface between two files of the tests' CUDA emulator: host.cc (memory and streams) and block.cc
 * (kernels). */
#ifndef CUDA_HOST_H
#define CUDA_HOST_H
#include "tests/cuda/emulator/cuda_runtime.h"

uint32_t cuda_host_random(uint32_t below);
/* Runs the first enqueued work of some stream if it can run, and then returns 1. The caller holds the lock. */
int cuda_host_work(void);
void cuda_host_run(dim3 grid, dim3 block, const std::function<void()> &kernel);
/* how many launches and blocks began */
extern uint64_t cuda_host_launch_number, cuda_host_block_number;
void cuda_host_unwritten(void *p, size_t bytes);
#endif
