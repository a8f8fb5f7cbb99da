/* api.h: the planner as users see it: model, codec costs and system as structs in, a strategy's text and a report out.
 * Part of espresso.h (section 9), inside its extern "C". Needs no context, no ranks and no files. */

/* ---- 9. Planner ------------------------------------------------------------------------------------------------ */
/** One measured time: nanoseconds for `size` (elements for codecs, bytes for collectives). */
typedef struct esp_cost_point {
    double size, ns;
} esp_cost_point;
/** Time over size: straight lines between points; below the first point its time, beyond the last in proportion to size.
 *  The points are the caller's and are read only during a call. */
typedef struct esp_cost_curve {
    const esp_cost_point *points; /* ascending, sizes > 0, times >= 0                                   */
    uint32_t n;                   /* 0: not known                                                       */
    uint32_t log_size;            /* 1: lines are straight over log(size), 0: over size                 */
} esp_cost_curve;

/** One tensor of a model, f32. */
typedef struct esp_plan_tensor {
    const char *name; /* no blanks; unique                                                             */
    uint64_t elements;
    double compute_ns; /* backward time between the tensor before and this one being ready               */
    const char *keep;  /* NULL; or "fp32", or the only codec spec, or the only option (text) it may have */
} esp_plan_tensor;
/** Tensors in backward order. Growable; struct_size 0 means "this header's size". */
typedef struct esp_plan_model {
    uint32_t struct_size, n_tensors;
    const char *name;
    const esp_plan_tensor *tensors;
    double forward_ns, update_ns;
} esp_plan_model;

enum { ESP_PLAN_CPU = 0, ESP_PLAN_GPU = 1 };
/** What one codec costs. Growable. A payload of e elements has header_bytes + unit_bytes * ceil(units * e) bytes. */
typedef struct esp_plan_codec {
    uint32_t struct_size;
    uint32_t caps;    /* ESP_CODEC_REDUCIBLE: payloads can be summed undecoded                          */
    const char *spec; /* as in a strategy file: "dgc:ratio=0.01"                                        */
    double header_bytes, unit_bytes, units;
    /* time over elements, by ESP_PLAN_CPU, ESP_PLAN_GPU; no points: this codec cannot run there. Decompressing m
     * payloads of e elements is one call on m * e elements. */
    esp_cost_curve compress[2], decompress[2];
    double error;        /* |decoded - input|^2 / |input|^2 of one call, 0 to 1; for max_error             */
    uint32_t takes_list; /* 1: compresses a list of pieces, so that a group of tensors is not packed first */
    uint32_t reserved0;
} esp_plan_codec;

enum { ESP_ALPHA_COLLECTIVE = 0, ESP_ALPHA_HOP = 1 };
enum { ESP_PLAN_COLLS = 8 }; /* room for every ESP_COLL_* */
/** Links of one level. A table, where there is one, replaces the formula of that collective; its sizes are bytes of the
 *  whole buffer (allreduce, reduce_scatter, alltoall: what a rank sends; allgather, gather: what is there at the end). */
typedef struct esp_plan_link {
    double alpha_ns;     /* latency of one collective, or of one hop of its algorithm                    */
    double bytes_per_us; /* intra: a rank's; inter: a machine's NIC, shared by its ranks                 */
    uint32_t alpha_is;   /* ESP_ALPHA_*                                                                */
    uint32_t reserved0;
    esp_cost_curve table[ESP_PLAN_COLLS]; /* by ESP_COLL_*                                               */
} esp_plan_link;
/** The machines. Growable. */
typedef struct esp_plan_system {
    uint32_t struct_size;
    uint32_t machines, ranks_per_machine;
    uint32_t devices; /* that can compress: bit ESP_PLAN_CPU, bit ESP_PLAN_GPU                         */
    const char *name;
    esp_plan_link intra, inter;
    esp_plan_link flat;                /* only its tables count, for collectives over all ranks                     */
    double host_bytes_per_us;          /* device to host, a rank's; charged to intra. 0: tensors are in host memory  */
    double pack_ns, pack_bytes_per_us; /* packing a group into one buffer: launch, and speed; 0: free            */
    uint32_t shared_cores;             /* 1: compression on the CPU takes the cores that compute (training on CPUs)  */
    uint32_t reserved0;
    double dispatch_ns[4]; /* starting an op on compute, cpu, intra, inter: added to each; of two lanes the longer    */
} esp_plan_system;

