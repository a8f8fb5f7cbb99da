# test_nccl_header.sh: the declarations of NCCL and the CUDA driver in backends/nccl/library.h equal those of their
# headers: arguments, constants and the layout of the configuration.
. tests/compile/common.sh
cc=${CC:-gcc}
printf '#include <nccl.h>\n#include <cuda.h>\n' >"$tmp/probe.c"
if ! $cc -fsyntax-only "$tmp/probe.c" 2>/dev/null; then
    echo "skipped: the compiler does not find nccl.h and cuda.h"
    exit 77
fi
# X(NAME, (TYPE a, TYPE b)) becomes a function that passes its arguments on to NAME
sed 's/[ \\]*$//' backends/nccl/library.h | sed -n 's/^ *X(\([A-Za-z_0-9]*\), (\(.*\)))$/\1|\2/p' >"$tmp/functions"
[ "$(wc -l <"$tmp/functions")" -gt 40 ] || { echo "found only $(wc -l <"$tmp/functions") functions in library.h"; exit 1; }
{
    cat <<'END'
#include <nccl.h>
#include <cuda.h>
#include "backends/nccl/library.h"
#define SAME(a, b) _Static_assert((long long)(a) == (long long)(b), #a " is not " #b)
SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_BAD_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_BAD_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_INT8, ncclInt8);
SAME(NCCL_INT32, ncclInt32);
SAME(NCCL_FLOAT16, ncclFloat16);
SAME(NCCL_FLOAT32, ncclFloat32);
SAME(NCCL_BFLOAT16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_MIN, ncclMin);
SAME(NCCL_SCALAR_IN_HOST, ncclScalarHostImmediate);
SAME(NCCL_OLDEST, NCCL_VERSION(2, 14, 0));
SAME(NCCL_WITH_CTAS, NCCL_VERSION(2, 17, 0));
SAME(sizeof(nccl_id), sizeof(ncclUniqueId));
SAME(offsetof(nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(nccl_config, blocking), offsetof(ncclConfig_t, blocking));
SAME(offsetof(nccl_config, max_ctas), offsetof(ncclConfig_t, maxCTAs));
SAME(offsetof(nccl_config, net_name), offsetof(ncclConfig_t, netName));
SAME(NCCL_UNSET, NCCL_CONFIG_UNDEF_INT);
SAME(CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CUDA_EVENT_NO_TIMES, CU_EVENT_DISABLE_TIMING);
SAME(CUDA_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CUDA_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
const char *check_text(int r, nccl_handle c) { return c ? ncclGetLastError(c) : ncclGetErrorString(r); }
END
    awk -F'|' '{
        n = split($2, arg, ","); call = ""
        for (i = 1; i <= n && $2 != "void"; i++) {
            name = arg[i]; sub(/^.*[ *]/, "", name)
            pass = arg[i] ~ /nccl_id id/ ? "*(ncclUniqueId *)(void *)&" name : arg[i] ~ /\*/ ? "(void *)(uintptr_t)" name : name
            call = call (i > 1 ? ", " : "") pass
        }
        printf "int check_%s(%s) { return (int)%s(%s); }\n", $1, $2, $1, call
    }' "$tmp/functions"
} >"$tmp/check.c"
try "$cc" -std=gnu11 -I. -Wall -Wextra -Wno-unused-function -Wno-missing-prototypes -Werror -fsyntax-only "$tmp/check.c"
# the test detects a difference
sed 's/ncclSend((void \*)(uintptr_t)src, n, /ncclSend((void *)(uintptr_t)src, /' "$tmp/check.c" >"$tmp/wrong.c"
if cmp -s "$tmp/check.c" "$tmp/wrong.c" || $cc -std=gnu11 -I. -Wno-unused-function -fsyntax-only "$tmp/wrong.c" 2>/dev/null; then
    echo "a missing argument is not found" && exit 1
fi
