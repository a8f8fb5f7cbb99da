/* private.h: ESP__FN, which declares a private function, and the standard headers that all files use. */
#ifndef ESP__PRIVATE_H
#define ESP__PRIVATE_H
#include "espresso.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
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
/* ESP__FN marks private functions: static if espresso.c includes all files (it defines ESP__FN), else hidden. */
#ifndef ESP__FN
#if defined(__GNUC__)
#define ESP__FN __attribute__((visibility("hidden")))
#else
#define ESP__FN
#endif
#endif
#ifndef ESPRESSO_PREFIX /* the folder where make installs plugins and models */
#define ESPRESSO_PREFIX "/usr/local"
#endif
#endif
