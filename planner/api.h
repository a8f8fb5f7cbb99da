/* api.h: the planner's interface, a part of espresso.h. The caller describes a model, codecs and a system; the
 * planner returns a strategy and predicts its timeline. It needs no context, no ranks and no files. ESP_NO_PLANNER
 * leaves it out.
 *
 * Times are in nanoseconds, rates in bytes per microsecond, sizes in bytes unless a comment says elements. */
#ifndef ESP_NO_PLANNER
/* ---- planner ----------------------------------------------------------------------------------------------------- */
/** A measured time: `ns` for `size` (elements for codecs, bytes for collectives). */
typedef struct esp_cost_point {
    double size, ns;
} esp_cost_point;
/** Time as a function of size: linear between the points, constant below the first one, and in proportion to size
 *  above the last one. The caller owns the points, which the planner reads during calls only. */
typedef struct esp_cost_curve {
    const esp_cost_point *points; /* ascending by size; size > 0, ns >= 0 */
    uint32_t n;                   /* number of points; 0: not known */
    uint32_t log_size;            /* 1: linear in log(size); 0: linear in size */
} esp_cost_curve;

/** A tensor of a model. Its elements are f32. */
typedef struct esp_plan_tensor {
    const char *name; /* unique, without blanks */
    uint64_t elements;
    double compute_ns; /* backward time since the previous tensor was ready */
    /** "fp32", or the only codec or the only option that the tensor may have. NULL: no restriction. */
    const char *keep;
    /** For a sharded tensor (ESP_SHARD), how it is divided among ranks: "flat", "intra,inter", or "any". It is then
     *  neither merged nor split, and the time of esp_gather is not in the plan. NULL: not sharded. */
    const char *shard;
    uint64_t rows, cols; /* row-major, rows * cols == elements; 0: not a matrix */
} esp_plan_tensor;
/** A model. Growable. */
typedef struct esp_plan_model {
    uint32_t struct_size, n_tensors; /* struct_size 0: the size in this header */
    const char *name;
    const esp_plan_tensor *tensors; /* [n_tensors], in backward order */
    double forward_ns, update_ns;   /* forward pass, and optimizer, of a step */
} esp_plan_model;

/** A codec's costs. Growable. The payload of e elements has header_bytes + unit_bytes * ceil(units * e) bytes. */
typedef struct esp_plan_codec {
    uint32_t struct_size;
    uint32_t caps;    /* ESP_CODEC_REDUCIBLE: payloads can be summed undecoded */
    const char *spec; /* as in a strategy file: "dgc:ratio=0.01" */
    /** units: items in the payload for each element, such as 0.01. unit_bytes: bytes of one item. */
    double header_bytes, unit_bytes, units;
    /** Time of one call, by elements; [ESP_ON_CPU] and [ESP_ON_GPU]. Without points, the codec cannot run there.
     *  Decompressing payloads of m different parts of e elements is one call with m * e elements. See also
     *  decompress_more. */
    esp_cost_curve compress[2], decompress[2];
    double error;        /* |decoded - input|^2 / |input|^2, 0 to 1; for max_error */
    uint32_t takes_list; /* 1: compresses a group's tensors without packing them */
    uint32_t lossy;      /* 1: may harm training; 0: at most rounds numbers */
    /** For codecs with several rounds, or with ESP_CODEC_NEEDS_MATRIX in caps; else NULL. Returns a payload's size,
     *  as bound() of esp_codec does, and always the same for the same arguments. Any thread may call it. Each round
     *  takes an equal share of the time of a compress. */
    esp_status (*bound)(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out);
    void *self;                     /* first argument of bound */
    uint32_t n_rounds, round_flags; /* 0 is one round; ESP_ROUND_* of the last round */
    /** For codecs of matrices: costs for units that are not matrices, as groups and most chunks. No points: as
     *  above. */
    esp_cost_curve vector_compress[2], vector_decompress[2];
    double vector_error;
    /** Time of each further payload that one call adds to the same elements, which is often less than that of the
     *  first. No points: as long as the first. Not for vector_decompress. */
    esp_cost_curve decompress_more[2];
} esp_plan_codec;

enum { ESP_ALPHA_COLLECTIVE = 0, ESP_ALPHA_HOP = 1 };
enum { ESP_PLAN_COLLS = 8 }; /* above every ESP_COLL_* */
/** The links of one level. A collective's time comes from `table`; without points, from alpha_ns and bytes_per_us.
 *  The sizes of tables are those of the whole buffer in bytes: for allgather and gather the result, for others one
 *  rank's input. */
