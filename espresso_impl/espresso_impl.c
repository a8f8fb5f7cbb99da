/* espresso_impl.c: the library as one translation unit, and the order in which to read it. */
#ifdef __cplusplus
#error                                                                                                                 \
    "the implementation is C: compile espresso.c with a C compiler and link it, or include espresso.h without ESPRESSO_IMPLEMENTATION"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "espresso's wire format is little-endian and the code copies it as it is: this machine is not supported"
#endif
#ifdef __FAST_MATH__
#error "espresso promises the same bits on all ranks: compile it without -ffast-math"
#endif
/* a * b + c in one rounding would make results depend on the instruction set */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

#include "internal.h"
#include "context.h"

#include "status.c"
#include "host.c"
#include "spec.c"
#include "env.c"
#include "peers.c"
#include "registry.c"
#include "loader.c"
#include "workers.c"
#include "trace.c"
#include "option.c"
#include "region.c"
#include "topology.c"
#include "codec_instance.c"
#include "units.c"
#include "strategy.c"
#include "strategy_text.c"
#include "order.c"
#include "program.c"
#include "memory.c"
#include "tokens.c"
#include "ops.c"
#include "executor.c"
#include "agree.c"
#include "meter.c"
#include "step.c"
#include "hold.c"
#include "hold_clock.c"
#include "state.c"
#include "codec_handle.c"
#include "../planner/planner.c"

#include "probe.c"
#include "survey.c"
#include "survey_codec.c"
#include "survey_step.c"
#include "survey_fit.c"
#include "report.c"
#include "record.c"
#include "stats_json.c"
#include "stats_prometheus.c"
#include "stats.c"
#include "guard.c"
#include "autopilot.c"
#include "context.c"
#include "builtin.c"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
