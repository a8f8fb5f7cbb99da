/* test_fake_steps.c checks that training steps with gradients on the fake device give the same bits as with
 * gradients in host memory. */
/* runs: tsan-long */
#include "tests/lib/test.h"
#include "tests/device/device_job.h"

TEST(test_raw) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int wait = 0; wait < 4; wait++) {
            device_job j = job_of("none", FLAT_RAW, wait == 1 ? ESP_F16 : wait == 2 ? ESP_BF16 : ESP_F32, kind);
            j.wait = wait;
            assert_int_equal(same_on_device(&j, 2, 2, 0), 0);
        }
    for (esp_dtype d = ESP_F32; d <= ESP_BF16; d++) {
        device_job j = job_of("none", TREE_RAW, d, MIXED);
        assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
        j = job_of("none", TREE_ROOT, d, CHUNKS);
        assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
        j = job_of("none", FLAT_RAW, d, MIXED);
        assert_int_equal(same_on_device(&j, 1, 1, 0), 0);
        assert_int_equal(same_on_device(&j, 3, 3, 0), 0);
    }
}

TEST(test_codecs) {
    static const char *const options[] = {
        FLAT_COMP,     FLAT_GPU,   TREE_COMP,  TREE_GPU,
        TREE_REPLICAS, TREE_THREE, TREE_MIXED, "comp@gpu > flat.allreduce > decomp@gpu"};
    static const char *const codecs[] = {"none", "topk:ratio=0.1", "none:feedback=residual"};
    int n = 0;
    for (size_t o = 0; o < sizeof options / sizeof *options; o++)
        for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
            device_job j = job_of(codecs[c], options[o], (esp_dtype)(ESP_F32 + n % 3), n % KINDS);
            if (c == 1 && o == 7) continue; /* the payloads of topk cannot be summed */
            j.wait = n % 4;
            j.nonfinite = n % 2;
            assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
            n++;
        }
}

/* Each rank gets a part of the mean, of float or 16-bit gradients. Then all ranks gather the parts, uncompressed or
 * compressed by fp16. */
TEST(test_sharded) {
    static const char *const options[] = {
        "flat.reduce_scatter", "intra.reduce_scatter > inter.reduce_scatter", "comp@gpu > flat.alltoall > decomp@gpu",
        "comp@gpu > intra.alltoall > decomp@cpu > comp@cpu > inter.alltoall > decomp@gpu"};
    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        device_job j = job_of("topk:ratio=0.1", options[o], ESP_F32, WHOLE);
        j.task.tensor_flags = ESP_SHARD;
        j.gather = o % 2 ? "fp16" : NULL;
        j.devices = o == 1 ? 2 : 1;
        j.wait = (int)o;
        assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
        j.task.dtype = o % 2 ? ESP_F16 : ESP_BF16;
        assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
    }
}

#ifndef DEVICE_IS_CUDA
/* Codecs that compress several tensors in one call (flag ESP_CODEC_LISTS) must give the same results as others. */
TEST(test_lists) {
    static const char *const codecs[] = {"none", "none:feedback=residual", "topk:ratio=0.1"};
    for (int other = 0; other < 2; other++)
        for (int c = 0; c < 3; c++) {
            device_job j =
                job_of(codecs[c], c == 1 ? "comp@gpu > flat.alltoall > decomp@gpu" : TREE_MIXED, ESP_F32, WHOLE);
            const int lists = (c == 2) != other;
            if (c == 1) j.task.tensor_flags = ESP_SHARD;
            j.plugin = other ? fake_plugin_lists : fake_plugin;
            j.wait = c;
            fake_list_calls = 0;
            assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
            assert_int_equal(fake_list_calls != 0, lists);
        }
}

TEST(test_codecs_elsewhere) {
    device_job j = job_of("topk:ratio=0.1", TREE_MIXED, ESP_F32, MIXED);
    j.plugin = fake_plugin_bare;
    assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
}

#endif
TEST(test_devices_together) {
    device_job j = job_of("topk:ratio=0.1", TREE_GPU, ESP_F32, CHUNKS);
    j.devices = 2;
    for (j.wait = 0; j.wait < 4; j.wait++) assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
}

#ifndef DEVICE_IS_CUDA
/* Checks that the host crashes if it accesses the fake device's memory, since the other tests rely on it. */
TEST(test_out_of_reach) {
    for (int writes = 0; writes < 2; writes++) {
        const pid_t child = child_fork(60);
        if (!child) {
            volatile uint8_t *p = fake_take(100, 0);
            signal(SIGSEGV, SIG_DFL); /* handlers of cmocka or a sanitizer must not run here */
            signal(SIGBUS, SIG_DFL);
            if (writes)
                p[5] = 1;
            else
                (void)p[5];
            _exit(0);
        }
        const int ended = child_wait(child);
        assert_true(ended == -SIGSEGV || ended == -SIGBUS);
    }
}

#endif
