# cuda.mk: how codecs/cuda is compiled, by nvcc for GPUs, and as C++ for the tests' runtime. Part of the Makefile.
# CUDA codecs: codecs/cuda as C++, in which the codecs' own files are included. No contraction, so that bytes are the CPU's
CUDA_BASE := -std=c++20 -ffp-contract=off -I. -Drestrict=__restrict__ -DESP_NO_SIMD -Wall -Wno-unused-function
# plugin cuda is built where nvcc is: for all architectures that it knows, and PTX of the newest (CUDA_ARCH=sm_90: for one, which is faster)
NVCC      ?= $(firstword $(call have,nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_ARCH ?= all
CUDA_SRC  := $(wildcard codecs/cuda/*.cu)
CUDA_HOST_FLAGS := -fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall,-Wno-unused-function
