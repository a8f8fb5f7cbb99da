/* machine.h: facts of the machine and of this process. Must not know what they are for. */
#ifndef ESP__MACHINE_H
#define ESP__MACHINE_H
#include "espresso_impl/base/private.h"
#include "espresso_impl/base/cores.h"

/* Seconds of processor time so far: of all processors of the machine together (0: not known), and of this process. */
typedef struct esp__machine_time {
    double all, busy, stolen; /* the machine's; stolen: time that a virtual machine's host gave to others */
    double own;               /* this process' */
} esp__machine_time;
ESP__FN esp__machine_time esp__machine_time_now(void);
/* Bytes of memory that are available without swapping; 0: not known. */
ESP__FN double esp__machine_memory(void);
/* A text that differs between machines, and between boots of one machine; "": not known. */
enum { ESP__BOOT_ID = 40 };
ESP__FN void esp__boot_id(char out[ESP__BOOT_ID]);
/* The processor's name, or "". */
ESP__FN void esp__cpu_name(char *out, size_t cap);
/* The running program's name without folders; of a Python program the script's name. */
ESP__FN void esp__program_name(char *out, size_t cap);
#endif
