/* espresso.c: includes all source files of the library, so that it is one translation unit. Compile this file, or
 * define ESPRESSO_IMPLEMENTATION before including espresso.h in one C file. Each source file also compiles alone. */
#ifndef ESPRESSO_IMPL_DONE
#define ESPRESSO_IMPL_DONE
#ifndef ESPRESSO_IMPLEMENTATION
#define ESPRESSO_IMPLEMENTATION
#endif
#include "espresso.h"
#if defined(__GLIBC__) && !(defined(__USE_MISC) && defined(__USE_ISOC11))
#error                                                                                                                 \
    "a header of libc came before the implementation, and this -std leaves out what espresso needs: include espresso.h first in this file, or compile with -D_DEFAULT_SOURCE -D_ISOC11_SOURCE or -std=gnu11"
#endif
#ifdef __cplusplus
#error                                                                                                                 \
    "the implementation is C: compile espresso.c with a C compiler and link it, or include espresso.h without ESPRESSO_IMPLEMENTATION"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "espresso's wire format is little-endian and the code copies it as it is: this machine is not supported"
#endif
/* Pragmas cannot turn fast math off completely: only the command line decides how gcc declares sqrtf. */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) ||                               \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error                                                                                                                 \
    "espresso promises the same bits on all ranks, and -Ofast or -ffast-math break that: compile espresso.c by itself with -fno-fast-math behind your flags, or link the library; your own files may keep theirs"
#endif
/* All includes name paths below the folder of espresso.h, which -I must add. */
#if !defined(ESPRESSO_ONE_FILE) && defined(__has_include)
#if !__has_include(<espresso_impl/base/base.h>)
#error                                                                                                                 \
    "compile with -I and the folder that holds espresso.h (gcc -I. -c espresso.c there), or use the one file that `make dist` writes"
#endif
#endif
/* The pragmas at the end of this file restore the including file's settings. Contraction (a * b + c with one rounding)
 * is off, because it makes results depend on the instruction set. clang needs precise arithmetic, because
 * -funsafe-math-optimizations defines no macro to test. The two warnings concern C++ and C90, not C11. */
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed" /* clang vectorizes fewer loops than gcc */
#pragma float_control(push)
#pragma float_control(precise, on)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wc++-compat"
#pragma GCC diagnostic ignored "-Wdeclaration-after-statement"
#if __STDC_VERSION__ < 201112L
#pragma GCC diagnostic ignored "-Wpedantic"
#endif
#endif

/* Private functions are static here, but not in files that are compiled alone. noinline without the planner saves a
 * fifth of the compile time and costs steps nothing. Inlining makes the planner 5 to 8% faster. */
#ifdef ESP__FN /* defined by check-style.sh to find unused functions */
#elif defined(ESP_NO_PLANNER) && defined(__GNUC__)
#define ESP__FN __attribute__((unused, noinline)) static
#elif defined(__GNUC__)
#define ESP__FN __attribute__((unused)) static
#else
#define ESP__FN static
#endif

#include "espresso_impl/base/status.c"
#include "espresso_impl/base/alloc.c"
#include "espresso_impl/job/levels.c"
#include "espresso_impl/base/text.c"
#include "espresso_impl/base/spec.c"
#include "espresso_impl/base/json.c"
#include "espresso_impl/base/file.c"
#include "espresso_impl/base/machine.c"
#include "espresso_impl/base/os.c"
#include "espresso_impl/job/hmac.c"
#include "espresso_impl/base/quantile.c"
#include "espresso_impl/job/env.c"
#include "espresso_impl/job/env_names.c"
#include "espresso_impl/job/socket.c"
#include "espresso_impl/job/handshake.c"
#include "espresso_impl/job/lobby.c"
#include "espresso_impl/job/rendezvous.c"
#include "espresso_impl/job/exchange.c"
#include "espresso_impl/job/liveness.c"
#include "espresso_impl/job/leave.c"
#include "espresso_impl/job/regroup.c"
#include "espresso_impl/job/join.c"
#include "espresso_impl/registry/validate.c"
#include "espresso_impl/registry/registry.c"
#include "espresso_impl/registry/trust.c"
#include "espresso_impl/registry/loader.c"
#include "espresso_impl/registry/lookup.c"
#include "espresso_impl/device/device_cpu.c"
#include "espresso_impl/device/device.c"
#include "espresso_impl/base/workers.c"
#include "espresso_impl/strategy/option.c"
#include "espresso_impl/strategy/rounds.c"
#include "espresso_impl/strategy/region.c"
#include "espresso_impl/job/topology.c"
#include "espresso_impl/job/agree.c"
#include "espresso_impl/codec/describe.c"
#include "espresso_impl/codec/instance.c"
#include "espresso_impl/codec/call.c"
#include "espresso_impl/strategy/units.c"
#include "espresso_impl/strategy/serve.c"
#include "espresso_impl/strategy/shard.c"
#include "espresso_impl/strategy/assign.c"
#include "espresso_impl/strategy/strategy.c"
#include "espresso_impl/strategy/text.c"
#include "espresso_impl/strategy/entries.c"
#include "espresso_impl/strategy/read.c"
#include "espresso_impl/strategy/order.c"
#include "espresso_impl/strategy/fragments.c"
#include "espresso_impl/program/emit.c"
#include "espresso_impl/program/spaces.c"
#include "espresso_impl/program/pieces.c"
#include "espresso_impl/program/comps.c"
#include "espresso_impl/program/compile.c"
#include "espresso_impl/program/memory.c"
#include "espresso_impl/program/feedback.c"
#include "espresso_impl/executor/tokens.c"
#include "espresso_impl/executor/ops.c"
#include "espresso_impl/executor/meter.c"
#include "espresso_impl/executor/comms.c"
#include "espresso_impl/executor/dispatch.c"
#include "espresso_impl/executor/waits.c"
#include "espresso_impl/executor/observers.c"
#include "espresso_impl/executor/lanes.c"
#include "espresso_impl/executor/health.c"
#include "espresso_impl/context/lent.c"
#include "espresso_impl/context/step.c"
#include "espresso_impl/context/weight.c"
#include "espresso_impl/context/allreduce.c"
#include "espresso_impl/context/helpers.c"
#include "espresso_impl/context/gather.c"
#include "espresso_impl/context/state.c"
#include "espresso_impl/context/handle.c"
#include "espresso_impl/observe/trace.c"
#include "espresso_impl/observe/model_profile.c"
#include "espresso_impl/observe/stats_json.c"
#include "espresso_impl/observe/stats_prometheus.c"
#include "espresso_impl/observe/stats.c"
#include "espresso_impl/observe/errors.c"
#include "espresso_impl/observe/growth.c"
#include "espresso_impl/observe/stragglers.c"
#include "espresso_impl/context/activate.c"
#include "espresso_impl/context/outer.c"
#include "espresso_impl/context/outer_open.c"
#include "espresso_impl/context/outer_state.c"
#include "espresso_impl/context/outer_choose.c"
#include "espresso_impl/context/outer_late.c"
#include "espresso_impl/context/shrink.c"
#include "espresso_impl/context/reconfigure.c"
#include "espresso_impl/context/open.c"
#include "espresso_impl/registry/builtin.c"

