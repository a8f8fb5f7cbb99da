/* espresso.c: the library as one translation unit: compile this file, or define ESPRESSO_IMPLEMENTATION before including espresso.h
 * in one C file. Nothing else is in here than the list of the library's files, each of which also compiles alone. */
#ifndef ESPRESSO_IMPL_DONE
#define ESPRESSO_IMPL_DONE
#include "espresso.h"
#ifdef __cplusplus
#error                                                                                                                 \
    "the implementation is C: compile espresso.c with a C compiler and link it, or include espresso.h without ESPRESSO_IMPLEMENTATION"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "espresso's wire format is little-endian and the code copies it as it is: this machine is not supported"
#endif
/* pragmas cannot turn off all of fast math: gcc declares sqrtf and similar functions by the command line alone */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) ||                               \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error                                                                                                                 \
    "espresso promises the same bits on all ranks, and -Ofast or -ffast-math break that: compile espresso.c by itself with -fno-fast-math behind your flags, or link the library; your own files may keep theirs"
#endif
/* files of the tree name each other from its root; the one-file header needs no folder */
#if !defined(ESPRESSO_ONE_FILE) && defined(__has_include)
#if !__has_include(<espresso_impl/base/base.h>)
#error                                                                                                                 \
    "compile with -I and the folder that holds espresso.h (gcc -I. -c espresso.c there), or use the one file that `make dist` writes"
#endif
#endif
/* The pragmas at the end restore the settings of the file that includes this one. Contraction (a * b + c with one rounding) is off,
 * because results would depend on the instruction set. clang's -funsafe-math-optimizations defines no macro to test, so precise
 * arithmetic is turned on. The two warnings that are off concern C++ and C90, not C11. */
#if defined(__clang__)
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
#endif

/* Private functions are static here; files that are compiled alone call each other's. Without the planner they are not inlined: that
 * takes a fifth of the compile time, and steps gain nothing from it. The planner gains 5 to 8%. */
#ifdef ESP__FN /* check-style.sh looks for functions that nobody calls */
#elif defined(ESP_NO_PLANNER) && defined(__GNUC__)
#define ESP__FN __attribute__((unused, noinline)) static
#elif defined(__GNUC__)
#define ESP__FN __attribute__((unused)) static
#else
#define ESP__FN static
#endif

#include "espresso_impl/base/status.c"
#include "espresso_impl/base/host.c"
#include "espresso_impl/base/spec.c"
#include "espresso_impl/base/levels.c"
#include "espresso_impl/base/near.c"
#include "espresso_impl/base/text.c"
#include "espresso_impl/base/json.c"
#include "espresso_impl/base/file.c"
#include "espresso_impl/base/machine.c"
#include "espresso_impl/base/fpmode.c"
#include "espresso_impl/base/process.c"
#include "espresso_impl/base/thread.c"
#include "espresso_impl/base/hmac.c"
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
#include "espresso_impl/plugins/refuse.c"
#include "espresso_impl/plugins/registry.c"
#include "espresso_impl/plugins/trust.c"
#include "espresso_impl/plugins/loader.c"
#include "espresso_impl/device/device_cpu.c"
#include "espresso_impl/device/device.c"
#include "espresso_impl/base/workers.c"
#include "espresso_impl/base/workers_omp.c"
#include "espresso_impl/strategy/option.c"
#include "espresso_impl/strategy/rounds.c"
#include "espresso_impl/strategy/region.c"
#include "espresso_impl/job/topology.c"
#include "espresso_impl/job/agree.c"
#include "espresso_impl/plugins/codec_model.c"
#include "espresso_impl/plugins/codec_instance.c"
#include "espresso_impl/plugins/codec_call.c"
#include "espresso_impl/strategy/units.c"
#include "espresso_impl/strategy/shard.c"
#include "espresso_impl/strategy/strategy.c"
#include "espresso_impl/strategy/text.c"
#include "espresso_impl/strategy/entries.c"
#include "espresso_impl/strategy/read.c"
#include "espresso_impl/strategy/order.c"
#include "espresso_impl/executor/program_sides.c"
#include "espresso_impl/executor/program_pieces.c"
#include "espresso_impl/executor/program_comp.c"
#include "espresso_impl/executor/program.c"
#include "espresso_impl/executor/arena.c"
#include "espresso_impl/executor/feedback.c"
#include "espresso_impl/executor/tokens.c"
#include "espresso_impl/executor/ops.c"
#include "espresso_impl/executor/ops_device.c"
#include "espresso_impl/executor/meter.c"
#include "espresso_impl/executor/comms.c"
#include "espresso_impl/executor/dispatch.c"
#include "espresso_impl/executor/waits.c"
#include "espresso_impl/executor/executor.c"
#include "espresso_impl/executor/step.c"
#include "espresso_impl/executor/request_on.c"
#include "espresso_impl/executor/gather.c"
#include "espresso_impl/executor/state.c"
#include "espresso_impl/executor/codec_handle.c"
#include "espresso_impl/observe/trace.c"
#include "espresso_impl/observe/profile.c"
#include "espresso_impl/observe/stats_json.c"
#include "espresso_impl/observe/stats_prometheus.c"
#include "espresso_impl/observe/stats.c"
#include "espresso_impl/observe/errors.c"
#include "espresso_impl/observe/growth.c"
#include "espresso_impl/observe/stragglers.c"
#include "espresso_impl/observe/observers.c"
#include "espresso_impl/executor/install.c"
#include "espresso_impl/executor/shrink.c"
#include "espresso_impl/executor/context.c"
#include "espresso_impl/plugins/builtin.c"

