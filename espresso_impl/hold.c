/* hold.c: makes every op take the time that a model of the machine says, on a clock of absolute deadlines for each lane, while
 * the real bytes move in the real order: what `espresso replay --mode model` runs. */
#include "context.h"
