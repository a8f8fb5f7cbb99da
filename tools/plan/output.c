/* output.c: writes a plan's files: the strategy, the page with the timeline, and the trace. */
#include "tools/plan/plan.h"
#include <errno.h>

ESP__FN int plan_to_stdout(const plan_files *f) {
    const char *const path[] = {f->strategy, f->timeline, f->trace};
    int n = 0;
    for (int i = 0; i < 3; i++) n += path[i] && strcmp(path[i], "-") == 0;
    return n;
}

ESP__FN char *plan_command_line(const tool_command *c, int argc, char **argv) {
    esp__text t = {NULL, 0, 0, 0, NULL};
    esp__text_add(&t, "espresso %s", c->name);
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        const int plain = word[0] && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                        "0123456789-_=.,:/+@%")];
        esp__text_add(&t, plain ? " %s" : " ", word);
        if (!plain) tool_quote(&t, word);
    }
    return t.data;
}

ESP__FN page_plan plan_as_page(const plan_inputs *in, const plan_made *m) {
    return (page_plan){m->name, &in->model, m->units, m->events, m->n_units, m->n_events, m->report, 0};
}

ESP__FN page_info plan_page_info(const plan_inputs *in, const char *command, char noisy[PLAN_NOISY]) {
    return (page_info){.warning = plan_noisy(in, noisy, PLAN_NOISY) ? noisy : NULL,
                       .model = in->model.name,
                       .codec = in->codec_text,
                       .system = in->system.name,
                       .command = command,
                       .racks = in->system.n_outer ? in->system.outer[0].size : 0,
                       .machines = in->system.machines,
                       .cores_per_rank = in->system.cores_per_rank,
                       .ranks_per_machine = in->system.ranks_per_machine};
}

ESP__FN int plan_write_page(const plan_inputs *in, const char *path, int (*print)(FILE *to, const void *what),
                            const void *what) {
    char *text = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);
    int failed = !to || print(to, what) != 0;
    if (to && fclose(to) != 0) failed = 1;
    int status = failed ? tool_fail(in->command, "%s: %s", path, strerror(errno ? errno : ENOMEM)) : TOOL_OK;
    if (!failed && esp__output_write(path, text, len) != ESP_OK)
        status = tool_fail(in->command, "%s", esp_last_error(NULL));
    free(text);
    return status;
}

typedef struct plan_pages {
    page_plan plans[2]; /* without compression (fp32), and the plan */
    page_info info;
} plan_pages;
static int plan_print_timeline(FILE *to, const void *what) {
    const plan_pages *p = what;
    return page_timeline(to, &p->plans[0], &p->plans[1], &p->info);
}
static int plan_print_trace(FILE *to, const void *what) {
    const plan_pages *p = what;
    return page_trace(to, p->plans, 2, &p->info);
}

static int plan_write_pages(const plan_inputs *in, const plan_made *m, const plan_files *f) {
    plan_made fp32;
    plan_inputs plain = *in;
    plain.config = (esp_plan_config){.struct_size = sizeof plain.config};
    if (plan_make(&plain, "fp32", ESP_PLAN_NO_BOUND, &fp32) != ESP_OK)
        return tool_fail(in->command, "%s", esp_last_error(NULL));
    char noisy[PLAN_NOISY];
    const plan_pages pages = {{plan_as_page(in, &fp32), plan_as_page(in, m)}, plan_page_info(in, f->command, noisy)};
    int status = TOOL_OK;
    if (f->timeline) status = plan_write_page(in, f->timeline, plan_print_timeline, &pages);
    if (f->trace && status == TOOL_OK) status = plan_write_page(in, f->trace, plan_print_trace, &pages);
    plan_free(&fp32);
    return status;
}

static int plan_write_strategy(const plan_inputs *in, const plan_made *m, const char *path) {
    const char *text = esp_plan_text(m->plan);
    if (esp__output_write(path, text, strlen(text)) == ESP_OK) return TOOL_OK;
    return tool_fail(in->command, "%s", esp_last_error(NULL));
}

ESP__FN int plan_write(const plan_inputs *in, const plan_made *m, const plan_files *f) {
    int status = TOOL_OK;
    if (f->strategy) status = plan_write_strategy(in, m, f->strategy);
    if (status == TOOL_OK && (f->timeline || f->trace)) status = plan_write_pages(in, m, f);
    return status;
}