enum {
    ESP_PLAN_NO_MERGE = 1u << 0, /* tensors are not put into groups                                        */
    ESP_PLAN_NO_SPLIT = 1u << 1, /* tensors are not cut into chunks                                        */
    ESP_PLAN_ROBUST = 1u << 2,   /* prefer a plan that holds when every input is off by +-20%             */
    ESP_PLAN_NO_COMP = 1u << 3,  /* no compression at all                                                 */
    ESP_PLAN_THOROUGH = 1u << 5, /* look sixteen times as long                                               */
    ESP_PLAN_NO_BOUND = 1u << 4  /* leave bounds and free_compression_ns out (0)                           */
};
/** What to look for. Zero is the default everywhere. Growable. */
typedef struct esp_plan_config {
    uint32_t struct_size, flags; /* ESP_PLAN_*                                                          */
    const char *strategy; /* NULL: "espresso+"; or "espresso" (Algorithms 1 and 2), "fp32", "ddp", "hipress", ... */
    uint32_t devices;     /* that may compress; 0: the system's                                 */
    uint32_t max_comp;    /* Comps an option may have; 0: any number                            */
    const char *const *forbid, *const *only; /* patterns over an option's text: none of, at least one of these   */
    const char *const *keep; /* "GLOB=fp32", "GLOB=CODEC" or "GLOB=OPTION", by tensor name; the first that fits */
    uint32_t n_forbid, n_only, n_keep;
    uint32_t reserved0;
    double budget_ns; /* 0: a fixed effort, the same everywhere                                 */
    uint64_t seed;
    uint64_t max_memory_bytes; /* residuals and payload buffers, a rank; 0: no limit                  */
    double max_volume;         /* payload bytes / fp32 bytes, over all tensors; 0: no limit           */
    double max_error;          /* mean codec error over all elements; 0: no limit                     */
} esp_plan_config;

/** What a plan promises. All times are of one step. Growable: set struct_size. */
typedef struct esp_plan_report {
    uint32_t struct_size;
    uint32_t n_tensors, n_units; /* a unit is what is synchronised as one: a tensor, a chunk, a group      */
    uint32_t compressed;         /* tensors                                                            */
    double fp32_ns;              /* without compression, tensor by tensor                              */
    double iteration_ns;         /* forward + backward and synchronisation + update                    */
    double bound_ns;             /* no strategy for the tensors as given is faster                     */
    double bound_any_ns;         /* nor with any merging or splitting                                  */
    double free_compression_ns;  /* best plan found where compressing takes no time (the paper's Upper Bound) */
    double plan_ns;              /* time taken to plan                                                 */
    uint64_t memory_bytes;       /* residuals and payload buffers, of the rank that holds most          */
    double lane_ns[4];           /* busy: compute, cpu, intra, inter                                   */
    double price[4];             /* share of the bound that each lane carries; they sum to at most 1    */
    double exposed_communication_ns,
        exposed_compression_ns;          /* time with no backward running: a link busy; else compression only */
    double bubble_ns[4];                 /* idle between a lane's first and last op                             */
    uint64_t intra_bytes, inter_bytes;   /* moved by a rank, by a machine's NIC                             */
    double robust_p50_ns, robust_p90_ns; /* under +-20% error of every input; with ESP_PLAN_ROBUST             */
} esp_plan_report;

enum { ESP_PLAN_BACKWARD = 0, ESP_PLAN_COLLECTIVE, ESP_PLAN_COMP, ESP_PLAN_DECOMP, ESP_PLAN_COPY, ESP_PLAN_PACK };
/** One op of the predicted timeline. Time 0 is the start of backward. */
typedef struct esp_plan_event {
    uint32_t unit;  /* backward: the tensor                                                            */
    uint16_t step;  /* of the unit's option                                                            */
    uint8_t kind;   /* ESP_PLAN_*                                                                      */
    uint8_t lanes;  /* bits: 1 compute, 2 cpu, 4 intra, 8 inter                                        */
    uint64_t bytes; /* moved by a rank, or read by a codec                                             */
    uint64_t start_ns, end_ns;
} esp_plan_event;
/** What a unit is. */
typedef struct esp_plan_unit {
    uint32_t first, n_tensors;  /* tensors: one, or several neighbours                                  */
    uint64_t begin, elements;   /* of one tensor: the chunk's range                                    */
    const char *codec, *option; /* text; the plan's own                                                */
} esp_plan_unit;

typedef struct esp_plan esp_plan;
/** Finds a strategy. Any thread; deterministic for a given seed unless a budget ends it. Errors: ESP_E_ARG (what is wrong in
 *  which input), ESP_E_NOMEM; esp_last_error(NULL) has the text. (Espresso, sections 4.3 and 4.4, and beyond.) */
ESPRESSO_API esp_status esp_plan_make(const esp_plan_model *model, const esp_plan_codec *codecs, uint32_t n_codecs,
                                      const esp_plan_system *system, const esp_plan_config *config, esp_plan **out);
/** Predicts what a strategy (the text of a strategy file) takes; `config` may be NULL. */
ESPRESSO_API esp_status esp_plan_simulate(const esp_plan_model *model, const esp_plan_codec *codecs, uint32_t n_codecs,
                                          const esp_plan_system *system, const esp_plan_config *config,
                                          const char *strategy, esp_plan **out);
/** The strategy, as the text of a strategy file: for esp_config.strategy and esp_strategy_set. Owned by the plan. */
ESPRESSO_API const char *esp_plan_text(const esp_plan *plan);
ESPRESSO_API esp_status esp_plan_report_read(const esp_plan *plan, esp_plan_report *out);
/** The timeline in order of start, and the units. Owned by the plan. */
ESPRESSO_API const esp_plan_event *esp_plan_events(const esp_plan *plan, uint32_t *n);
ESPRESSO_API const esp_plan_unit *esp_plan_units(const esp_plan *plan, uint32_t *n);
ESPRESSO_API void esp_plan_free(esp_plan *plan);
