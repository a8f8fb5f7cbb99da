/* layout_rows.h lists every struct of espresso.h and plugins/abi.h with its members, and every constant, for
 * test_layout.c. Add a row for each new one. */
#ifndef ESP_TESTS_LAYOUT_ROWS_H
#define ESP_TESTS_LAYOUT_ROWS_H
#include <stddef.h>
#include <stdint.h>
#include "espresso.h"

typedef struct row {
    const char *name;
    size_t offset, size;
} row;
typedef struct number {
    const char *name;
    int64_t value;
} number;

/* EACH(m, T, a, b, ...) expands to ", m(T, a), m(T, b) ...". The preprocessor expands no macro inside itself, so EACH
 * expands one name, and leaves the others for the next pass. EXPAND makes 64 passes. */
#define EXPAND(...) EXPAND_16(EXPAND_16(EXPAND_16(EXPAND_16(__VA_ARGS__))))
#define EXPAND_16(...) EXPAND_4(EXPAND_4(EXPAND_4(EXPAND_4(__VA_ARGS__))))
#define EXPAND_4(...) EXPAND_1(EXPAND_1(EXPAND_1(EXPAND_1(__VA_ARGS__))))
#define EXPAND_1(...) __VA_ARGS__
#define EACH(m, T, name, ...) , m(T, name) __VA_OPT__(EACH_LATER PARENTHESES(m, T, __VA_ARGS__))
#define EACH_LATER() EACH
#define PARENTHESES ()

