/* library.h includes the library's headers, with internal ones. Tests are compiled apart from it, so that functions
 * that are static in the single-file build must be external. */
#ifndef TEST_LIBRARY_H
#define TEST_LIBRARY_H
#ifndef ESP__FN
#define ESP__FN
#endif
#ifndef ESPRESSO_PREFIX
#define ESPRESSO_PREFIX "/usr/local"
#endif
#include "espresso.h"
#include "planner/auto/autopilot.h"
#include "espresso_impl/context/context.h"
#include "espresso_impl/observe/stats.h"
#include "planner/search/search.h"
#include "planner/builtin/builtin.h"
#include "planner/files/files.h"
#endif
