/* write_builtin.c: a program that writes the built-in systems to FOLDER/NAME.json, so that users can read and change
 * them. The folder must exist; make uses $(BUILD)/share/espresso/systems.
 *   write_builtin FOLDER */
#include "espresso.h"
#include "planner/builtin/builtin.h"
#include "planner/files/files.h"

static esp_status write_system(const char *folder, const esp__known_system *k) {
    char path[512];
    esp__system_file f = {0};
    f.system = k->system, f.accelerator = k->accelerator, f.source = k->source, f.cpu_workers = k->cpu_workers;
    snprintf(path, sizeof path, "%s/%s.json", folder, k->system.name);
    return esp__system_write(path, &f);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: write_builtin FOLDER\n");
        return 2;
    }
    for (uint32_t i = 0; esp__known_system_at(i); i++)
        if (write_system(argv[1], esp__known_system_at(i)) != ESP_OK) {
            fprintf(stderr, "write_builtin: %s\n", esp_last_error(NULL));
            return 1;
        }
    return 0;
}
