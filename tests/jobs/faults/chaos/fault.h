/* fault.h has the faults that a rank causes itself. Ranks are killed and stopped by the driver. */
#ifndef CHAOS_FAULT_H
#define CHAOS_FAULT_H
#include "self.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- limits ---- */
static inline void limit_set(int what, uint64_t most) {
    struct rlimit l;
    if (getrlimit((__rlimit_resource_t)what, &l) != 0) return;
    l.rlim_cur = most < l.rlim_max ? most : l.rlim_max;
    setrlimit((__rlimit_resource_t)what, &l);
}
/* Limits the address space to its present size plus `more` bytes. */
static inline void limit_memory(uint64_t more) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%lu", &pages) == 1) limit_set(RLIMIT_AS, pages * (uint64_t)sysconf(_SC_PAGESIZE) + more);
    if (f) fclose(f);
}
/* Makes memfd_create fail with `error` from now on. The second job of the process must work without it, or fail. */
static inline void refuse_memfd(uint32_t error) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static inline void fault_before_open(self *x) {
    if (!is_victim(x)) return;
    if (x->p->kind == MEMORY && x->p->variant == BEFORE_OPEN) limit_memory(x->p->amount);
    if (x->p->kind == NO_MEMFD && x->p->variant) refuse_memfd(x->p->amount);
    if (x->p->kind == NO_MEMFD && !x->p->variant)
        limit_set(RLIMIT_NOFILE, (uint64_t)test_count_files("/proc/self/fd", "") - 1 + x->p->amount);
    if (x->p->kind == VERSION) chaos_version = "9.9.9";
}
static inline void fault_before_start(self *x) {
    if (is_victim(x) && x->p->kind == MEMORY && x->p->variant == BEFORE_START) limit_memory(x->p->amount);
}
static inline void fault_over(self *x) {
    limit_set(RLIMIT_AS, RLIM_INFINITY);
    limit_set(RLIMIT_NOFILE, 1024);
    limit_set(RLIMIT_FSIZE, RLIM_INFINITY);
    chaos_version = ESPRESSO_VERSION;
}

/* ---- full disk ---- */
static inline void disk_folder(const self *x, char out[PATH_ROOM + 64]) {
    snprintf(out, PATH_ROOM + 64, "%.*s/r%d", PATH_ROOM - 1, x->b->folder, (int)x->ids[x->rank]);
}
/* Mounts a small file system on the victim's folder. Returns 0 if that is not allowed. */
static inline int disk_small(self *x) {
    char folder[PATH_ROOM + 64];
    disk_folder(x, folder);
    return syscall(SYS_unshare, 0x00020000 /* CLONE_NEWNS */) == 0 &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("none", folder, "tmpfs", 0, "size=6m") == 0;
}
static inline void disk_fill(self *x, uint64_t room) {
    static const char zeros[4096];
    char path[PATH_ROOM + 80];
    off_t size = 0;
    disk_folder(x, path);
    strcat(path, "/filler");
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (ssize_t n; fd >= 0 && size < 8 << 20 && (n = write(fd, zeros, sizeof zeros)) > 0;) size += n;
    if (fd >= 0 && ftruncate(fd, size > (off_t)room ? size - (off_t)room : 0) != 0) wrong(x, "cannot cut %s", path);
    if (fd >= 0) close(fd);
}
static inline void disk_free(self *x) {
    char path[PATH_ROOM + 80];
    disk_folder(x, path);
    strcat(path, "/filler");
    unlink(path);
}

/* ---- states ---- */
static inline esp_status state_hash_put(void *user, void *data, uint64_t bytes) {
    /* byte by byte, since the state may arrive in pieces of any size */
    uint64_t h = *(uint64_t *)user;
    for (uint64_t i = 0; i < bytes; i++) h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3ull;
    *(uint64_t *)user = h;
    return ESP_OK;
}
static inline uint64_t state_file_hash(const char *folder, int32_t rank) {
    char path[PATH_ROOM + 128];
    uint8_t piece[4096];
    uint64_t h = 1;
    snprintf(path, sizeof path, "%s/state.r%dof%d", folder, (int)rank, RANKS);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) state_hash_put(&h, piece, n);
    fclose(f);
    return h;
}

