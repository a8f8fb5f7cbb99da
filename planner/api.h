/* api.h: the planner's public API. The caller gives the model, the codecs' costs and the system as structs; the planner
 * returns a strategy's text and a report. Part of espresso.h (section 9), inside its extern "C". Needs no context, no ranks
 * and no files. ESP_NO_PLANNER leaves it out. */
#ifndef ESP_NO_PLANNER
/* ---- 9. Planner ------------------------------------------------------------------------------------------------ */
/** One measured time: nanoseconds for `size` (elements for codecs, bytes for collectives). */
typedef struct esp_cost_point {
    double size, ns;
} esp_cost_point;
/** Time as a function of size: straight lines between the points. Below the first point the time is that point's; beyond
 *  the last point it grows in proportion to size. The caller owns the points; the planner reads them only during a call. */
typedef struct esp_cost_curve {
    const esp_cost_point *points; /* ascending by size; sizes > 0, times >= 0 */
    uint32_t n;                   /* 0: the curve is not known */
    uint32_t log_size;            /* 1: the lines are straight over log(size); 0: over size */
} esp_cost_curve;

/** One tensor of a model; its elements are f32. */
typedef struct esp_plan_tensor {
    const char *name; /* no blanks; unique */
    uint64_t elements;
    double compute_ns; /* backward time from the moment the previous tensor is ready until this one is */
    const char *keep; /* NULL: no constraint; else "fp32", or the only codec (spec) or option (text) that it may have */
    /** NULL: every rank gets the result. Else the tensor is sharded (ESP_SHARD), and this says how its parts are cut: "flat",
     *  "intra,inter", or "any". Such a tensor is neither merged nor split. What esp_gather takes is not in the plan. */
    const char *shard;
    uint64_t rows, cols; /* row-major: rows * cols is elements; 0: not a matrix */
} esp_plan_tensor;
/** Tensors in backward order. Growable: set struct_size; 0 means the size in this header. */
typedef struct esp_plan_model {
    uint32_t struct_size, n_tensors;
    const char *name;
    const esp_plan_tensor *tensors;
    double forward_ns, update_ns;
} esp_plan_model;

/** What one codec costs. Growable. The payload of e elements takes header_bytes + unit_bytes * ceil(units * e) bytes: `units`
 *  counts payload items per element (0.01: one item for 100 elements), and each item takes unit_bytes. */
typedef struct esp_plan_codec {
    uint32_t struct_size;
    uint32_t caps;    /* ESP_CODEC_REDUCIBLE: payloads can be summed without decoding */
    const char *spec; /* as in a strategy file: "dgc:ratio=0.01" */
    double header_bytes, unit_bytes, units;
    /* Time over elements; index ESP_ON_CPU or ESP_ON_GPU. No points: the codec cannot run on that device.
     * Decompressing m payloads of different parts of e elements is one call with m * e elements; see decompress_more. */
    esp_cost_curve compress[2], decompress[2];
    double error;        /* compression error, |decoded - input|^2 / |input|^2, 0 to 1; for max_error */
    uint32_t takes_list; /* 1: accepts a list of pieces, so that a group of tensors need not be packed first */
    uint32_t lossy;      /* 1: strategy "auto" watches training with it; 0: it only rounds */
    /* For a codec of several rounds or of matrices (ESP_CODEC_NEEDS_MATRIX in caps); else all 0. Its payloads take what bound()
     * says, as in esp_codec, which may be called from any thread and must always give the same answer. A round takes an equal
     * share of a compress. */
    esp_status (*bound)(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out);
    void *self;                     /* bound's */
    uint32_t n_rounds, round_flags; /* 0 and 1: one round; ESP_ROUND_* of the last round */
    /* of units that are no matrices, with a codec of matrices: groups, most chunks. No points: as above */
    esp_cost_curve vector_compress[2], vector_decompress[2];
    double vector_error;
    /* Time of each further payload that is summed into the same elements, in one call: often less than that of the first, which
     * has to write all of them. No points: it takes as long as the first. Not for vectors. */
    esp_cost_curve decompress_more[2];
} esp_plan_codec;

enum { ESP_ALPHA_COLLECTIVE = 0, ESP_ALPHA_HOP = 1 };
enum { ESP_PLAN_COLLS = 8 }; /* room for every ESP_COLL_* */
/** Links of one level. A collective's time comes from its table if the table has points, else from a formula of alpha_ns and
 *  bytes_per_us. A table's sizes are bytes of the whole buffer. For allgather and gather that is the result; for the other
 *  collectives it is what one rank holds before. */
