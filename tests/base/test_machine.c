/* test_machine.c checks the number of cores that a process may use, with made-up control groups (cgroups) of both
 * versions, and facts about this machine. */
#include "tests/lib/test.h"
#include "espresso_impl/base/machine.h"
#include <sched.h>

static char root[64];

static int setup(void **state) {
    if (folder_make(state)) return -1;
    snprintf(root, sizeof root, "%s", in_folder(""));
    return 0;
}

static void put(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

TEST(bound, setup, folder_remove) {
    cpu_set_t before, one;
    int first = 0;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(esp__cores_bound(), CPU_COUNT(&before));
    while (!CPU_ISSET(first, &before)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(esp__cores(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_in_range(esp__cores(), 1, (unsigned)CPU_COUNT(&before));
}

TEST(version_2, setup, folder_remove) {
    assert_int_equal(esp__cores_given(root), 0);
    put("proc/self/cgroup", "0::/\n");
    assert_int_equal(esp__cores_given(root), 0);
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_int_equal(esp__cores_given(root), 0);
    put("sys/fs/cgroup/cpu.max", "300000 100000\n");
    assert_int_equal(esp__cores_given(root), 3);
    put("sys/fs/cgroup/cpu.max", "150000 100000\n");
    assert_int_equal(esp__cores_given(root), 2);
    put("sys/fs/cgroup/cpu.max", "1000 100000\n");
    assert_int_equal(esp__cores_given(root), 1);
    put("proc/self/cgroup", "0::/a.slice/b\n");
    put("sys/fs/cgroup/cpu.max", "900000 100000\n");
    put("sys/fs/cgroup/a.slice/cpu.max", "400000 100000\n");
    put("sys/fs/cgroup/a.slice/b/cpu.max", "max 100000\n");
    assert_int_equal(esp__cores_given(root), 4);
    put("sys/fs/cgroup/a.slice/b/cpu.max", "200000 100000\n");
    assert_int_equal(esp__cores_given(root), 2);
    put("proc/self/cgroup", "0::/../b\n");
    assert_int_equal(esp__cores_given(root), 9);
    put("sys/fs/cgroup/cpu.max", "nonsense\n");
    assert_int_equal(esp__cores_given(root), 0);
}

TEST(version_1, setup, folder_remove) {
    put("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/docker/7\n1:name=systemd:/\n0::/\n");
    put("sys/fs/cgroup/memory/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/memory/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_int_equal(esp__cores_given(root), 0);
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
    assert_int_equal(esp__cores_given(root), 3);
    put("sys/fs/cgroup/cpu,cpuacct/docker/7/cpu.cfs_quota_us", "200000\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/7/cpu.cfs_period_us", "100000\n");
    assert_int_equal(esp__cores_given(root), 2);
}

TEST(facts, setup, folder_remove) {
    char name[64];
    const esp__machine_time t = esp__machine_time_now();
    assert_true(t.all > 0 && t.busy > 0 && t.busy + t.stolen <= t.all && t.own > 0 && t.own < t.busy);
    assert_true(esp__machine_memory() > 1 << 20);
    esp__program_name(name, sizeof name);
    assert_string_equal(name, program_invocation_short_name);
    char boot[ESP__BOOT_ID], again[ESP__BOOT_ID];
    esp__boot_id(boot);
    esp__boot_id(again);
    assert_true(!*boot || strlen(boot) == 36);
    assert_string_equal(boot, again);
    char tiny[5];
    esp__program_name(tiny, sizeof tiny);
    assert_memory_equal(tiny, name, 4);
    assert_int_equal(strlen(tiny), 4);
    esp__cpu_name(name, sizeof name);
    assert_null(strchr(name, '\n'));
}