typedef struct esp_plan_link {
    double alpha_ns;     /* latency of what alpha_is names */
    double bytes_per_us; /* intra: of a rank; inter: of a machine's network card */
    uint32_t alpha_is;   /* ESP_ALPHA_*: one collective, or one hop of it */
    uint32_t reserved0;
    esp_cost_curve table[ESP_PLAN_COLLS]; /* [ESP_COLL_*]: from start to result */
    esp_cost_curve gap[ESP_PLAN_COLLS];   /* time that it occupies the link, if shorter */
    /** Core time of a rank that it takes. Counts if cores_per_rank is not 0. */
    esp_cost_curve core[ESP_PLAN_COLLS];
} esp_plan_link;
/** A level outside machines, such as racks. */
typedef struct esp_plan_level {
    uint32_t size, reserved0; /* size: racks of the job */
    esp_plan_link link;       /* bytes_per_us: of a rack's uplink, which its ranks share */
} esp_plan_level;
enum {
    ESP_PLAN_OUTER = 1,             /* most levels outside machines */
    ESP_PLAN_LANES = 3 + ESP_LEVELS /* compute, cpu, intra, inter, outer, progress */
};
/** The machines and their links. Growable. */
typedef struct esp_plan_system {
    uint32_t struct_size;
    uint32_t machines, ranks_per_machine; /* with racks: machines of each rack */
    uint32_t devices;                     /* that can compress: 1 << ESP_ON_CPU | 1 << ESP_ON_GPU */
    const char *name;
    esp_plan_link intra, inter;
    esp_plan_link flat; /* collectives over all ranks; only its tables count */
    /** Rate of copies between host and device, per rank, on lane intra. 0: tensors are in host memory. */
    double host_bytes_per_us;
    /** Packing a group into one buffer: time per call, and rate. 0: takes no time. */
    double pack_ns, pack_bytes_per_us;
    /** Cores of a rank, where training runs on CPUs. 1: backward, compression and collectives share it. 2: backward
     *  has one, and the others share one. 3: each has one. 0: training runs elsewhere, and collectives need no core. */
    uint32_t cores_per_rank;
    uint32_t n_outer; /* entries of `outer` in use: 0 or 1 */
    esp_plan_level outer[ESP_PLAN_OUTER];
    /** Time to start an op on each lane, in addition to its own time; on several lanes, the longest counts. */
    double dispatch_ns[ESP_PLAN_LANES];
} esp_plan_system;

/* esp_plan_config.flags */
enum {
    ESP_PLAN_NO_MERGE = 1u << 0, /* do not merge tensors into groups */
    ESP_PLAN_NO_SPLIT = 1u << 1, /* do not split tensors into chunks */
    ESP_PLAN_NO_COMP = 1u << 2,  /* compress nothing */
    ESP_PLAN_THOROUGH = 1u << 5, /* search sixteen times as long */
    ESP_PLAN_NO_BOUND = 1u << 4  /* leave bounds and free_compression_ns 0 */
};
/** What to search for. All members may be 0. Growable. */
typedef struct esp_plan_config {
    uint32_t struct_size, flags; /* struct_size 0: the size in this header */
    /** "espresso+", "espresso" (the paper's Algorithms 1 and 2), "fp32", "ddp", "hipress", ... NULL: "espresso+". */
    const char *strategy;
    uint32_t devices;  /* that may compress, as in the system; 0: all of them */
    uint32_t max_comp; /* most Comps of an option; 0: no limit */
    /** Patterns for the text of options, which must match none of `forbid`, and one of `only` if there are any. */
    const char *const *forbid, *const *only;
    /** "GLOB=fp32", "GLOB=CODEC" or "GLOB=OPTION" for tensors whose names match GLOB; the first match counts. */
    const char *const *keep;
    uint32_t n_forbid, n_only, n_keep;
    uint32_t reserved0;
    double budget_ns; /* planning time; 0: fixed effort, the same on all machines */
    uint64_t seed;
    uint64_t max_memory_bytes; /* of residuals and payloads of a rank; 0: no limit */
    double max_volume;         /* payload bytes / fp32 bytes; 0: no limit */
    double max_error;          /* mean compression error of all elements; 0: no limit */
    /** Units with a smaller tensor are not compressed, unless `keep` requires it. 0: no limit. Strategy "auto" and
     *  `espresso plan` pass ESP_MIN_COMPRESS_ELEMENTS. Published systems ("hipress", ...) use their own rules
     *  instead. */
    uint64_t min_compress_elements;
} esp_plan_config;

