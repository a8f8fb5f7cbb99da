/* api.h: the planner's interface, a part of espresso.h unless ESP_NO_PLANNER is defined. The caller describes a model,
 * codecs and a system; the planner returns a strategy and predicts its timeline. It needs no context, no ranks and no
 * files. An op compresses, decompresses, copies or communicates. The ops that synchronize a tensor, one after the
 * other, are its option. Times are in nanoseconds, rates in bytes per microsecond, sizes in bytes unless a comment says
 * elements. */
#ifndef ESP_NO_PLANNER
/* ---- planner ----------------------------------------------------------------------------------------------------- */
/** A measured time of `ns` nanoseconds for `size` elements (codecs) or bytes (collectives). */
typedef struct esp_cost_point {
    double size, ns;
} esp_cost_point;
/** Time as a function of size. It is linear between the points, constant below the first one, and in proportion to size
 *  above the last one. The caller keeps the points until the planner's call returns. */
typedef struct esp_cost_curve {
    const esp_cost_point *points; /* ascending by size; size > 0, ns >= 0 */
    uint32_t n;                   /* number of points; 0 if the time is unknown */
    uint32_t log_size;            /* 1 if it is linear in log(size) between points */
} esp_cost_curve;

/** A tensor of a model. Its elements are f32. */
typedef struct esp_plan_tensor {
    const char *name; /* unique, without blanks */
    uint64_t elements;
    double compute_ns; /* time from the previous gradient to this one */
    /** "fp32" (no compression), or the only codec or option that the tensor may have, or both: "CODEC OPTION". NULL if
     *  any is allowed. */
    const char *keep;
    /** How a sharded tensor (ESP_SHARD) is divided among ranks: "flat", "intra,inter" or "any". NULL if it is not
     *  sharded. A sharded tensor is neither merged nor split, and the plan ignores the time of esp_gather. */
    const char *shard;
    uint64_t rows, cols; /* rows * cols == elements; 0 if it is no matrix */
} esp_plan_tensor;
/** A model. Growable. */
typedef struct esp_plan_model {
    uint32_t struct_size, n_tensors; /* struct_size 0 means the size in this header */
    const char *name;
    const esp_plan_tensor *tensors; /* [n_tensors], in backward order */
    double forward_ns, update_ns;   /* a step's time for the forward pass and the optimizer */
} esp_plan_model;

/** A codec's costs. A payload of e elements has header_bytes + unit_bytes * ceil(units * e) bytes. Growable. */
typedef struct esp_plan_codec {
    uint32_t struct_size;
    uint32_t caps;    /* ESP_CODEC_REDUCIBLE if payloads can be summed undecoded */
    const char *spec; /* as in a strategy file, such as "dgc:ratio=0.01" */
    /** For example, a codec that sends 1% of the elements as 8 bytes each has units 0.01 and unit_bytes 8. */
    double header_bytes, unit_bytes, units;
    /** Time of one call by elements, on [ESP_ON_CPU] and [ESP_ON_GPU]. A curve without points means that the codec
     *  cannot run there. Decompressing m payloads of e elements is one call with m * e elements, unless decompress_more
     *  is set. */
    esp_cost_curve compress[2], decompress[2];
    double error;        /* |decoded - input|^2 / |input|^2, from 0 to 1 */
    uint32_t takes_list; /* 1 if it compresses several tensors without copying them together */
    uint32_t lossy;      /* 1 if it may harm training; 0 if it only rounds numbers */
    /** Returns a payload's size, as bound() of esp_codec does. Any thread may call it, and it returns the same for the
     *  same arguments. It must be set if n_rounds > 1 or if caps has ESP_CODEC_NEEDS_MATRIX; else NULL. */
    esp_status (*bound)(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out);
    void *self; /* first argument of bound */
    /** How often the codec compresses and exchanges payloads of a tensor (0 means once; each time takes an equal part
     * of the call's time), and the ESP_ROUND_* flags of the last time. */
    uint32_t n_rounds, round_flags;
    /** The costs of a codec that needs matrices for data that is no matrix, such as groups. Without points, compress
     *  and decompress apply. */
    esp_cost_curve vector_compress[2], vector_decompress[2];
    double vector_error;
    /** Time of each further payload that a call of decompress adds to the same elements. Without points, it takes as
     *  long as the first. Ignored for vector_decompress. */
    esp_cost_curve decompress_more[2];
} esp_plan_codec;

