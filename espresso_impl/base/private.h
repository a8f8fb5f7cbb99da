/* private.h: how a private function is declared. The headers of base/ that need no context include only this one. */
#ifndef ESP__PRIVATE_H
#define ESP__PRIVATE_H
#include "espresso.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define ESP__PRINTF(a, b) __attribute__((format(printf, a, b)))
#define ESP__UNUSED __attribute__((unused))
#else
#define ESP__PRINTF(a, b)
#define ESP__UNUSED
#endif
/* A private function. Without the planner, files call each other's functions, as if each were compiled alone: inlining them takes a
 * fifth of the compile time, and steps gain nothing from it. The planner does, by 5 to 8%. The test build of the library lets tests link
 * private functions (tests/common/library.h). */
#ifndef ESP__FN
#if defined(ESP_NO_PLANNER) && defined(__GNUC__)
#define ESP__FN __attribute__((noinline)) ESP__UNUSED static
#else
#define ESP__FN ESP__UNUSED static
#endif
#endif
#endif
