/* files.c: the planner's JSON files, and the order in which to read them. They need jansson. */
#include "planner/files/files.h"

#include "planner/files/read.c"
#include "planner/files/write.c"
#include "planner/files/costs_parts.c"
#include "planner/files/model.c"
#include "planner/files/gc.c"
#include "planner/files/system.c"
#include "planner/files/costs.c"
