/* machine.h: facts of the machine and of this process. Must not know what they are for. */
#ifndef ESP__MACHINE_H
#define ESP__MACHINE_H
#include "espresso_impl/base/private.h"
#include "espresso_impl/base/cores.h"

/* Seconds that processors spent so far: all of the machine's, together; this process's. All of the machine's are 0 where they
 * are not known. */
typedef struct esp__machine_time {
    double all, busy, stolen; /* stolen: given to others by the machine below a virtual one */
    double own;
} esp__machine_time;
ESP__FN esp__machine_time esp__machine_time_now(void);
/* Bytes that can be had without swapping; 0: not known. */
ESP__FN double esp__machine_memory(void);
/* Differs from machine to machine, and from boot to boot; "" where not known. */
enum { ESP__BOOT_ID = 40 };
ESP__FN void esp__boot_id(char out[ESP__BOOT_ID]);
/* The processor's name, or "". */
ESP__FN void esp__cpu_name(char *out, size_t cap);
/* The running program's name, without the folders; a Python script's rather than Python's. */
ESP__FN void esp__program_name(char *out, size_t cap);
#endif
