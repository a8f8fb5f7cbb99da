/* test_check.c: `espresso plugins --check`: what is built in obeys every rule, and each fault of a faulty plugin is found by the check
 * that is there for it, in words that say what to do. */
/* runs: slow asan-long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#define SPAWN_LIMIT_MS 100000
#include "spawn.h"

static const char *folder(void) { /* of the faulty plugin: `make` put it there */
    static char path[4096];
    const char *build = getenv("ESPRESSO_BUILD");
    snprintf(path, sizeof path, "%s/tests/abi", build ? build : "./build");
    return path;
}

static void said(const spawned *s, int k, const char *text) {
    if (!spawn_said(s, k, text)) fail_msg("not said: \"%s\"\nstdout:\n%s\nstderr:\n%s", text, s->text[0], s->text[1]);
}

static void built_in(void **state) {
    static const char *const specs[][2] = {{"none", "codec none (built in)\n"},
                                           {"loop", "backend loop (built in)\n  ranks are threads"},
                                           {"shm", "backend shm (built in)\n  ranks are processes\n"}};
    (void)state; /* all of them: conformance/test_codecs.c, backends/test_rules.c */
    for (int i = 0; i < 3; i++) {
        spawned s = SPAWN("plugins", "--check", specs[i][0]);
        said(&s, 0, specs[i][1]);
        said(&s, 0, " 0 failed,");
        assert_int_equal(s.status, 0);
        spawn_free(&s);
    }
}

/* Checks a spec of the faulty plugin: one check fails, and says so; or none. */
static void expect(const char *spec, const char *check, const char *advice) {
    static int n; /* every third, unless all are wanted */
    if (!getenv("TEST_ALL") && n++ % 3) return;
    char line[64];
    const int codec =
        !strncmp(spec, "faulty:", 7); /* of which the file has the name; the backend is found in it once it is loaded */
    spawned s = codec ? SPAWN("plugins", "--check", "--path", folder(), spec)
                      : SPAWN("plugins", "--check", "--path", folder(), "faulty", spec);
    snprintf(line, sizeof line, "FAILED   %-12s", check);
    assert_int_equal(s.status, 1);
    said(&s, 0, line);
    said(&s, 0, advice);
    said(&s, 0, " 1 failed,");
    spawn_free(&s);
}

static void codec_faults(void **state) {
    (void)state;
    expect("faulty:fault=unknown", "parameters", "took the unknown parameter");
    expect("faulty:fault=shrinks", "bound", "bound() falls to 64 bytes");
    expect("faulty:fault=longer", "bound", "wrote behind struct_size");
    expect("faulty:fault=capacity", "small", "look at the capacity first");
    expect("faulty:fault=ignores", "many", "multiply by scale");
    expect("faulty:fault=order", "corrupt", "written before: check all payloads first");
    expect("faulty:fault=header", "corrupt", "call esp_payload_read");
    expect("faulty:fault=crash", "corrupt", "crashed while decoding");
    expect("faulty:fault=shared", "threads", "self must not change in compress");
    expect("faulty:fault=linear", "reduce", "bodies must be linear");
    expect("faulty:fault=size", "model", "model() says");
    expect("faulty:fault=round", "lossy", "set ESP_MODEL_LOSSY");
    expect("faulty:fault=seed", "seed", "leave ESP_CODEC_DETERMINISTIC out");
    expect("faulty:fault=leak", "memory", "leaves 1 of the allocations of open()");
    expect("faulty:fault=poor", "memory", "not ESP_E_NOMEM");
    expect("faulty:fault=lists", "lists", "part 1 of a list has another payload than alone");
    expect("faulty:fault=error", "error", "model() says that the error is 0.5");
    expect("faulty:fault=params", "parameters", "which the table's params give as its defaults");
    expect("faulty:fault=among", "one of many", "check all payloads first");
}

/* These break several rules at once. */
static void deep_faults(void **state) {
    static const char *const faults[][3] = {{"count", "FAILED   inputs ", "the header's count"},
                                            {"nan", "FAILED   inputs ", "lacks ESP_PAYLOAD_NONFINITE"},
                                            {"loses", "FAILED   inputs ", "what the payload does not carry"},
                                            {"clock", "FAILED   same ", "the same input gave other bytes"}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "faulty:fault=%s", faults[i][0]);
        spawned s = SPAWN("plugins", "--check", "--path", folder(), spec);
        assert_int_equal(s.status, 1);
        said(&s, 0, faults[i][1]);
        said(&s, 0, faults[i][2]);
        spawn_free(&s);
    }
}

static void backend_faults(void **state) {
    (void)state;
    expect("faultynet:fault=slots", "slots", "is wrong");
    expect("faultynet:fault=bits", "same bits", "sum in the same order on all ranks");
    expect("faultynet:fault=abort", "abort", "the request is still pending");
    expect("faultynet:fault=sleep", "sleep", "wake() did not end progress()");
    expect("faultynet:fault=traffic", "traffic", "traffic() says 0 came");
    expect("faultynet:fault=varlen", "varlen", "leave ESP_BACKEND_VARLEN out");
    expect("faultynet:fault=scale", "scale", "leave ESP_BACKEND_SCALE out");
    expect("faultynet:fault=paced", "paced", "these parameters are wrong");
    spawned lazy = SPAWN("plugins", "--check", "--path", folder(), "lazy");
    assert_int_equal(lazy.status, 1);
    said(&lazy, 0, "FAILED   alone ");
    said(&lazy, 0, "set ESP_BACKEND_NEEDS_PROGRESS");
    said(&lazy, 0, " 1 failed,");
    spawn_free(&lazy);
    spawned s = SPAWN("plugins", "--check", "--path", folder(), "faulty", "faultynet:fault=sum");
    assert_int_equal(s.status, 1);
    said(&s, 0, "FAILED   numbers ");
    said(&s, 0, "allreduce of 1 f32: element 0 is not");
    spawn_free(&s);
}

static void a_file(void **state) {
    char path[5000];
    (void)state;
    snprintf(path, sizeof path, "%s/libespresso-faulty.so", folder());
    spawned s = SPAWN("plugins", "--check", path);
    said(&s, 0, "codec faulty (");
    said(&s, 0, "backend faultynet (");
    said(&s, 0, " 0 failed,");
    assert_int_equal(s.status, 0);
    spawn_free(&s);
    s = SPAWN("plugins", "--check", "no_such_codec");
    assert_int_equal(s.status, 1);
    said(&s, 1, "no plugin \"no_such_codec\"");
    spawn_free(&s);
}

int main(void) {
#ifndef __SANITIZE_ADDRESS__ /* the test build's command, whose largest collectives are smaller */
    char command[4096];
    const char *build = getenv("ESPRESSO_BUILD");
    snprintf(command, sizeof command, "%s/tests/bin/espresso", build ? build : "./build");
    setenv("ESPRESSO_COMMAND", command, 1);
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_in),       cmocka_unit_test(codec_faults), cmocka_unit_test(deep_faults),
        cmocka_unit_test(backend_faults), cmocka_unit_test(a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