typedef struct esp_plan_link {
    double alpha_ns;     /* latency: of one collective, or of one hop of its algorithm (alpha_is) */
    double bytes_per_us; /* intra: of one rank; inter: of a machine's NIC, which its ranks share */
    uint32_t alpha_is;   /* ESP_ALPHA_* */
    uint32_t reserved0;
    esp_cost_curve table[ESP_PLAN_COLLS]; /* index ESP_COLL_*: from a collective's start until its result is there */
    esp_cost_curve gap[ESP_PLAN_COLLS]; /* for how long it keeps the link, where that is less; sizes as in table      */
    esp_cost_curve
        core[ESP_PLAN_COLLS]; /* core time that it takes of a rank; counts where cores_per_rank is not 0    */
} esp_plan_link;
/** A level further out than machines, such as racks: how many units of the level before it joins, and their links. */
typedef struct esp_plan_level {
    uint32_t size, reserved0;
    esp_plan_link link; /* bytes_per_us: of such a unit's uplink, which its ranks share */
} esp_plan_level;
enum {
    ESP_PLAN_OUTER = 1,
    ESP_PLAN_LANES = 3 + ESP_LEVELS
}; /* levels beyond machines that can be planned; lanes of a report */
/** The machines and their links. Growable. */
typedef struct esp_plan_system {
    uint32_t struct_size;
    uint32_t machines, ranks_per_machine; /* machines: of one rack, where there are levels further out */
    uint32_t devices;                     /* that can compress: bits 1 << ESP_ON_CPU, 1 << ESP_ON_GPU */
    const char *name;
    esp_plan_link intra, inter;
    esp_plan_link flat;       /* collectives over all ranks; only its tables are used */
    double host_bytes_per_us; /* device to host and back, per rank, on lane intra; 0: tensors are in host memory */
    double pack_ns, pack_bytes_per_us; /* packing a group into one buffer: fixed time, and speed; 0: free */
    /* Cores that a rank has where training runs on the CPU. 1: computing, compression, and the cores' part of collectives share it.
     * 2: computing has one, all else the other. 3: computing, compression and collectives have one each. 0: computing is elsewhere,
     * and collectives need no core. */
    uint32_t cores_per_rank;
    uint32_t n_outer;                     /* levels beyond machines: 0, or 1 */
    esp_plan_level outer[ESP_PLAN_OUTER]; /* the innermost first */
    double
        dispatch_ns[ESP_PLAN_LANES]; /* time to start an op on each lane; added to it; on several lanes the longest */
} esp_plan_system;

enum {
    ESP_PLAN_NO_MERGE = 1u << 0, /* do not merge tensors into groups */
    ESP_PLAN_NO_SPLIT = 1u << 1, /* do not split tensors into chunks */
    ESP_PLAN_NO_COMP = 1u << 2,  /* compress nothing */
    ESP_PLAN_THOROUGH = 1u << 5, /* search sixteen times as long */
    ESP_PLAN_NO_BOUND = 1u << 4  /* compute no bounds and no free_compression_ns (both 0) */
};
/** What to search for. 0 is the default of every member. Growable. */
typedef struct esp_plan_config {
    uint32_t struct_size, flags; /* ESP_PLAN_* */
    const char *strategy; /* NULL: "espresso+"; or "espresso" (Algorithms 1 and 2), "fp32", "ddp", "hipress", ... */
    uint32_t devices;     /* that may compress (bits as in the system); 0: the system's */
    uint32_t max_comp;    /* Comps an option may have; 0: any number */
    const char *const *forbid, *const *only; /* patterns for options' text: none of `forbid`, one of `only` (if any) */
    const char *const *keep; /* "GLOB=fp32", "GLOB=CODEC" or "GLOB=OPTION" for tensor names; the first match counts */
    uint32_t n_forbid, n_only, n_keep;
    uint32_t reserved0;
    double budget_ns; /* time for planning; 0: a fixed effort, the same on every machine */
    uint64_t seed;
    uint64_t max_memory_bytes; /* of residuals and payload buffers per rank; 0: no limit */
    double max_volume;         /* payload bytes / fp32 bytes of all tensors; 0: no limit */
    double max_error;          /* mean compression error over all elements; 0: no limit */
    /** Units with a tensor of fewer elements stay uncompressed, unless `keep` says otherwise. 0: size does not matter; auto
     *  and `espresso plan` set ESP_MIN_COMPRESS_ELEMENTS. Published systems (strategy "hipress", ...) decide by their own rules. */
    uint64_t min_compress_elements;
} esp_plan_config;

