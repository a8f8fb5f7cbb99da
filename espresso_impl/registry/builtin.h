/* builtin.h: names the built-in codecs and backends. To add one, add its file to espresso.c and its name here. */
#ifndef ESP__BUILTIN_PLUGINS_H
#define ESP__BUILTIN_PLUGINS_H
#include "espresso_impl/base/private.h"

#define ESP__BUILTIN_CODECS(X)                                                                                         \
    X(none)                                                                                                            \
    X(half)                                                                                                            \
    X(efsignsgd)                                                                                                       \
    X(twobit)                                                                                                          \
    X(quant)                                                                                                           \
    X(topk)                                                                                                            \
    X(chunktopk)                                                                                                       \
    X(randomk)                                                                                                         \
    X(dgc)                                                                                                             \
    X(powersgd)                                                                                                        \
    X(warmup)                                                                                                          \
    X(loco)                                                                                                            \
    X(fp8)                                                                                                             \
    X(dynamic8)                                                                                                        \
    X(qsgd)                                                                                                            \
    X(natural)                                                                                                         \
    X(maxmin)                                                                                                          \
    X(onebit)                                                                                                          \
    X(sign)                                                                                                            \
    X(threshold)                                                                                                       \
    X(adaptive)                                                                                                        \
    X(threelc)                                                                                                         \
    X(sketchml)                                                                                                        \
    X(inceptionn)                                                                                                      \
    X(lossless)
#define ESP__BUILTIN_BACKENDS(X) X(loop) X(shm)

#define ESP__BUILTIN_DECLARE(id) ESP__FN const esp_plugin *espresso_plugin_v1_##id(const esp_host *h);
#define ESP__BUILTIN_ENTRY(id) espresso_plugin_v1_##id,
ESP__BUILTIN_CODECS(ESP__BUILTIN_DECLARE)
ESP__BUILTIN_BACKENDS(ESP__BUILTIN_DECLARE)
#endif
