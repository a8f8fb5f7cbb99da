/* gemm.c: the matrix product of the other trainer, as it is. */
#include "../train/gemm.c"
