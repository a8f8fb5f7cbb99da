/* files.c: the planner's JSON files, and the order in which to read them. They need jansson. */
#include "planner/files/files.h"

#include "planner/files/output.c"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <time.h>

#include "planner/files/put.c"
#include "planner/files/locate.c"
#include "planner/files/input.c"
#include "planner/files/number.c"
#include "planner/files/curve.c"
#include "planner/files/measured.c"
#include "planner/files/model.c"
#include "planner/files/gc.c"
#include "planner/files/system.c"
#include "planner/files/costs.c"
#include "planner/files/strategy.c"
#include "planner/files/strategy_json.c"