#define MEMBER(T, f)                                                                                                   \
    { "    " #f, offsetof(T, f), sizeof(((T *)0)->f) }
#define STRUCT(T, ...) {#T, SIZE_MAX, sizeof(T)} EXPAND(EACH(MEMBER, T, __VA_ARGS__))
static const row rows[] = {
    STRUCT(esp_device, kind, ordinal),
    STRUCT(esp_stream, dev, native),
    STRUCT(esp_buf, ptr, bytes, dev),
    STRUCT(esp_tensor, struct_size, dtype, key, count, data, rows, cols),
    STRUCT(esp_payload, data, used),
    STRUCT(esp_log_event, struct_size, level, status, line, component, message, file),
    STRUCT(esp_host, struct_size, abi_major, abi_minor, reserved0, user, alloc, free_, log, parallel_for, codec_open,
           codec_close, device, own_thread),
    STRUCT(esp_round, op, dtype, flags, reserved0),
    STRUCT(esp_bound, struct_size, dtype, payload_bytes, scratch_bytes, state_bytes),
    STRUCT(esp_traits, struct_size, wire_version, caps, n_rounds, reserved0, rounds, default_option),
    STRUCT(esp_payload_size, fixed, quantum, per_element, per_row, per_col),
    STRUCT(esp_codec_time, elements, compress_ns, decompress_ns),
    STRUCT(esp_codec_model, struct_size, flags, sent, reduced, error, n_times, reserved0, times, momentum, n_fixed,
           reserved1),
    STRUCT(esp_codec_args, struct_size, mode, step, seed, source, comp_index, flags, round, n_reduced, n_tensors,
           n_payloads, beta, gamma, scale, tensor, offset, payload, reduced, residual, state, scratch, stream, n_summed,
           reserved0),
    STRUCT(esp_codec, struct_size, wire_version, caps, dtypes, devices, name, summary, params, default_option, n_rounds,
           reserved0, rounds, open, close, bound, compress, decompress, traits, model, finalize, values, family, paper),
    STRUCT(esp_group, struct_size, rank, size, level, n_levels, last_level, level_name, place, machine, parent,
           oob_allgather, user),
    STRUCT(esp_coll, struct_size, op, dtype, root, count, slot_bytes, src, dst, scale, reduce, width),
    STRUCT(esp_traffic, struct_size, reserved0, intra_bytes, inter_bytes, level_bytes, memory_bytes),
    STRUCT(esp_meeting, struct_size, reserved0, rank, size, oob_allgather, user),
    STRUCT(esp_backend, struct_size, reserved0, caps, colls, devices, dtypes, reduces, name, summary, params, probe,
           open, close, start, test, progress, wake, wait_fd, abort, straggler, traffic, reg, dereg, meet),
    STRUCT(esp_device_table, struct_size, kind, caps, name, summary, probe, open, close, alloc, free_, stream_create,
           stream_destroy, event_create, event_destroy, event_record, event_wait, event_query, event_sync, copy, copy2d,
           fill, convert, elapsed, core_time, device_name, event_create_untimed),
    STRUCT(esp_plugin, struct_size, n_codecs, n_backends, n_devices, codecs, backends, devices),
    STRUCT(esp_values, offset, count, rest),
    STRUCT(esp_payload_header, codec, wire_version, flags, count, body_bytes, aux, reserved),
    STRUCT(esp_config, struct_size, flags, backend, codec, strategy, plugin_path, builtin, n_builtin, log_level, rank,
           size, machine, timeout_ms, oob_allgather, oob_user, root, trace, cpu_workers, reserved0, seed, host, stats,
           workers, place, progress, min_compress_elements, optimizer, momentum),
    STRUCT(esp_tensor_desc, struct_size, dtype, name, count, rows, cols, device, flags, reserved0, codec, option,
           gather),
    STRUCT(esp_stats, struct_size, reserved0, steps, intra_bytes, inter_bytes, nonfinite, memory_bytes, compress_ns,
           decompress_ns, intra_ns, inter_ns, step_ns, backward_ns, exposed_communication_ns, exposed_compression_ns,
           level_bytes, level_ns, slots_bytes, feedback_bytes, backend_bytes, outer_rounds, outer_bytes, outer_wait_ns,
           ranks_lost, ranks_joined, outer_missed),
    STRUCT(esp_outer_desc, struct_size, flags, method, every, fragments, delay, alpha, lr, momentum, nesterov,
           reserved0),
    STRUCT(esp_tensor_stats, struct_size, samples, error, feedback, pushes, zeros),
};

#define N(name)                                                                                                        \
    { #name, name }
static const number numbers[] = {
    N(ESP_OK),
    N(ESP_PENDING),
    N(ESP_E_ARG),
    N(ESP_E_NOMEM),
    N(ESP_E_UNSUPPORTED),
    N(ESP_E_TOO_SMALL),
    N(ESP_E_ABI),
    N(ESP_E_NOT_FOUND),
    N(ESP_E_DEVICE),
    N(ESP_E_COMM),
    N(ESP_E_CORRUPT),
    N(ESP_E_STATE),
    N(ESP_E_PEER),
    N(ESP_E_TIMEOUT),
    N(ESP_E_MISMATCH),
    N(ESP_E_CANCELED),
    N(ESP_F32),
    N(ESP_F16),
    N(ESP_BF16),
    N(ESP_I8),
    N(ESP_I16),
    N(ESP_I32),
    N(ESP_REDUCE_SUM),
    N(ESP_REDUCE_MAX),
    N(ESP_REDUCE_MIN),
    N(ESP_CPU),
    N(ESP_CUDA),
    N(ESP_DEVKIND_OWN),
    N(ESP_LOG_ERROR),
    N(ESP_LOG_WARN),
    N(ESP_LOG_INFO),
    N(ESP_LOG_DEBUG),
    N(ESP_CODEC_HAS_STATE),
    N(ESP_CODEC_REDUCIBLE),
    N(ESP_CODEC_OWN_FEEDBACK),
    N(ESP_CODEC_DETERMINISTIC),
    N(ESP_CODEC_NEEDS_MATRIX),
    N(ESP_CODEC_FUSED_RESIDUAL),
    N(ESP_CODEC_NO_FEEDBACK),
    N(ESP_CODEC_LISTS),
    N(ESP_CODEC_WRAPPER),
    N(ESP_OUT_SET),
    N(ESP_OUT_SUM),
    N(ESP_ARG_OWN_MEMORY),
    N(ESP_ROUNDS_MAX),
    N(ESP_ROUND_ALLREDUCE),
    N(ESP_MODEL_CORE_RATE),
    N(ESP_MODEL_CUDA_RATE),
    N(ESP_MODEL_TIMES),
    N(ESP_MODEL_LOSSY),
    N(ESP_BACKEND_STREAM_ORDERED),
    N(ESP_BACKEND_NEEDS_PROGRESS),
    N(ESP_BACKEND_VARLEN),
    N(ESP_BACKEND_SCALE),
    N(ESP_BACKEND_PACED),
    N(ESP_BACKEND_CALLER),
    N(ESP_BACKEND_REOPENS),
    N(ESP_BACKEND_DELIVERS),
    N(ESP_COLL_ALLREDUCE),
    N(ESP_COLL_ALLGATHER),
    N(ESP_COLL_ALLTOALL),
    N(ESP_COLL_REDUCE_SCATTER),
    N(ESP_COLL_BROADCAST),
    N(ESP_COLL_GATHER),
    N(ESP_COLL_REDUCE),
    N(ESP_LEVELS),
    N(ESP_MEM_DEVICE),
    N(ESP_MEM_PINNED),
    N(ESP_DEVICE_HOST_ACCESS),
    N(ESP_PAYLOAD_NONFINITE),
    N(ESP_PAYLOAD_EMPTY),
    N(ESP_PAYLOAD_HEADER),
    N(ESP_ALLOW_OVERRIDE),
    N(ESP_DISCARDABLE),
    N(ESP_JOIN),
    N(ESP_SUM),
    N(ESP_RAW),
    N(ESP_SHARD),
};
#endif
