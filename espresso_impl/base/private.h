/* private.h: how a private function is declared. The headers of base/ that need no context include only this one. */
#ifndef ESP__PRIVATE_H
#define ESP__PRIVATE_H
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
#ifndef ESP__FN /* a private function; the test build of the library lets tests link it (tests/common/library.h) */
#define ESP__FN ESP__UNUSED static
#endif
#endif
