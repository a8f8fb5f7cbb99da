/* gemm.c: the matrix product, shared with examples/train. */
#include "../train/gemm.c"