/** What the planner predicts for a plan. All times are of one step. Growable: set struct_size. */
typedef struct esp_plan_report {
    uint32_t struct_size;
    uint32_t n_tensors, n_units;    /* sync units: tensors, chunks and groups */
    uint32_t compressed;            /* number of tensors that are compressed */
    double fp32_ns;                 /* the step without compression, each tensor on its own */
    double iteration_ns;            /* forward + backward and synchronisation + update */
    double bound_ns;                /* no strategy is faster that neither merges nor splits tensors */
    double bound_any_ns;            /* no strategy at all is faster */
    double free_compression_ns;     /* best plan found if compression took no time (the paper's Upper Bound) */
    double plan_ns;                 /* how long planning took */
    uint64_t memory_bytes;          /* residuals and payload buffers of the rank that needs most */
    double lane_ns[ESP_PLAN_LANES]; /* busy time of compute, cpu, intra, inter, ... */
    double price[ESP_PLAN_LANES];   /* weight of each lane in the bound; their sum is at most 1 */
    double exposed_communication_ns,
        exposed_compression_ns;        /* time without backward: a link is busy; only compression runs */
    double bubble_ns[ESP_PLAN_LANES];  /* idle time between a lane's first and last op */
    uint64_t intra_bytes, inter_bytes; /* moved by one rank; by one machine's NIC */
    uint64_t level_bytes[ESP_LEVELS];  /* intra_bytes, inter_bytes, and moved by one rack's uplink */
} esp_plan_report;

enum {
    ESP_PLAN_BACKWARD = 0,
    ESP_PLAN_COLLECTIVE,
    ESP_PLAN_COMPRESS,
    ESP_PLAN_DECOMPRESS,
    ESP_PLAN_COPY,
    ESP_PLAN_PACK
};
/** One op of the predicted timeline. Time 0 is the start of backward. */
typedef struct esp_plan_event {
    uint32_t unit;  /* number of the sync unit; for a backward: of the tensor */
    uint8_t step;   /* number of the step in the unit's option */
    uint8_t round;  /* of the unit's codec, where it has several; ops that are in no round count to the last */
    uint8_t kind;   /* ESP_PLAN_* */
    uint8_t lanes;  /* bits: 1 compute, 2 cpu, 4 intra, 8 inter, 16 outer, 32 progress */
    uint64_t bytes; /* moved by one rank, or read by a codec */
    uint64_t start_ns, end_ns;
    uint64_t core_ns,
        link_ns; /* it keeps its core lane (compute, cpu, progress) and its links so long from start_ns on */
} esp_plan_event;
/** A sync unit. */
typedef struct esp_plan_unit {
    uint32_t first, n_tensors;  /* its tensors: one, or several neighbours */
    uint64_t begin, elements;   /* elements; `begin` counts from the tensor's start (chunks; else 0) */
    const char *codec, *option; /* text; owned by the plan */
} esp_plan_unit;

typedef struct esp_plan esp_plan;
/** Finds a strategy (Espresso, sections 4.3 and 4.4, and beyond). Any thread may call it. The result depends only on the
 *  inputs and the seed, unless budget_ns ends the search. Errors: ESP_E_ARG, ESP_E_NOMEM; the text of esp_last_error(NULL)
 *  says which input is wrong, and how. */
ESPRESSO_API esp_status esp_plan_make(const esp_plan_model *model, const esp_plan_codec *codecs, uint32_t n_codecs,
                                      const esp_plan_system *system, const esp_plan_config *config, esp_plan **out);
/** Predicts the step time of a strategy (the text of a strategy file). `config` may be NULL. */
ESPRESSO_API esp_status esp_plan_simulate(const esp_plan_model *model, const esp_plan_codec *codecs, uint32_t n_codecs,
                                          const esp_plan_system *system, const esp_plan_config *config,
                                          const char *strategy, esp_plan **out);
/** The strategy, as the text of a strategy file: for esp_config.strategy and esp_strategy_set. Owned by the plan. */
ESPRESSO_API const char *esp_plan_text(const esp_plan *plan);
ESPRESSO_API esp_status esp_plan_report_read(const esp_plan *plan, esp_plan_report *out);
/** The timeline, ordered by start; and the sync units. Owned by the plan. */
ESPRESSO_API const esp_plan_event *esp_plan_events(const esp_plan *plan, uint32_t *n);
ESPRESSO_API const esp_plan_unit *esp_plan_units(const esp_plan *plan, uint32_t *n);
ESPRESSO_API void esp_plan_free(esp_plan *plan);
#endif
