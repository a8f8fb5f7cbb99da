/* machine.c: reads facts about this machine and process, mostly from /proc. */
#include "espresso_impl/base/machine.h"
#include <time.h>

ESP__FN esp__machine_time esp__machine_time_now(void) {
    unsigned long long v[8] = {0}; /* /proc/stat: user nice system idle iowait irq softirq steal */
    const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    esp__machine_time t = {0, 0, 0, 0};
    struct timespec own;
    FILE *f = fopen("/proc/stat", "re");
    if (f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6],
                    &v[7]) == 8) {
        t.busy = tick * (double)(v[0] + v[1] + v[2] + v[5] + v[6]);
        t.stolen = tick * (double)v[7];
        t.all = t.busy + t.stolen + tick * (double)(v[3] + v[4]);
    }
    if (f) fclose(f);
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) == 0) t.own = (double)own.tv_sec + 1e-9 * (double)own.tv_nsec;
    return t;
}

ESP__FN double esp__machine_memory(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu", &kib) != 1) {
    }
    if (f) fclose(f);
    return (double)kib * 1024;
}

ESP__FN void esp__boot_id(char out[ESP__BOOT_ID]) {
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f || !fgets(out, ESP__BOOT_ID, f)) *out = 0;
    if (f) fclose(f);
    out[strcspn(out, "\n")] = 0;
}

ESP__FN void esp__cpu_name(char *out, size_t cap) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    *out = 0;
    while (f && !*out && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(out, cap, "%.*s", (int)strcspn(colon, "\n"), colon);
    }
    if (f) fclose(f);
}

ESP__FN void esp__program_name(char *out, size_t cap) {
    char text[4096];
    FILE *f = fopen("/proc/self/cmdline", "re");
    size_t n = f ? fread(text, 1, sizeof text - 2, f) : 0;
    if (f) fclose(f);
    text[n] = text[n + 1] = 0;
    const char *word = text, *base = strrchr(word, '/') ? strrchr(word, '/') + 1 : word;
    const char *next = word + strlen(word) + 1;
    if (!strncmp(base, "python", 6) && next < text + n && *next && *next != '-')
        base = strrchr(next, '/') ? strrchr(next, '/') + 1 : next;
    snprintf(out, cap, "%.*s", (int)cap - 1, *base ? base : "trainer");
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f) *p = '?';
}
