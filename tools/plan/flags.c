/* flags.c: the flags that `espresso plan` and `espresso compare` share. */
#include "tools/plan/plan.h"
#include <limits.h>

const tool_flag plan_common[PLAN_COMMON] = {
    [PLAN_COSTS] = {"--costs", "FILE", "a file of espresso profile: it gives what --model, --gc and --system do not"},
    [PLAN_MODEL] = {"--model", "FILE|NAME",
                    "tensors and their times: a JSON file, or one that comes along, such as vgg16"},
    [PLAN_GC] = {"--gc", "FILE|SPEC",
                 "a codec and its costs: a JSON file, or a spec such as dgc:ratio=0.01; repeated: the plan chooses"},
    [PLAN_SYSTEM] = {"--system", "FILE|NAME", "machines and links: a JSON file, or a name such as paper-nvlink"},
    [PLAN_MACHINES] = {"--machines", "N",
                       "that many machines, instead of the system file's number; espresso plan: 1,2,8 compares them"},
    [PLAN_DEVICES] = {"--devices", "cpu,gpu", "devices that may compress (default: the system's)"},
    [PLAN_FORBID] = {"--forbid", "PATTERN",
                     "no option with PATTERN in it, such as 'comp@cpu' (* is anything); repeated: none of them"},
    [PLAN_ONLY] = {"--only", "PATTERN", "only options with PATTERN in them; repeated: with at least one of them"},
    [PLAN_KEEP] = {"--keep", "GLOB=WHAT",
                   "tensors named like GLOB get fp32, this codec, or this option; the first that fits counts"},
    [PLAN_SHARD] =
        {"--shard", "GLOB[=CUTS]",
         "tensors named like GLOB are sharded, and cut any way, or by CUTS: flat, or levels such as intra,inter"},
    [PLAN_MIN_COMPRESS] = {"--min-compress-elements", "N",
                           "tensors of fewer elements stay uncompressed (default 4097); 0: size does not matter"},
    [PLAN_MAX_COMP] = {"--max-comp", "N", "options compress at most N times"},
    [PLAN_MAX_MEMORY] = {"--max-memory", "SIZE",
                         "residuals and payload buffers of a rank take at most that, such as 2GB"},
    [PLAN_MAX_VOLUME] = {"--max-volume", "PART",
                         "payloads have at most that part of the gradients' bytes, such as 0.1 or 10%"},
    [PLAN_MAX_ERROR] = {"--max-error", "PART", "mean error of the codecs over all elements"},
    [PLAN_NO_MERGE] = {"--no-merge", NULL, "do not put tensors into groups"},
    [PLAN_NO_SPLIT] = {"--no-split", NULL, "do not cut tensors into chunks"},
    [PLAN_THOROUGH] = {"--thorough", NULL, "search sixteen times as long as usual; the same on every machine"},
    [PLAN_BUDGET] = {"--budget", "TIME", "search that long, such as 50ms, over and over (default: a fixed effort)"},
    [PLAN_JSON] = {"--json", NULL, "print one JSON object instead; times are in microseconds"},
};

ESP__FN void plan_open(plan_inputs *in, const tool_command *c, int argc) {
    const size_t bytes = ((size_t)argc + 1) * sizeof(char *);
    memset(in, 0, sizeof *in);
    in->command = c;
    in->forbid = tool_realloc(NULL, bytes);
    in->only = tool_realloc(NULL, bytes);
    in->keep = tool_realloc(NULL, bytes);
    in->shard = tool_realloc(NULL, bytes);
    in->config.struct_size = sizeof in->config;
    in->config.forbid = in->forbid;
    in->config.only = in->only;
    in->config.keep = in->keep;
    in->config.min_compress_elements = ESP_MIN_COMPRESS_ELEMENTS;
}

