/* write_builtin.c: a program that writes the built-in systems and codec costs as files, for users to read and to change:
 * FOLDER/systems/NAME.json and FOLDER/costs/CODEC-ACCELERATOR.json. Both folders must exist.
 *   write_builtin FOLDER        (run by make; FOLDER: $(BUILD)/share/espresso) */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "espresso.h"
#include "espresso_impl/executor/executor.h"
#include "planner/builtin/builtin.h"
#include "planner/files/files.h"

#include <ctype.h>

enum { PATH_ROOM = 512 };

static esp_status write_system(const char *folder, const esp__known_system *k) {
    char path[PATH_ROOM];
    esp__system_file f = {0};
    f.system = k->system, f.accelerator = k->accelerator, f.source = k->source, f.cpu_workers = k->cpu_workers;
    snprintf(path, sizeof path, "%s/systems/%s.json", folder, k->system.name);
    return esp__system_write(path, &f);
}

/* All systems with the same accelerator share one file, with the CPU times of the first such system. */
static int is_first_with_accelerator(uint32_t system) {
    const char *wanted = esp__known_system_at(system)->accelerator;
    for (uint32_t i = 0; i < system; i++) {
        const char *other = esp__known_system_at(i)->accelerator;
        if (wanted && other ? !strcmp(wanted, other) : wanted == other) return 0;
    }
    return 1;
}

static esp_status write_costs(esp_ctx *ctx, const char *folder, const char *codec, const esp__known_system *k) {
    char path[PATH_ROOM], spec[ESP__SPEC_MAX];
    char name[64]; /* CODEC-ACCELERATOR in lower case */
    esp__costs c;
    esp__gc_file f = {0};
    snprintf(spec, sizeof spec, "%s:ratio=0.01", codec);
    if (esp__builtin_costs_for(ctx, spec, k->accelerator, k->cpu_workers, &c)) snprintf(spec, sizeof spec, "%s", codec);
    const esp_status s = esp__builtin_costs(ctx, spec, &k->system, k->accelerator, &c);
    if (s) return s;
    f.codec = c.codec, f.spec = c.codec.spec, f.source = c.source;
    snprintf(name, sizeof name, "%s-%s", codec, k->accelerator ? k->accelerator : "cpu");
    for (char *p = name; *p; p++) *p = (char)tolower((unsigned char)*p);
    snprintf(path, sizeof path, "%s/costs/%s.json", folder, name);
    return esp__gc_write(path, &f);
}

int main(int argc, char **argv) {
    esp_ctx *ctx = NULL;
    if (argc != 2) {
        fprintf(stderr, "usage: write_builtin FOLDER\n");
        return 2;
    }
    esp_status s = esp__open_alone(&ctx);
    for (uint32_t i = 0; !s && esp__known_system_at(i); i++) {
        s = write_system(argv[1], esp__known_system_at(i));
        if (!is_first_with_accelerator(i)) continue;
        for (uint32_t k = 0; !s && esp__builtin_codec_at(ctx, k); k++)
            s = write_costs(ctx, argv[1], esp__builtin_codec_at(ctx, k), esp__known_system_at(i));
    }
    if (s) fprintf(stderr, "write_builtin: %s\n", esp_last_error(ctx));
    esp_close(ctx);
    return s ? 1 : 0;
}