/* Saves the state to a disk that may be full. The driver checks that it is saved on all ranks or on none. */
static inline void disk_step(self *x, uint32_t step, int small) {
    char folder[PATH_ROOM + 64], path[PATH_ROOM + 80];
    disk_folder(x, folder);
    snprintf(path, sizeof path, "%s/state", folder);
    if (step == WARM_STEPS && esp_state_save(x->ctx, path)) wrong(x, "first save: %.200s", esp_last_error(x->ctx));
    if (step == WARM_STEPS + 2) {
        const uint64_t before = state_file_hash(folder, x->rank);
        if (is_victim(x) && small) disk_fill(x, x->p->amount);
        if (is_victim(x) && !small) limit_set(RLIMIT_FSIZE, x->p->amount);
        const esp_status s = esp_state_save(x->ctx, path);
        const uint64_t after = state_file_hash(folder, x->rank);
        atomic_store(&x->me->saved[1], s ? 1 : 2);
        if (s && before != after) wrong(x, "a save failed (%.200s), and changed the file", esp_last_error(x->ctx));
        if (!s && before == after) wrong(x, "a save succeeded, and left the file of the save before");
        if (s && is_victim(x) && !error_has(x->ctx, "cannot write the state"))
            wrong(x, "full disk: %.200s", esp_last_error(x->ctx));
        if (s && !is_victim(x)) {
            char who[16];
            snprintf(who, sizeof who, "rank %d", (int)x->p->victim);
            if (!error_has(x->ctx, who)) wrong(x, "the other rank's disk is full: %.200s", esp_last_error(x->ctx));
        }
        if (test_count_files(folder, ".tmp-espresso")) wrong(x, "a temporary file is left");
        if (is_victim(x)) disk_free(x);
        limit_set(RLIMIT_FSIZE, RLIM_INFINITY);
    }
    if (step != WARM_STEPS + 4) return;
    if (esp_state_save(x->ctx, path)) wrong(x, "save after the disk was full: %.200s", esp_last_error(x->ctx));
    if (esp_state_load(x->ctx, path)) wrong(x, "load after the disk was full: %.200s", esp_last_error(x->ctx));
}

/* Saves the state in a step. The driver kills a rank during one of the saves. */
static inline esp_status save_step(self *x) {
    char folder[PATH_ROOM + 64], path[PATH_ROOM + 80];
    uint64_t h = 1;
    disk_folder(x, folder);
    snprintf(path, sizeof path, "%s/state", folder);
    esp_status s = esp_state_write(x->ctx, state_hash_put, &h);
    if (s) return s;
    atomic_store(&x->me->saved[0], atomic_load(&x->me->saved[1]));
    atomic_store(&x->me->saved[1], h);
    return esp_state_save(x->ctx, path);
}

/* ---- wrong calls ---- */
static inline void must_refuse(self *x, esp_status s, const char *call) {
    if (s != ESP_E_STATE) wrong(x, "%s returned %s: %.200s", call, esp_status_name(s), esp_last_error(x->ctx));
}
/* Makes wrong calls on the victim, which must be refused without effect on others. `pushed` tensors were pushed
 * before. */
static inline void refused_calls(self *x, uint32_t pushed) {
    const esp_stream here = ESP_ZERO;
    uint32_t id;
    esp_tensor_desc d = {.name = "late", .count = 1};
    if (x->p->variant == TWO_PUSHES && pushed == 1)
        must_refuse(x, esp_push(x->ctx, 0, x->grad[0], here), "a second push");
    if (x->p->variant == WAIT_UNPUSHED && pushed == 0) must_refuse(x, esp_wait(x->ctx, 0), "a wait before the push");
    if (x->p->variant == STRATEGY_IN_STEP && pushed == 1)
        must_refuse(x, esp_strategy_set(x->ctx, "fp32"), "a change of strategy in a step");
    if (x->p->variant != START_TWICE || pushed != 2) return;
    must_refuse(x, esp_start(x->ctx), "a second esp_start");
    must_refuse(x, esp_tensor_add(x->ctx, &d, &id), "esp_tensor_add after esp_start");
}
/* Makes calls on the victim that do not match those of other ranks. Sets *instead if they take the place of the
 * step. */
static inline esp_status unfit_calls(self *x, int *instead) {
    float some[200] = {0};
    esp_status s = ESP_OK;
    switch (x->p->variant) {
    case BARRIER_FOR_STEP: *instead = is_victim(x); return *instead ? esp_barrier(x->ctx) : ESP_OK;
    case OTHER_COUNT: return esp_allreduce(x->ctx, some, is_victim(x) ? 100 : 200);
    case OTHER_CALL: return is_victim(x) ? esp_broadcast(x->ctx, some, 400, 0) : esp_allreduce(x->ctx, some, 100);
    case STRATEGY_ALONE:
        if (!is_victim(x)) return ESP_OK;
        char *text = strdup(esp_strategy_text(x->ctx));
        s = esp_strategy_set(x->ctx, text);
        free(text);
        return s;
    default: return ESP_OK;
    }
}
#endif
