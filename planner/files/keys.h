/* keys.h: the keys that each kind of file may have. The schemas in docs/plan/schema list the same keys. */
#ifndef ESP__FILES_KEYS_H
#define ESP__FILES_KEYS_H
#include <stddef.h>

static const char *const files_model_keys[] = {
    "espresso",   "model",  "source", "forward_us", "forward_is", "update_us", "dtype",   "batch",
    "parameters", "device", "steps",  "ranks",      "cores",      "noisy",     "tensors", NULL};
static const char *const files_tensor_keys[] = {"name",  "elements", "compute_us", "keep", "shard", "shape",
                                                "flops", "spread",   "rows",       "cols", NULL};
static const char *const files_gc_keys[] = {"espresso", "codec",   "reducible", "takes_list", "error", "payload",
                                            "feedback", "devices", "source",    "device",     "ranks", "cores",
                                            "spread",   "noisy",   "rounds",    "matrices",   NULL};
static const char *const files_payload_keys[] = {"header_bytes", "unit_bytes", "units_per_element", NULL};
static const char *const files_device_keys[] = {"interpolate", "compress", "decompress", "decompress_more", NULL};
static const char *const files_system_keys[] = {"espresso",       "system",
                                                "machines",       "ranks_per_machine",
                                                "devices",        "accelerator",
                                                "intra",          "inter",
                                                "flat",           "host_bytes_per_us",
                                                "pack_us",        "pack_bytes_per_us",
                                                "cores_per_rank", "cpu_workers",
                                                "source",         "dispatch_us",
                                                "device",         "ranks",
                                                "cores",          "spread",
                                                "noisy",          "racks",
                                                "outer",          NULL};
static const char *const files_lane_keys[] = {"compute", "cpu", "intra", "inter", "outer", NULL};
static const char *const files_link_keys[] = {"alpha_us",          "alpha_is", "bytes_per_us",
                                              "down_bytes_per_us", "tables",   NULL};
static const char *const files_flat_keys[] = {"tables", NULL};
static const char *const files_table_keys[] = {"interpolate", "points", "gap", "core", NULL};
/* index: ESP_COLL_* - 1 */
static const char *const files_coll_keys[] = {"allreduce", "allgather", "alltoall", "reduce_scatter",
                                              "broadcast", "gather",    "reduce",   NULL};
static const char *const files_costs_keys[] = {"espresso", "costs", "made", "inter", "system", "codecs", "model", NULL};
#endif
