/* test_file.c checks that written files are complete or absent: normally, on a full disk, when a writer dies, and when
 * several processes write one path. */
#include "tests/lib/test.h"
#include "espresso_impl/base/file.h"
#include <sys/resource.h>

static char folder[64], path[128];

static int setup(void **state) {
    if (folder_make(state)) return -1;
    snprintf(folder, sizeof folder, "%s", in_folder(""));
    snprintf(path, sizeof path, "%s", in_folder("f"));
    return 0;
}

static int names(void) { return test_count_files(folder, ""); }

static const char *content(const char *name) {
    static char text[64];
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

TEST(whole, setup, folder_remove) {
    struct stat st;
    esp__file f;
    assert_int_equal(esp__file_check(path), 0);
    assert_int_equal(names(), 0);
    const mode_t mask = umask(027);
    assert_int_equal(esp__file_replace(path, "one", 3), 0);
    umask(mask);
    assert_string_equal(content(path), "one");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(esp__file_open(&f, path), 0);
    esp__file_put(&f, "tw", 2);
    esp__file_put(&f, "o", 1);
    assert_string_equal(content(path), "one");
    assert_int_equal(esp__file_sync(&f), 0);
    assert_string_equal(content(path), "one");
    assert_int_equal(esp__file_rename(&f), 0);
    assert_string_equal(content(path), "two");
    esp__file_drop(&f);
    assert_int_equal(esp__file_open(&f, path), 0);
    esp__file_put(&f, "three", 5);
    esp__file_drop(&f);
    assert_string_equal(content(path), "two");
    assert_int_equal(names(), 1);
}

TEST(refused, setup, folder_remove) {
    char name[5000];
    assert_int_equal(esp__file_replace(folder, "x", 1), EISDIR);
    assert_int_equal(esp__file_check(folder), EISDIR);
    snprintf(name, sizeof name, "%s/no/f", folder);
    assert_int_equal(esp__file_replace(name, "x", 1), ENOENT);
    assert_int_equal(esp__file_check(name), ENOENT);
    memset(name, 'x', sizeof name);
    name[4090] = 0;
    assert_int_equal(esp__file_check(name), ENAMETOOLONG);
    assert_int_equal(names(), 0);
}

/* A limit of the file size simulates a full disk: write() takes some bytes, and then none. */
TEST(full_disk, setup, folder_remove) {
    static char large[1 << 17];
    const struct rlimit small = {1 << 16, RLIM_INFINITY}, all = {RLIM_INFINITY, RLIM_INFINITY};
    esp__file f;
    assert_int_equal(esp__file_replace(path, "old", 3), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const int once = esp__file_replace(path, large, sizeof large);
    int opened = esp__file_open(&f, path);
    for (int i = 0; i < 200; i++) esp__file_put(&f, large, 1000);
    const int pieces = esp__file_close(&f);
    setrlimit(RLIMIT_FSIZE, &all);
    assert_int_equal(once, EFBIG);
    assert_int_equal(opened, 0);
    assert_int_equal(pieces, EFBIG);
    assert_string_equal(content(path), "old");
    assert_int_equal(names(), 1);
    assert_int_equal(esp__file_write_all(open("/dev/full", O_WRONLY | O_CLOEXEC), "x", 1), ENOSPC);
    assert_int_equal(esp__file_replace("/dev/full", "x", 1), ENOSPC);
    assert_int_equal(esp__file_replace("/dev/null", "x", 1), 0);
    struct stat st;
    assert_true(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));
}

/* The next writer removes the temporary file of a killed one. */
TEST(killed, setup, folder_remove) {
    const pid_t child = child_fork(60);
    if (!child) {
        esp__file f;
        if (esp__file_open(&f, path)) _exit(1);
        esp__file_put(&f, "half", 4);
        fflush(f.to);
        raise(SIGKILL);
    }
    assert_int_equal(child_wait(child), -SIGKILL);
    assert_int_equal(names(), 1);
    assert_int_equal(esp__file_replace(path, "new", 3), 0);
    assert_string_equal(content(path), "new");
    assert_int_equal(names(), 1);
}

/* If two writers run at once, the file is complete, and has the content of the one that ends last. */
TEST(several, setup, folder_remove) {
    esp__file a, b;
    assert_int_equal(esp__file_open(&a, path), 0);
    assert_int_equal(esp__file_open(&b, path), 0);
    assert_string_not_equal(a.temporary, b.temporary);
    esp__file_put(&a, "a", 1);
    esp__file_put(&b, "b", 1);
    assert_int_equal(esp__file_sync(&a), 0);
    assert_int_equal(esp__file_replace(path, "c", 1), 0); /* a third writer leaves the other two's files alone */
    assert_int_equal(esp__file_close(&b), 0);
    assert_string_equal(content(path), "b");
    assert_int_equal(esp__file_rename(&a), 0);
    assert_string_equal(content(path), "a");
    assert_int_equal(names(), 1);
}

/* A link at the path stays a link. A link at the temporary name is not followed. */
TEST(links, setup, folder_remove) {
    char link[128], temporary[160], other[128];
    struct stat st;
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    snprintf(temporary, sizeof temporary, "%s.tmp-espresso", path);
    assert_int_equal(esp__file_replace(path, "one", 3), 0);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(esp__file_replace(link, "two", 3), 0);
    assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    assert_string_equal(content(path), "two");
    assert_int_equal(esp__file_replace(other, "keep", 4), 0);
    assert_int_equal(symlink(other, temporary), 0);
    assert_int_equal(esp__file_replace(path, "three", 5), 0);
    assert_string_equal(content(other), "keep");
    assert_string_equal(content(path), "three");
    assert_true(lstat(temporary, &st) == 0 && S_ISLNK(st.st_mode));
}

TEST(pipes, setup, folder_remove) {
    char got[8] = "";
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(esp__file_check(path), 0);
    assert_int_equal(esp__file_replace(path, "x", 1), ENXIO);
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_int_equal(esp__file_replace(path, "text", 4), 0);
    assert_int_equal(read(fd, got, sizeof got), 4);
    close(fd);
    assert_int_equal(names(), 1);
}

TEST(absolute, setup, folder_remove) {
    char out[PATH_MAX], want[PATH_MAX], here[PATH_MAX], far[PATH_MAX + 8];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(esp__path_absolute("x/y", out), 0);
    snprintf(want, sizeof want, "%s/x/y", folder);
    assert_string_equal(out, want);
    assert_int_equal(esp__path_absolute("/x", out), 0);
    assert_string_equal(out, "/x");
    memset(far, 'x', sizeof far);
    far[PATH_MAX - 1] = 0;
    assert_int_equal(esp__path_absolute(far, out), ENAMETOOLONG);
    assert_int_equal(chdir(here), 0);
}