enum { ESP_ALPHA_COLLECTIVE = 0, ESP_ALPHA_HOP = 1 };
enum { ESP_PLAN_COLLS = 8 }; /* larger than every ESP_COLL_* */
/** The links of one level: inside machines, between machines, or between racks. A collective's time comes from `table`,
 *  or if that has no points, from alpha_ns and bytes_per_us. Sizes in tables are bytes of the whole buffer: the result
 *  of allgather and gather, and one rank's input of others. */
typedef struct esp_plan_link {
    double alpha_ns;     /* latency of one collective or one hop, as alpha_is says */
    double bytes_per_us; /* rate of a rank (intra) or of a machine's network (inter) */
    uint32_t alpha_is;   /* ESP_ALPHA_* */
    uint32_t reserved0;
    esp_cost_curve table[ESP_PLAN_COLLS]; /* [ESP_COLL_*] time from start to result */
    esp_cost_curve gap[ESP_PLAN_COLLS];   /* [ESP_COLL_*] time that it occupies the link */
    /** [ESP_COLL_*] time that it occupies a processor core of the rank. Ignored if cores_per_rank is 0. */
    esp_cost_curve core[ESP_PLAN_COLLS];
} esp_plan_link;
/** A level that connects groups of machines, such as racks. */
typedef struct esp_plan_level {
    uint32_t size, reserved0; /* size: number of racks of the job */
    esp_plan_link link;       /* bytes_per_us: rate of a rack's uplink, which ranks share */
} esp_plan_level;
enum {
    ESP_PLAN_OUTER = 1,             /* most levels above machines */
    ESP_PLAN_LANES = 3 + ESP_LEVELS /* [compute, cpu, intra, inter, outer, progress] */
};
/** The machines and their links. Growable. */
typedef struct esp_plan_system {
    uint32_t struct_size;
    uint32_t machines, ranks_per_machine; /* with racks, `machines` counts those of one rack */
    uint32_t devices;                     /* devices that can compress, as bits 1 << ESP_ON_* */
    const char *name;
    esp_plan_link intra, inter;
    esp_plan_link flat; /* collectives over all ranks; only its tables are used */
    /** Rate of copies between host and GPU for each rank. The planner assumes that they use the links inside the
     *  machine. 0 if tensors are in host memory. */
    double host_bytes_per_us;
    /** Time per call, and rate, of copying a group's tensors into one buffer. 0 means no time. */
    double pack_ns, pack_bytes_per_us;
    /** Cores of a rank if training runs on CPUs. With 1, backward, compression and collectives share it. With 2,
     *  backward has its own core. With 3, each has its own. 0 if training runs on GPUs, so that collectives need no
     *  core. */
    uint32_t cores_per_rank;
    uint32_t n_outer; /* number of entries of `outer`: 0 or 1 */
    esp_plan_level outer[ESP_PLAN_OUTER];
    /** Time to start an op, in addition to its own time, on each lane: a processor, thread or link. An op that needs
     *  several takes the longest. */
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
typedef struct esp_plan_config {
    uint32_t struct_size, flags; /* struct_size 0 means the size in this header */
    /** "espresso+" (the default), "paper" (Algorithms 1 and 2 as published), "fp32", "ddp", "hipress", ... */
    const char *strategy;
    uint32_t devices;  /* devices that may compress (1 << ESP_ON_*); 0 means all */
    uint32_t max_comp; /* how often an option may compress; 0 means no limit */
    /** Patterns for the text of options. An option must match none of `forbid`, and one of `only` if there are any. */
    const char *const *forbid, *const *only;
    /** "GLOB=fp32", "GLOB=CODEC" or "GLOB=OPTION" decides for names that match GLOB. The first match counts. */
    const char *const *keep;
    uint32_t n_forbid, n_only, n_keep;
    uint32_t n_kept_codecs; /* how many codecs, the last ones, only tensors may have whose `keep` names them */
    double budget_ns;       /* planning time; 0: the same effort on all machines */
    uint64_t seed;
    uint64_t max_memory_bytes; /* limit for residuals and payloads of a rank; 0: none */
    double max_volume;         /* limit for payload bytes / fp32 bytes; 0 means none */
    double max_error;          /* limit for the mean compression error; 0 means none */
    /** Tensors with fewer elements, and groups that contain one, are not compressed unless `keep` requires it. Strategy
     *  "auto" and `espresso plan` pass ESP_MIN_COMPRESS_ELEMENTS. Published strategies ("hipress", ...) use their own
     *  rules. */
    uint64_t min_compress_elements;
} esp_plan_config;

/** The prediction for a plan. Times are those of one step. Growable: set struct_size. */
typedef struct esp_plan_report {
    uint32_t struct_size;
    uint32_t n_tensors, n_units;
    uint32_t compressed;
    double fp32_ns;                 /* step time without compression, groups and chunks */
    double iteration_ns;            /* predicted step time: forward, backward, update */
    double bound_ns;                /* lower bound of the step time for all strategies */
    double free_compression_ns;     /* step time if compression took no time */
    double plan_ns;                 /* time that planning took */
    uint64_t memory_bytes;          /* memory of residuals and payloads, on the largest rank */
    double lane_ns[ESP_PLAN_LANES]; /* busy time of each processor and link */
    /** Time outside of backward in which a link is busy, and in which only compression runs. */
    double exposed_communication_ns, exposed_compression_ns;
    double bubble_ns[ESP_PLAN_LANES];  /* idle time between the first and the last op of each */
    uint64_t intra_bytes, inter_bytes; /* bytes sent by one rank; by one machine */
    uint64_t level_bytes[ESP_LEVELS];  /* intra_bytes, inter_bytes, and those of one rack */
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
/** An op of the predicted timeline. Time 0 is the start of the backward pass. */
typedef struct esp_plan_event {
    uint32_t unit; /* index in esp_plan_units; for ESP_PLAN_BACKWARD, of the tensor */
    uint8_t step;  /* index of the op's step in the option */
    /** For a codec that needs several exchanges, such as PowerSGD, the number of the op's exchange. Other ops have the
     *  number of the last one. */
    uint8_t round;
    uint8_t kind;   /* ESP_PLAN_* */
    uint8_t lanes;  /* 1 compute, 2 cpu, 4 intra, 8 inter, 16 outer, 32 progress */
    uint64_t bytes; /* bytes that one rank sends, or that a codec reads */
    uint64_t start_ns, end_ns;
    /** How long from start_ns on it occupies its processor (compute, cpu, progress), and its links. */
    uint64_t core_ns, link_ns;
} esp_plan_event;
/** A sync unit is synchronized as one: a tensor, a chunk of one, or a group of neighbouring tensors. */
typedef struct esp_plan_unit {
    uint32_t first, n_tensors;  /* index of its first tensor in the model; their number */
    uint64_t begin, elements;   /* begin: where a chunk begins in its tensor; else 0 */
    const char *codec, *option; /* text that the plan owns */
} esp_plan_unit;

/** A strategy and its prediction. esp_plan_free frees it with all that esp_plan_text, _events and _units returned. */
typedef struct esp_plan esp_plan;
/** Plans a strategy. Any thread may call it. `config` may be NULL. The result depends only on the arguments, unless
 *  budget_ns ends the search. On ESP_E_ARG and ESP_E_NOMEM, esp_last_error(NULL) explains what is wrong. */
ESPRESSO_API esp_status esp_plan_make(const esp_plan_model *model, const esp_plan_codec *codecs, uint32_t n_codecs,
                                      const esp_plan_system *system, const esp_plan_config *config, esp_plan **out);
/** Predicts the timeline of `strategy`, the text of a strategy file. Like esp_plan_make in all else. */
ESPRESSO_API esp_status esp_plan_simulate(const esp_plan_model *model, const esp_plan_codec *codecs, uint32_t n_codecs,
                                          const esp_plan_system *system, const esp_plan_config *config,
                                          const char *strategy, esp_plan **out);
/** Returns the strategy as the text of a strategy file: pass it to esp_strategy_set, or its path as
 *  esp_config.strategy. */
ESPRESSO_API const char *esp_plan_text(const esp_plan *plan);
/** Copies the report to *out, at most out->struct_size bytes. */
ESPRESSO_API esp_status esp_plan_report_read(const esp_plan *plan, esp_plan_report *out);
/** Returns the timeline in order of start_ns, and sets *n to the number of events. */
ESPRESSO_API const esp_plan_event *esp_plan_events(const esp_plan *plan, uint32_t *n);
/** Returns the sync units in backward order, and sets *n to their number. */
ESPRESSO_API const esp_plan_unit *esp_plan_units(const esp_plan *plan, uint32_t *n);
ESPRESSO_API void esp_plan_free(esp_plan *plan);
#endif
