/* planner.c: the planner as one part of the library, and the order in which to read it. Included by espresso_impl.c. */
#include "plan.h"

#include "tree.c"
#include "pool.c"
#include "cost.c"
#include "recipe.c"
#include "menu.c"
#include "problem.c"
#include "simulate.c"
#include "draft.c"

#include "builtin_systems.c"
#include "builtin_costs.c"