static void plan_devices(plan_inputs *in, const char *value) {
    static const char *const names[] = {[ESP_ON_CPU] = "cpu", [ESP_ON_GPU] = "gpu", NULL};
    const char *at = value;
    do {
        const int device = tool_listed(&at, names);
        if (device < 0) tool_usage(in->command, "--devices %s: expected cpu, gpu or cpu,gpu", value);
        in->config.devices |= 1u << device;
    } while (*at);
}

static void plan_limit(plan_inputs *in, int flag, const char *value) {
    double v;
    const tool_unit *units = flag == PLAN_MAX_MEMORY ? tool_sizes : flag == PLAN_BUDGET ? tool_times : tool_parts;
    if (!tool_quantity(value, units, &v) || (flag == PLAN_MAX_MEMORY && (v < 1 || v > 1e18)))
        tool_usage(in->command, "%s %s: expected %s above 0", plan_common[flag].name, value,
                   flag == PLAN_MAX_MEMORY ? "a size such as 2GB or 512MiB"
                   : flag == PLAN_BUDGET   ? "a time such as 5ms"
                                           : "a number such as 0.1 or 10%,");
    if (flag == PLAN_MAX_MEMORY) in->config.max_memory_bytes = (uint64_t)v;
    if (flag == PLAN_BUDGET) in->config.budget_ns = v;
    if (flag == PLAN_MAX_VOLUME) in->config.max_volume = v;
    if (flag == PLAN_MAX_ERROR) in->config.max_error = v;
}

ESP__FN void plan_flag(plan_inputs *in, int flag, const char *value) {
    const tool_command *const c = in->command;
    switch (flag) {
    case PLAN_COSTS: in->costs_name = value; break;
    case PLAN_MODEL: in->model_name = value; break;
    case PLAN_SYSTEM: in->system_name = value; break;
    case PLAN_GC:
        if (in->n_codecs == PLAN_CODECS_MAX) tool_usage(c, "--gc %s: at most %d codecs", value, (int)PLAN_CODECS_MAX);
        in->gc[in->n_codecs++] = value;
        break;
    case PLAN_DEVICES: plan_devices(in, value); break;
    case PLAN_FORBID: in->forbid[in->config.n_forbid++] = value; break;
    case PLAN_ONLY: in->only[in->config.n_only++] = value; break;
    case PLAN_KEEP:
        if (!strchr(value, '=')) tool_usage(c, "--keep %s: expected GLOB=fp32, GLOB=CODEC or GLOB=OPTION", value);
        in->keep[in->config.n_keep++] = value;
        break;
    case PLAN_SHARD: in->shard[in->n_shard++] = value; break;
    case PLAN_NO_MERGE: in->config.flags |= ESP_PLAN_NO_MERGE; break;
    case PLAN_NO_SPLIT: in->config.flags |= ESP_PLAN_NO_SPLIT; break;
    case PLAN_THOROUGH: in->config.flags |= ESP_PLAN_THOROUGH; break;
    case PLAN_MACHINES: in->machines = tool_whole(c, "--machines", value, 1, 1 << 20); break;
    case PLAN_MIN_COMPRESS:
        in->config.min_compress_elements = (uint64_t)tool_whole(c, "--min-compress-elements", value, 0, LONG_MAX);
        break;
    case PLAN_MAX_COMP:
        in->config.max_comp = (uint32_t)tool_whole(c, "--max-comp", value, 0, 1000);
        if (!in->config.max_comp) in->config.flags |= ESP_PLAN_NO_COMP;
        break;
    default: plan_limit(in, flag, value);
    }
}

ESP__FN void plan_complete(const plan_inputs *in) {
    if (in->costs_name) return; /* the costs file has all inputs: plan_read_costs() checks it */
    if (!in->model_name) tool_usage(in->command, "--model is missing: a JSON file, or a name such as vgg16");
    if (!in->n_codecs)
        tool_usage(in->command, "--gc is missing: a codec's JSON file, or a spec such as dgc:ratio=0.01");
    if (!in->system_name) tool_usage(in->command, "--system is missing: a JSON file, or a name such as paper-nvlink");
}