/* the built-in codecs and backends, whose entries are private functions */
#undef ESPRESSO_PLUGIN_ENTRY
#define ESPRESSO_PLUGIN_ENTRY(id) ESP__FN const esp_plugin *espresso_plugin_v1_##id(const esp_host *h)
#include "codecs/none.c"
#include "codecs/lossless.c"
#include "codecs/quantize/half.c"
#include "codecs/quantize/efsignsgd.c"
#include "codecs/quantize/twobit.c"
#include "codecs/quantize/quant.c"
#include "codecs/sparsify/topk.c"
#include "codecs/hybrid/chunktopk.c"
#include "codecs/sparsify/randomk.c"
#include "codecs/sparsify/dgc.c"
#include "codecs/lowrank/powersgd.c"
#include "codecs/quantize/fp8.c"
#include "codecs/quantize/dynamic8.c"
#include "codecs/quantize/qsgd.c"
#include "codecs/quantize/natural.c"
#include "codecs/quantize/maxmin.c"
#include "codecs/quantize/onebit.c"
#include "codecs/quantize/sign.c"
#include "codecs/sparsify/threshold.c"
#include "codecs/hybrid/adaptive.c"
#include "codecs/hybrid/threelc.c"
#include "codecs/hybrid/sketchml.c"
#include "codecs/quantize/inceptionn.c"
#include "codecs/warmup.c"
#include "codecs/loco.c"
#include "backends/common/common.c"
#include "backends/common/reduce.c"
#include "backends/shm/shm_memory.c"
#include "backends/shm/link.c"
#include "backends/shm/plan.c"
#include "backends/shm/ring.c"
#include "backends/shm/move.c"
#include "backends/shm/wait.c"
#include "backends/shm/drive.c"
#include "backends/shm/comm.c"
#include "backends/shm/loop.c"
#include "backends/shm/shm.c"

/* ESP_NO_PLANNER omits the files below, which contain esp_plan_* and strategy "auto". They come last, because the
 * one-file header has each header only where it is first included. */
#ifndef ESP_NO_PLANNER
#include "planner/problem/tree.c"
#include "planner/problem/arena.c"
#include "planner/problem/cost.c"
#include "planner/problem/round_sizes.c"
#include "planner/problem/templates.c"
#include "planner/problem/op_time.c"
#include "planner/problem/candidates.c"
#include "planner/problem/problem.c"
#include "planner/simulate/simulate.c"
#include "planner/simulate/schedule.c"
#include "planner/simulate/incremental.c"
#include "planner/search/improve.c"
#include "planner/baselines/common.c"
#include "planner/baselines/ddp.c"
#include "planner/baselines/per_tensor.c"
#include "planner/baselines/mergecomp.c"
#include "planner/baselines/hipress.c"
#include "planner/baselines/byteps_compress.c"
#include "planner/search/strategies.c"
#include "planner/bound/game.c"
#include "planner/bound/rates.c"
#include "planner/bound/bound.c"
#include "planner/search/limits.c"
#include "planner/search/exact.c"
#include "planner/search/initial.c"
#include "planner/search/regroup.c"
#include "planner/search/search.c"
#include "planner/search/paper.c"
#include "planner/simulate/schedule_text.c"
#include "planner/plan.c"
#include "planner/builtin/systems.c"
#include "planner/builtin/v100.c"
#include "planner/builtin/known_costs.c"
#include "planner/builtin/safety.c"
#include "planner/calibrate/probe.c"
#include "planner/calibrate/links.c"
#include "planner/calibrate/codec_calls.c"
#include "planner/calibrate/codecs.c"
#include "planner/calibrate/steps.c"
#include "planner/calibrate/fit.c"
#include "planner/calibrate/between.c"
#include "planner/auto/options.c"
#include "planner/auto/fallback.c"
#include "planner/auto/loss.c"
#include "planner/auto/measure.c"
#include "planner/auto/candidates.c"
#include "planner/auto/tournament.c"
#include "planner/auto/merge.c"
#include "planner/auto/phases.c"
#include "planner/auto/autopilot.c"
#else
ESP__FN const esp__observer *esp__auto_observer(void) { return NULL; }
#endif

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#if defined(__clang__)
#pragma float_control(pop)
#pragma clang diagnostic pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
#endif
