/* test.c keeps the list of a program's tests, and has functions that tests share (see test.h). */
#include "tests/lib/test.h"
#include <arpa/inet.h>
#include <sys/prctl.h>

enum { MOST = 128 };
static struct CMUnitTest tests[MOST];
static size_t n_tests;
static test_around group;

void test_add(const char *name, void (*body)(void **), test_around around) {
    if (n_tests == MOST) abort();
    tests[n_tests++] = (struct CMUnitTest){name, body, around.before, around.after, NULL};
}
void test_group(test_around around) { group = around; }
int test_main(void) { return _cmocka_run_group_tests("tests", tests, n_tests, group.before, group.after); }

int test_count_files(const char *folder, const char *part) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strstr(e->d_name, part);
    if (d) closedir(d);
    return n;
}

static char folder[64];
int folder_make(void **state) {
    snprintf(folder, sizeof folder, "/tmp/espresso-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}
int folder_remove(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}
const char *in_folder(const char *name) {
    static char path[8][512];
    static atomic_uint at;
    char *out = path[atomic_fetch_add(&at, 1) % 8];
    snprintf(out, sizeof *path, "%s%s%s", folder, *name ? "/" : "", name);
    return out;
}

char *file_text(const char *path) {
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t cap = 0;
    if (!f) return NULL;
    if (getdelim(&text, &cap, 0, f) < 0) {
        free(text);
        text = calloc(1, 1);
    }
    fclose(f);
    return text;
}

int count_of(const char *text, const char *what) {
    int n = 0;
    for (; text && (text = strstr(text, what)); text++) n++;
    return n;
}

/* TCP ports are below those that Linux gives to outgoing connections, so that none of them takes the port meanwhile. */
const char *test_root(bool tcp) {
    static char root[64];
    static unsigned serial;
    struct sockaddr_in a = {.sin_family = AF_INET};
    const int s = tcp ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (tcp && s < 0) abort();
    do {
        a.sin_port = htons((uint16_t)(20000 + ((unsigned)getpid() * 7 + serial++) % 12000));
    } while (tcp && bind(s, (struct sockaddr *)&a, sizeof a));
    if (tcp)
        snprintf(root, sizeof root, "127.0.0.1:%u", ntohs(a.sin_port));
    else
        snprintf(root, sizeof root, "unix:test-%d-%u", (int)getpid(), serial);
    if (tcp) close(s);
    return root;
}

void *test_shared(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

pid_t child_fork(unsigned seconds) {
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) abort();
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(seconds);
    return 0;
}
int child_wait(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) != child)
        if (errno != EINTR) abort();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void run_threads(int n, void *(*body)(void *), void *arg, size_t bytes) {
    pthread_t threads[64];
    if (n > 64) abort();
    for (int k = 0; k < n; k++)
        if (pthread_create(&threads[k], NULL, body, (char *)arg + (size_t)k * bytes)) abort();
    for (int k = 0; k < n; k++) pthread_join(threads[k], NULL);
}

void *test_host_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    void *p = NULL;
    return posix_memalign(&p, align < 64 ? 64 : align, bytes ? bytes : 1) ? NULL : p;
}
void test_host_free(void *user, esp_device d, void *p, uint64_t bytes) { free(p); }

float test_value(esp_dtype d, const void *data, uint64_t i) {
    const uint16_t h = d == ESP_F32 ? 0 : ((const uint16_t *)data)[i];
    if (d == ESP_F32) return ((const float *)data)[i];
    return d == ESP_F16 ? half_from_f16(h) : bits_float((uint32_t)h << 16);
}
void test_value_set(esp_dtype d, void *data, uint64_t i, float x) {
    if (d == ESP_F32)
        ((float *)data)[i] = x;
    else
        ((uint16_t *)data)[i] = (uint16_t)(d == ESP_F16 ? half_to_f16(x) : half_to_bf16(x));
}
