/* world.h is a part of fake.c, the stand-in for NCCL. The ranks of a communicator, which are threads or processes,
 * exchange data through files in a folder in shared memory, so that a killed rank leaves nothing locked. */
#ifndef FAKE_WORLD_H
#define FAKE_WORLD_H
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { RANKS = 64, WORLD_NAME = 96, WORLD_OPEN = 4096 };

typedef struct world_shared {
    int joined, left, lost, device[RANKS];
    int32_t process[RANKS]; /* process id; 0 before the rank joins and after it leaves */
    /* Each rank has finished all collectives with smaller numbers, so that the others may delete their files. */
    uint64_t done[RANKS];
} world_shared;
typedef struct world {
    char folder[WORLD_NAME];
    world_shared *all;
    int rank, n;
    uint64_t kept;
    uint64_t sent[RANKS], got[RANKS];
    /* did[number % WORLD_OPEN] is 1 if a collective has ended before an earlier one, which runs on another stream. */
    uint8_t did[WORLD_OPEN];
} world;

/* A file's header: the call whose data follows. */
typedef struct world_post {
    int kind, type, op, root;
    float scale;
    uint64_t count, bytes;
} world_post;

static void world_name(char out[WORLD_NAME]) {
    static uint64_t number;
    const char *dir = getenv("TMPDIR");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (!dir || !*dir || strlen(dir) > 40) dir = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(out, WORLD_NAME, "%.40s/fake-nccl-%d-%u-%lx%lx", dir, (int)getpid(),
             (unsigned)__atomic_add_fetch(&number, 1, __ATOMIC_SEQ_CST), (unsigned long)now.tv_sec,
             (unsigned long)now.tv_nsec);
}
/* Returns 0 if the rank has joined, otherwise -1. */
static int world_join(world *w, const char *folder, int rank, int n, int device) {
    char path[WORLD_NAME + 16];
    int fd = -1;
    snprintf(w->folder, sizeof w->folder, "%.95s", folder);
    snprintf(path, sizeof path, "%.95s/ranks", folder);
    w->rank = rank, w->n = n;
    for (int i = 0; i < 100 && fd < 0; i++) { /* a rank that gives up may remove the folder meanwhile */
        if (mkdir(folder, 0700) && errno != EEXIST) return -1;
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    }
    if (fd < 0 || ftruncate(fd, sizeof *w->all)) return -1;
    w->all = (world_shared *)mmap(NULL, sizeof *w->all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (w->all == MAP_FAILED) return -1;
    w->all->device[rank] = device;
    __atomic_store_n(&w->all->process[rank], (int32_t)getpid(), __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&w->all->joined, 1, __ATOMIC_SEQ_CST);
    return 0;
}
static int world_joined(const world *w) { return __atomic_load_n(&w->all->joined, __ATOMIC_SEQ_CST); }

/* Leaves the communicator. The last rank removes the folder. */
static void world_leave(world *w) {
    int others = 0;
    __atomic_store_n(&w->all->process[w->rank], 0, __ATOMIC_SEQ_CST);
    const int all = __atomic_add_fetch(&w->all->left, 1, __ATOMIC_SEQ_CST) == world_joined(w);
    for (int q = 0; q < w->n; q++) {
        const int32_t process = __atomic_load_n(&w->all->process[q], __ATOMIC_SEQ_CST);
        others += process && (kill(process, 0) == 0 || errno != ESRCH);
    }
    munmap(w->all, sizeof *w->all);
    DIR *d = all || !others ? opendir(w->folder) : NULL;
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.') unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(w->folder);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
static void world_path(const world *w, char out[WORLD_NAME + 64], uint64_t number, int from, int to) {
    if (to < 0)
        snprintf(out, WORLD_NAME + 64, "%s/%llu.%d", w->folder, (unsigned long long)number, from);
    else
        snprintf(out, WORLD_NAME + 64, "%s/m%llu.%d.%d", w->folder, (unsigned long long)number, from, to);
}
/* Writes a file for rank `to`, or for all ranks if `to` is -1. */
static void world_post_write(world *w, uint64_t number, int to, const world_post *p, const void *bytes) {
    char path[WORLD_NAME + 64], hidden[WORLD_NAME + 68];
    world_path(w, path, number, w->rank, to);
    snprintf(hidden, sizeof hidden, "%s.new", path);
    const int fd = open(hidden, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    uint64_t at = 0;
    if (fd < 0 || write(fd, p, sizeof *p) != (ssize_t)sizeof *p) fake_wrong("%s: %s", hidden, strerror(errno));
    while (at < p->bytes) {
        const ssize_t n = write(fd, (const uint8_t *)bytes + at, p->bytes - at);
        if (n <= 0) fake_wrong("%s: %s", hidden, strerror(errno));
        at += (uint64_t)n;
    }
    close(fd);
    if (rename(hidden, path)) fake_wrong("%s: %s", path, strerror(errno));
}
static int world_post_there(const world *w, uint64_t number, int from, int to) {
    char path[WORLD_NAME + 64];
    world_path(w, path, number, from, to);
    return access(path, R_OK) == 0;
}
/* Maps the file of rank `from`. Returns NULL if it does not exist yet. */
static const world_post *world_post_read(const world *w, uint64_t number, int from, int to) {
    char path[WORLD_NAME + 64];
    struct stat s;
    world_path(w, path, number, from, to);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    if (fstat(fd, &s)) fake_wrong("%s: %s", path, strerror(errno));
    void *p = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) fake_wrong("%s: %s", path, strerror(errno));
    return (const world_post *)p;
}
static void world_post_end(const world_post *p) {
    if (p) munmap((void *)(uintptr_t)p, sizeof *p + p->bytes);
}
static void world_message_took(world *w, int from) {
    char path[WORLD_NAME + 64];
    world_path(w, path, w->got[from]++, from, w->rank);
    unlink(path);
}
/* Records that this rank has finished a collective, and deletes its files that all ranks have read. */
static void world_did(world *w, uint64_t number) {
    char path[WORLD_NAME + 64];
    uint64_t least = w->all->done[w->rank];
    w->did[number % WORLD_OPEN] = 1;
    for (; w->did[least % WORLD_OPEN]; least++) w->did[least % WORLD_OPEN] = 0;
    __atomic_store_n(&w->all->done[w->rank], least, __ATOMIC_SEQ_CST);
    for (int q = 0; q < w->n; q++) {
        const uint64_t done = __atomic_load_n(&w->all->done[q], __ATOMIC_SEQ_CST);
        if (done < least) least = done;
    }
    for (; w->kept < least; w->kept++) {
        world_path(w, path, w->kept, w->rank, -1);
        unlink(path);
    }
}
#endif