/** The prediction for a plan. Times are those of one step. Growable: set struct_size. */
typedef struct esp_plan_report {
    uint32_t struct_size;
    uint32_t n_tensors, n_units;
    uint32_t compressed;            /* number of compressed tensors */
    double fp32_ns;                 /* step without compression, groups and chunks */
    double iteration_ns;            /* step: forward, backward with synchronization, update */
    double bound_ns;                /* lower bound for strategies without groups and chunks */
    double bound_any_ns;            /* lower bound for all strategies */
    double free_compression_ns;     /* best plan if compression took no time (Upper Bound) */
    double plan_ns;                 /* time that planning took */
    uint64_t memory_bytes;          /* residuals and payloads, of the rank that needs most */
    double lane_ns[ESP_PLAN_LANES]; /* busy time of each lane */
    double price[ESP_PLAN_LANES];   /* weight of each lane in bound_ns; sum at most 1 */
    /** Outside of backward: time in which a link is busy; time in which only compression runs. */
    double exposed_communication_ns, exposed_compression_ns;
    double bubble_ns[ESP_PLAN_LANES];  /* idle time between a lane's first and last op */
    uint64_t intra_bytes, inter_bytes; /* sent by one rank; by one machine */
    uint64_t level_bytes[ESP_LEVELS];  /* intra_bytes, inter_bytes, sent by one rack */
} esp_plan_report;

/* esp_plan_event.kind */
enum {
    ESP_PLAN_BACKWARD = 0,
    ESP_PLAN_COLLECTIVE,
    ESP_PLAN_COMPRESS,
    ESP_PLAN_DECOMPRESS,
    ESP_PLAN_COPY,
    ESP_PLAN_PACK
};
/** An op of the predicted timeline. Time 0 is the start of backward. */
typedef struct esp_plan_event {
    uint32_t unit;  /* index of the sync unit; of a backward: of the tensor */
    uint8_t step;   /* index of the stage in the unit's option */
    uint8_t round;  /* of the codec; ops outside of rounds have the last round's */
    uint8_t kind;   /* ESP_PLAN_* */
    uint8_t lanes;  /* 1 compute, 2 cpu, 4 intra, 8 inter, 16 outer, 32 progress */
    uint64_t bytes; /* sent by one rank; read by a codec */
    uint64_t start_ns, end_ns;
    /** From start_ns on, how long it occupies its core lane (compute, cpu, progress), and its links. */
    uint64_t core_ns, link_ns;
} esp_plan_event;
/** A sync unit: what is synchronized as one. A tensor, a chunk of one, or a group of neighbouring tensors. */
typedef struct esp_plan_unit {
    uint32_t first, n_tensors;  /* its tensors, by index in the model */
    uint64_t begin, elements;   /* begin: of a chunk in its tensor; else 0 */
    const char *codec, *option; /* text that the plan owns */
} esp_plan_unit;

/** A strategy and its prediction. The caller frees it with esp_plan_free. What other calls return belongs to the
 *  plan. */
typedef struct esp_plan esp_plan;
/** Plans a strategy. Any thread may call it. The result depends only on the arguments, unless budget_ns ends the
 *  search. `config` may be NULL. ESP_E_ARG, ESP_E_NOMEM: esp_last_error(NULL) explains which argument is wrong. */
ESPRESSO_API esp_status esp_plan_make(const esp_plan_model *model, const esp_plan_codec *codecs, uint32_t n_codecs,
                                      const esp_plan_system *system, const esp_plan_config *config, esp_plan **out);
/** Predicts the timeline of `strategy`, the text of a strategy file. Otherwise as esp_plan_make. */
ESPRESSO_API esp_status esp_plan_simulate(const esp_plan_model *model, const esp_plan_codec *codecs, uint32_t n_codecs,
                                          const esp_plan_system *system, const esp_plan_config *config,
                                          const char *strategy, esp_plan **out);
/** The strategy as the text of a strategy file, for esp_config.strategy (as a file) and esp_strategy_set (as text). */
ESPRESSO_API const char *esp_plan_text(const esp_plan *plan);
/** Copies the report to *out, at most out->struct_size bytes. */
ESPRESSO_API esp_status esp_plan_report_read(const esp_plan *plan, esp_plan_report *out);
/** The timeline, in order of start_ns; *n becomes the number of events. */
ESPRESSO_API const esp_plan_event *esp_plan_events(const esp_plan *plan, uint32_t *n);
/** The sync units, in backward order; *n becomes their number. */
ESPRESSO_API const esp_plan_unit *esp_plan_units(const esp_plan *plan, uint32_t *n);
ESPRESSO_API void esp_plan_free(esp_plan *plan);
#endif
