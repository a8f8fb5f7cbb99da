# cuda.mk: sets how codecs/cuda is compiled: by nvcc for GPUs, and as C++ for the tests' CUDA emulator. The Makefile includes it.
# CUDA codecs are C++ and include the codecs' C files. a * b + c is never fused, so that GPU and CPU give the same bytes.
CUDA_BASE := -std=c++20 -ffp-contract=off -I. -Drestrict=__restrict__ -DESP_NO_SIMD -Wall -Wno-unused-function
# If nvcc is found, plugin cuda is built for all architectures that nvcc knows. CUDA_ARCH=sm_90 builds for one only, which is faster.
NVCC      ?= $(firstword $(call have,nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_ARCH ?= all
CUDA_SRC  := $(wildcard codecs/cuda/*.cu codecs/cuda/*/*.cu)
CUDA_HOST_FLAGS := -fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall,-Wno-unused-function
