/* test_layout.c: sizes and offsets of every ABI struct against layout.golden. Inside a major, members are only added at
 * the end of growable structs, and frozen ones never change.
 *     ESPRESSO_GOLDEN=write build/tests/abi/test_layout        writes the file anew, after a change that is meant */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include "espresso.h"
#include "tests/common/skip.h"

static const char golden[] = "tests/abi/layout.golden";

typedef struct row {
    const char *name;
    size_t offset, size; /* of the struct: offset is SIZE_MAX */
} row;
#define S(T)                                                                                                           \
    { #T, SIZE_MAX, sizeof(T) }
#define M(T, f)                                                                                                        \
    { "    " #f, offsetof(T, f), sizeof(((T *)0)->f) }
static const row rows[] = {
#define M1(f) M(esp_device, f)
    S(esp_device),
    M1(kind),
    M1(ordinal),
#undef M1
#define M1(f) M(esp_stream, f)
    S(esp_stream),
    M1(dev),
    M1(native),
#undef M1
#define M1(f) M(esp_buf, f)
    S(esp_buf),
    M1(ptr),
    M1(bytes),
    M1(dev),
#undef M1
#define M1(f) M(esp_tensor, f)
    S(esp_tensor),
    M1(struct_size),
    M1(dtype),
    M1(key),
    M1(count),
    M1(data),
    M1(rows),
    M1(cols),
#undef M1
#define M1(f) M(esp_payload, f)
    S(esp_payload),
    M1(data),
    M1(used),
#undef M1
#define M1(f) M(esp_log_event, f)
    S(esp_log_event),
    M1(struct_size),
    M1(level),
    M1(status),
    M1(line),
    M1(component),
    M1(message),
    M1(file),
#undef M1
#define M1(f) M(esp_host, f)
    S(esp_host),
    M1(struct_size),
    M1(abi_major),
    M1(abi_minor),
    M1(reserved0),
    M1(user),
    M1(alloc),
    M1(free_),
    M1(log),
    M1(parallel_for),
    M1(codec_open),
    M1(codec_close),
    M1(device),
#undef M1
#define M1(f) M(esp_round, f)
    S(esp_round),
    M1(op),
    M1(dtype),
    M1(flags),
    M1(reserved0),
#undef M1
#define M1(f) M(esp_bound, f)
    S(esp_bound),
    M1(struct_size),
    M1(dtype),
    M1(payload_bytes),
    M1(scratch_bytes),
    M1(state_bytes),
#undef M1
#define M1(f) M(esp_traits, f)
    S(esp_traits),
    M1(struct_size),
    M1(wire_version),
    M1(caps),
    M1(n_rounds),
    M1(reserved0),
    M1(rounds),
    M1(default_option),
#undef M1
#define M1(f) M(esp_payload_size, f)
    S(esp_payload_size),
    M1(fixed),
    M1(quantum),
    M1(per_element),
    M1(per_row),
    M1(per_col),
#undef M1
#define M1(f) M(esp_codec_time, f)
    S(esp_codec_time),
    M1(elements),
    M1(compress_ns),
    M1(decompress_ns),
#undef M1
#define M1(f) M(esp_codec_model, f)
    S(esp_codec_model),
    M1(struct_size),
    M1(flags),
    M1(sent),
    M1(reduced),
    M1(error),
    M1(n_times),
    M1(reserved0),
    M1(times),
#undef M1
#define M1(f) M(esp_codec_args, f)
    S(esp_codec_args),
    M1(struct_size),
    M1(mode),
    M1(step),
    M1(seed),
    M1(source),
    M1(comp_index),
    M1(flags),
    M1(round),
    M1(n_reduced),
    M1(n_tensors),
    M1(n_payloads),
    M1(beta),
    M1(gamma),
    M1(scale),
    M1(tensor),
    M1(offset),
    M1(payload),
    M1(reduced),
    M1(residual),
    M1(state),
    M1(scratch),
    M1(stream),
#undef M1
#define M1(f) M(esp_codec, f)
    S(esp_codec),
    M1(struct_size),
    M1(wire_version),
    M1(caps),
    M1(dtypes),
    M1(devices),
    M1(name),
    M1(summary),
    M1(params),
    M1(default_option),
    M1(n_rounds),
    M1(reserved0),
    M1(rounds),
    M1(open),
    M1(close),
    M1(bound),
    M1(compress),
    M1(decompress),
    M1(traits),
    M1(model),
    M1(finalize),
    M1(values),
    M1(forward),
#undef M1
#define M1(f) M(esp_group, f)
    S(esp_group),
    M1(struct_size),
    M1(rank),
    M1(size),
    M1(level),
    M1(n_levels),
    M1(last_level),
    M1(level_name),
    M1(place),
    M1(machine),
    M1(parent),
    M1(oob_allgather),
    M1(user),
#undef M1
#define M1(f) M(esp_hops, f)
    S(esp_hops),
    M1(struct_size),
    M1(route),
    M1(user),
    M1(most),
    M1(bound),
    M1(encode),
    M1(forward),
    M1(decode),
#undef M1
#define M1(f) M(esp_coll, f)
    S(esp_coll),
    M1(struct_size),
    M1(op),
    M1(dtype),
    M1(root),
    M1(count),
    M1(slot_bytes),
    M1(src),
    M1(dst),
    M1(scale),
    M1(reduce),
    M1(width),
    M1(hops),
#undef M1
#define M1(f) M(esp_traffic, f)
    S(esp_traffic),
    M1(struct_size),
    M1(reserved0),
    M1(intra_bytes),
    M1(inter_bytes),
    M1(level_bytes),
#undef M1
#define M1(f) M(esp_backend, f)
    S(esp_backend),
    M1(struct_size),
    M1(reserved0),
    M1(caps),
    M1(colls),
    M1(devices),
    M1(dtypes),
    M1(reduces),
    M1(name),
    M1(summary),
    M1(params),
    M1(probe),
    M1(open),
    M1(close),
    M1(start),
    M1(test),
    M1(progress),
    M1(wake),
    M1(wait_fd),
    M1(abort),
    M1(late),
    M1(traffic),
    M1(reg),
    M1(dereg),
#undef M1
#define M1(f) M(esp_device_table, f)
    S(esp_device_table),
    M1(struct_size),
    M1(kind),
    M1(caps),
    M1(name),
    M1(summary),
    M1(probe),
    M1(open),
    M1(close),
    M1(alloc),
    M1(free_),
    M1(stream_create),
    M1(stream_destroy),
    M1(event_create),
    M1(event_destroy),
    M1(event_record),
    M1(event_wait),
    M1(event_query),
    M1(event_sync),
    M1(copy),
    M1(copy2d),
    M1(fill),
    M1(convert),
    M1(elapsed),
    M1(core_time),
#undef M1
#define M1(f) M(esp_plugin, f)
    S(esp_plugin),
    M1(struct_size),
    M1(n_codecs),
    M1(n_backends),
    M1(n_devices),
    M1(name),
    M1(version),
    M1(license),
    M1(codecs),
    M1(backends),
    M1(devices),
#undef M1
#define M1(f) M(esp_values, f)
    S(esp_values),
    M1(offset),
    M1(count),
    M1(rest),
#undef M1
#define M1(f) M(esp_payload_header, f)
    S(esp_payload_header),
    M1(codec),
    M1(wire_version),
    M1(flags),
    M1(count),
    M1(body_bytes),
    M1(aux),
    M1(epoch),
    M1(crc32c),
    M1(reserved),
#undef M1
#define M1(f) M(esp_config, f)
    S(esp_config),
    M1(struct_size),
    M1(flags),
    M1(backend),
    M1(codec),
    M1(strategy),
    M1(plugin_path),
    M1(builtin),
    M1(n_builtin),
    M1(log_level),
    M1(rank),
    M1(size),
    M1(machine),
    M1(timeout_ms),
    M1(oob_allgather),
    M1(oob_user),
    M1(root),
    M1(trace),
    M1(cpu_workers),
    M1(reserved0),
    M1(seed),
    M1(host),
    M1(stats),
    M1(workers),
    M1(place),
#undef M1
#define M1(f) M(esp_tensor_desc, f)
    S(esp_tensor_desc),
    M1(struct_size),
    M1(dtype),
    M1(name),
    M1(count),
    M1(rows),
    M1(cols),
    M1(device),
    M1(flags),
    M1(reserved0),
    M1(codec),
    M1(option),
    M1(gather),
#undef M1
#define M1(f) M(esp_stats, f)
    S(esp_stats),
    M1(struct_size),
    M1(reserved0),
    M1(steps),
    M1(intra_bytes),
    M1(inter_bytes),
    M1(nonfinite),
    M1(memory_bytes),
    M1(compress_ns),
    M1(decompress_ns),
    M1(intra_ns),
    M1(inter_ns),
    M1(step_ns),
    M1(backward_ns),
    M1(exposed_communication_ns),
    M1(exposed_compression_ns),
    M1(level_bytes),
    M1(level_ns),
#undef M1
#define M1(f) M(esp_tensor_stats, f)
    S(esp_tensor_stats),
    M1(struct_size),
    M1(samples),
    M1(error),
    M1(feedback),
#undef M1
};

static void text_of(const row *r, char *out, size_t cap) {
    if (r->offset == SIZE_MAX)
        snprintf(out, cap, "%s %zu", r->name, r->size);
    else
        snprintf(out, cap, "%s %zu %zu", r->name, r->offset, r->size);
}

static void test_layout(void **state) {
    char want[256], have[256];
    FILE *f;
    (void)state;
#if !defined(__x86_64__)
    test_skip("the golden file is of 64-bit x86");
#endif
    f = fopen(golden, "r");
    if (!f) fail_msg("%s: run in the project's root", golden);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        text_of(&rows[i], have, sizeof have);
        if (!fgets(want, sizeof want, f)) want[0] = 0;
        want[strcspn(want, "\n")] = 0;
        assert_string_equal(have, want);
    }
    assert_null(fgets(want, sizeof want, f));
    fclose(f);
}

/* Every byte of a struct belongs to a member: a compiler's padding would differ or carry garbage. */
static void test_no_padding(void **state) {
    size_t end = 0, size = 0;
    const char *name = "";
    (void)state;
    for (size_t i = 0; i <= sizeof rows / sizeof *rows; i++) {
        const row *r = i < sizeof rows / sizeof *rows ? &rows[i] : NULL;
        if (!r || r->offset == SIZE_MAX) {
            if (end != size) fail_msg("%s: %zu bytes, but its members end at %zu", name, size, end);
            if (!r) break;
            name = r->name, size = r->size, end = 0;
        } else {
            if (r->offset != end) fail_msg("%s: a gap before%s", name, r->name);
            end = r->offset + r->size;
        }
    }
}

static int write_golden(void) {
    char line[256];
    FILE *f = fopen(golden, "w");
    if (!f) return 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        text_of(&rows[i], line, sizeof line);
        fprintf(f, "%s\n", line);
    }
    return fclose(f) != 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layout), cmocka_unit_test(test_no_padding)};
    const char *mode = getenv("ESPRESSO_GOLDEN");
    if (mode && !strcmp(mode, "write")) return write_golden();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
