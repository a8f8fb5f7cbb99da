#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