/* the built-in codecs and backends: plugins whose entries are private functions */
#undef ESPRESSO_PLUGIN_ENTRY
#define ESPRESSO_PLUGIN_ENTRY(id) ESP__FN const esp_plugin *espresso_plugin_v1_##id(const esp_host *h)
#include "codecs/none.c"
#include "codecs/half.c"
#include "codecs/efsignsgd.c"
#include "codecs/twobit.c"
#include "codecs/quant.c"
#include "codecs/topk.c"
#include "codecs/chunktopk.c"
#include "codecs/randomk.c"
#include "codecs/dgc.c"
#include "codecs/powersgd.c"
#include "codecs/warmup.c"
#include "backends/common/common.c"
#include "backends/common/reduce.c"
#include "backends/engine/shm_memory.c"
#include "backends/engine/link.c"
#include "backends/engine/plan.c"
#include "backends/engine/ring.c"
#include "backends/engine/move.c"
#include "backends/engine/wait.c"
#include "backends/engine/drive.c"
#include "backends/engine/comm.c"
#include "backends/loop.c"
#include "backends/shm.c"

/* What ESP_NO_PLANNER leaves out: esp_plan_*, and strategy auto. It comes last: the one-file header has each header only once, where it
 * is first included, and what is above needs its headers in both builds. */
#ifndef ESP_NO_PLANNER
#include "planner/problem/tree.c"
#include "planner/problem/arena.c"
#include "planner/problem/cost.c"
#include "planner/problem/rounds.c"
#include "planner/problem/templates.c"
#include "planner/problem/op_time.c"
#include "planner/problem/candidates.c"
#include "planner/problem/problem.c"
#include "planner/schedule/simulate.c"
#include "planner/schedule/schedule.c"
#include "planner/schedule/urgency.c"
#include "planner/schedule/incremental.c"
#include "planner/search/improve.c"
#include "planner/search/critical_path.c"
#include "planner/schedule/resimulate.c"
#include "planner/search/lagrangian.c"
#include "planner/search/algorithm1.c"
#include "planner/search/algorithm2.c"
#include "planner/schemes/common.c"
#include "planner/schemes/ddp.c"
#include "planner/schemes/per_tensor.c"
#include "planner/schemes/mergecomp.c"
#include "planner/schemes/hipress.c"
#include "planner/schemes/byteps_compress.c"
#include "planner/schemes/schemes.c"
#include "planner/search/espresso.c"
#include "planner/bound/game.c"
#include "planner/bound/rows.c"
#include "planner/bound/bound.c"
#include "planner/bound/any.c"
#include "planner/search/limits.c"
#include "planner/search/exact.c"
#include "planner/search/initial.c"
#include "planner/search/regroup.c"
#include "planner/search/search.c"
#include "planner/schedule/text.c"
#include "planner/plan.c"
#include "planner/builtin/systems.c"
#include "planner/builtin/v100.c"
#include "planner/builtin/costs.c"
#include "espresso_impl/costs/probe.c"
#include "espresso_impl/costs/links.c"
#include "espresso_impl/costs/codec_calls.c"
#include "espresso_impl/costs/codecs.c"
#include "espresso_impl/costs/steps.c"
#include "espresso_impl/costs/fit.c"
#include "espresso_impl/autopilot/options.c"
#include "espresso_impl/autopilot/budget.c"
#include "espresso_impl/autopilot/measure.c"
#include "espresso_impl/autopilot/fallback.c"
#include "espresso_impl/autopilot/safety.c"
#include "espresso_impl/autopilot/loss.c"
#include "espresso_impl/autopilot/safer.c"
#include "espresso_impl/autopilot/plan.c"
#include "espresso_impl/autopilot/watch.c"
#include "espresso_impl/autopilot/autopilot.c"
#else
#include "espresso_impl/observe/no_autopilot.c"
#endif

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#if defined(__clang__)
#pragma float_control(pop)
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
#endif
