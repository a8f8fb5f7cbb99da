/* artifact.c: reads strategies of the artifact of the Espresso paper (github.com/zhuangwang93/Espresso,
 * byteps/torch/mergeComp/scheduler), which are JSON files with a number for how each tensor is synchronized. */
#include "tools/plan/plan.h"

/* The options by their numbers in the artifact. The codec is the file's, except for that of option 1, fp16. Options 2
 * to 5 send float16 within machines in the artifact, but float32 here, since a tensor has one codec. */
static const char *const artifact_options[] = {
    "flat.allreduce",
    "comp@gpu > flat.allreduce > decomp@gpu",
    "intra.reduce_scatter > comp@gpu > inter.gather > decomp@gpu > comp@gpu > inter.broadcast > decomp@gpu > "
    "intra.allgather",
    "intra.reduce_scatter > comp@gpu > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > decomp@gpu > "
    "intra.allgather",
    "intra.reduce_scatter > comp@gpu > inter.allgather > decomp@gpu > intra.allgather",
    "intra.reduce_scatter > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > inter.allgather > decomp@cpu > "
    "intra.allgather",
    "comp@gpu > intra.alltoall > decomp@gpu > comp@gpu > inter.gather > decomp@gpu > comp@gpu > inter.broadcast > "
    "intra.allgather > decomp@gpu",
    "comp@gpu > intra.alltoall > decomp@gpu > comp@gpu > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > "
    "intra.allgather > decomp@gpu",
    "comp@gpu > intra.gather > decomp@gpu > comp@gpu > inter.allgather > intra.broadcast > decomp@gpu",
    "comp@gpu > intra.alltoall > decomp@gpu > comp@gpu > inter.allgather > intra.allgather > decomp@gpu",
    "comp@gpu > flat.allgather > decomp@gpu",
};
enum { ARTIFACT_OPTIONS = sizeof artifact_options / sizeof *artifact_options };

/* Writes the strategy as a strategy file. Returns false after an error. */
static bool artifact_print(const tool_command *c, const char *path, const json_t *root, esp__text *out) {
    const json_t *names = json_object_get(root, "tensor names"), *sizes = json_object_get(root, "tensor sizes");
    const json_t *options = json_object_get(root, "options");
    const char *codec = json_string_value(json_object_get(root, "compressor"));
    const size_t n = json_array_size(options);
    const double sent =
        json_number_value(json_object_get(root, "comp_ratio")); /* counts indices, too: twice the ratio */
    char spec[ESP__SPEC_MAX];
    if (!codec || !n || json_array_size(names) != n || json_array_size(sizes) != n) {
        tool_fail(
            c,
            "%s: expected a strategy file, or one of the paper's artifact, with \"compressor\", \"tensor names\", "
            "\"tensor sizes\" and \"options\", which are lists of one length",
            path);
        return false;
    }
    const bool sparse = strcmp(codec, "randomk") == 0 || strcmp(codec, "dgc") == 0;
    snprintf(spec, sizeof spec, sparse && sent > 0 ? "%.200s:ratio=%g" : "%.200s", codec, sent / 2);
    esp__text_add(out, "espresso-strategy 1\n");
    for (size_t i = 0; i < n; i++) {
        const json_t *number = json_array_get(options, i);
        const json_int_t option = json_is_integer(number) ? json_integer_value(number) : -1;
        const char *name = json_string_value(json_array_get(names, i));
        if (option < 0 || option >= ARTIFACT_OPTIONS) {
            tool_fail(c, "%s: option %lld of tensor '%s' has no equal here: 0 to %d have%s", path, (long long)option,
                      name ? name : "?", ARTIFACT_OPTIONS - 1,
                      option == 13 || option == 14 ? ". It sends float16 (13) or float32 (14) to BytePS's servers"
                                                   : "");
            return false;
        }
        esp__text_add(out, "tensor %s %lld %s %s\n", name ? name : "?",
                      (long long)json_integer_value(json_array_get(sizes, i)),
                      option == 0   ? ESP__CODEC_NONE
                      : option == 1 ? "fp16"
                                    : spec,
                      artifact_options[option]);
    }
    return true;
}

/* Replaces the text of a JSON file by a strategy file's. Returns TOOL_OK, or the exit status after an error. */
ESP__FN int artifact_read(const tool_command *c, const char *path, esp__text *text) {
    json_error_t e;
    json_t *root = json_loadb(text->data, text->len, 0, &e);
    esp__text_free(text);
    if (!root) return tool_fail(c, "%s:%d: %s", path, e.line, e.text);
    const bool done = artifact_print(c, path, root, text);
    json_decref(root);
    if (!done) esp__text_free(text);
    return done ? TOOL_OK : TOOL_FAILED;
}
