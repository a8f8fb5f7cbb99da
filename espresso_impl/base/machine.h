/* machine.h: facts about this machine and process, mostly from /proc. */
#ifndef ESP__MACHINE_H
#define ESP__MACHINE_H
#include "espresso_impl/base/private.h"
#include <sys/syscall.h>
#include <unistd.h>

/* Processor time that has been used so far, in seconds. */
typedef struct esp__machine_time {
    double all, busy, stolen; /* of all processors together; 0 if unknown */
    double own;               /* of this process alone */
} esp__machine_time;
ESP__FN esp__machine_time esp__machine_time_now(void);
/* Returns the bytes of memory that are available without swapping, or 0 if unknown. */
ESP__FN double esp__machine_memory(void);
/* Writes a text that changes when the machine boots and differs between machines, or "" if unknown. */
enum { ESP__BOOT_ID = 40 };
ESP__FN void esp__boot_id(char out[ESP__BOOT_ID]);
ESP__FN void esp__cpu_name(char *out, size_t cap);
/* Writes the program's file name without folders; for Python, the script's name. */
ESP__FN void esp__program_name(char *out, size_t cap);

/* ---- the cores that this process may use (inline, as backends that are plugins need them too) ---- */
static inline long esp__cores_mask(unsigned long mask[128]) {
    const long bytes = syscall(SYS_sched_getaffinity, 0, 128 * sizeof *mask, mask);
    return bytes > 0 ? bytes : 0;
}

static inline uint32_t esp__cores_bound(void) {
    unsigned long mask[128];
    const long bytes = esp__cores_mask(mask);
    uint32_t n = 0;
    for (long i = 0; i < bytes / (long)sizeof *mask; i++) n += (uint32_t)__builtin_popcountl(mask[i]);
    return n;
}

/* Reads up to two whole numbers of a file. Returns how many it found, or 0 or less if there is none. */
static inline int esp__cores_numbers(const char *folder, const char *name, long long out[2]) {
    char path[1200];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) return 0;
    FILE *f = fopen(path, "re");
    int n = f ? fscanf(f, "%lld %lld", &out[0], &out[1]) : 0;
    if (f) fclose(f);
    return n;
}

/* Returns a control group's limit of cores, rounded up, or 0 if it has none. */
static inline uint32_t esp__cores_group(const char *folder) {
    long long x[2], period[2];
    int n = esp__cores_numbers(folder, "cpu.max", x);
    if (n != 2) {
        if (esp__cores_numbers(folder, "cpu.cfs_quota_us", x) != 1) return 0;
        if (esp__cores_numbers(folder, "cpu.cfs_period_us", period) != 1) return 0;
        x[1] = period[0];
    }
    return x[0] > 0 && x[1] > 0 && x[0] / x[1] < 1 << 20 ? (uint32_t)((x[0] + x[1] - 1) / x[1]) : 0;
}

/* Returns the lowest limit of group `path` below `mount` and of the groups that contain it, or 0 if none has one. */
static inline uint32_t esp__cores_groups(const char *mount, const char *path) {
    char folder[1100];
    uint32_t least = 0;
    size_t top = strlen(mount);
    if ((size_t)snprintf(folder, sizeof folder, "%s%s", mount, strstr(path, "..") ? "" : path) >= sizeof folder)
        return 0;
    for (;;) {
        uint32_t n = esp__cores_group(folder);
        if (n && (!least || n < least)) least = n;
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= top || !slash) return least;
        *(slash < folder + top ? folder + top : slash) = 0;
    }
}

/* Returns the lowest limit of this process' control groups, or 0 if none has one. /proc/self/cgroup lists them as
 * "0::/path" (version 2) or "4:cpu,cpuacct:/path" (version 1). Tests pass their own folder as `root`. */
static inline uint32_t esp__cores_given(const char *root) {
    char line[1024], mount[1100];
    uint32_t least = 0;
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *f = fopen(line, "re");
    while (f && fgets(line, sizeof line, f)) {
        char *kind = strchr(line, ':'), *path = kind ? strchr(kind + 1, ':') : NULL;
        if (!path) continue;
        line[strcspn(line, "\n")] = 0;
        *path = 0;
        if (kind[1] && !strstr(kind + 1, "cpu")) continue; /* a group that limits something else than cores */
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, kind[1] ? "/" : "", kind + 1);
        uint32_t n = esp__cores_groups(mount, path + 1);
        if (n && (!least || n < least)) least = n;
    }
    if (f) fclose(f);
    return least;
}

static inline uint32_t esp__cores(void) {
    uint32_t n = esp__cores_bound(), given = esp__cores_given("");
    if (!n) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        n = online > 0 ? (uint32_t)online : 1;
    }
    return given && given < n ? given : n;
}
#endif
