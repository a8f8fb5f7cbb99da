/* files.c: the planner's JSON files, and the order in which to read them. Without jansson (-DESPRESSO_JANSSON) everything
 * here says that it is left out. */
#include "files.h"

#include "output.c"

#ifdef ESPRESSO_JANSSON
#include <ctype.h>
#include <jansson.h>
#include <math.h>

#include "put.c"
#include "locate.c"
#include "input.c"
#include "number.c"
#include "curve.c"
#include "measured.c"
#include "model.c"
#include "gc.c"
#include "system.c"
#include "strategy.c"
#include "strategy_json.c"
#else
#include "left_out.c"
#endif
