/* advise.c: `espresso advise` tells from traces of an unmodified training job whether compression would help it. */
#include "tools/advise/advise.h"

enum { ADVISE_GC, ADVISE_SYSTEM, ADVISE_MACHINES, ADVISE_OPTIMIZER, ADVISE_GPU, ADVISE_OUT, ADVISE_TIMELINE };
static const tool_flag advise_flags[] = {
    {"--gc", "FILE|SPEC", "a codec to consider, as for espresso plan; repeated (default: six of them)"},
    {"--system", "FILE|NAME", "machines and links, as for espresso plan (default: from the trace's all-reduces)"},
    {"--machines", "N", "the job runs on that many machines, which the trace of one rank does not say"},
    {"--optimizer", "NAME", "as in ESPRESSO_OPTIMIZER, such as momentum:0.5 (default: the trace's)"},
    {"--gpu", "NAME", "the GPU, such as H100 (default: the trace's)"},
    {"--out", "FOLDER", "write model.json and system.json there, for espresso plan"},
    {"--timeline", "FILE", "write a page that shows the step without and with the best plan, lane by lane"},
};

static void advise_flag(advise_job *j, int flag, const char *value) {
    switch (flag) {
    case ADVISE_GC: plan_flag(&j->in, PLAN_GC, value); break;
    case ADVISE_SYSTEM: plan_flag(&j->in, PLAN_SYSTEM, value); break;
    case ADVISE_MACHINES: plan_flag(&j->in, PLAN_MACHINES, value); break;
    case ADVISE_OPTIMIZER: j->optimizer = value; break;
    case ADVISE_GPU: j->gpu = value; break;
    case ADVISE_OUT: j->out = value; break;
    default: j->timeline = value;
    }
}

static int advise_main(const tool_command *self, int argc, char **argv) {
    advise_job j = {.system_note = ""};
    const char *value;
    int at = 0, flag;
    plan_open(&j.in, self, argc);
    j.in.quiet = true;
    j.paths = tool_realloc(NULL, ((size_t)argc + 1) * sizeof *j.paths);
    do {
        while ((flag = tool_next(self, argc, argv, &at, &value)) >= 0) advise_flag(&j, flag, value);
        if (at < argc) j.paths[j.n_traces++] = argv[at++];
    } while (at < argc);
    if (!j.n_traces) tool_usage(self, "expected a trace, or the traces of several ranks");
    j.traces = tool_zeroed(j.n_traces * sizeof *j.traces);
    int status = advise_inputs(&j);
    if (status == TOOL_OK) status = advise_answer(&j);
    for (uint32_t i = 0; i < j.n_traces; i++) advise_free(&j.traces[i]);
    free(j.apart);
    free(j.traces);
    free((void *)j.paths);
    plan_close(&j.in);
    return status;
}

const tool_command advise_command = {
    .name = "advise",
    .summary = "Tells from a profile of PyTorch or NCCL whether compression would make an existing job faster.",
    .synopsis = "[flags] TRACE ...",
    TOOL_FLAGS(advise_flags),
    .run = advise_main,
    .details = "TRACE is what torch.profiler's export_chrome_trace writes for a rank of a DDP job, recorded with\n"
               "profile(record_shapes=True) over a few steps. The traces of all ranks tell more than that of one.\n"
               "What NVIDIA's NCCL Inspector (with NCCL_INSPECTOR_DUMP_VERBOSE=1) or libnccl-profiler-espresso.so (it\n"
               "needs --system) writes tells less: a range.\n"
               "\n"
               "examples:\n"
               "  espresso advise rank0.json\n"
               "  espresso advise --machines 2 --out job rank*.json\n"
               "  espresso advise --gpu H100 nccl-inspector/*.log\n"
               "  espresso advise --gc int4 --optimizer momentum:0.5 --timeline step.html rank0.json",
};
