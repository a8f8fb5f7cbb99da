/* test_top.c: `espresso top`: what it shows of a statistics file, once and on a terminal, while the file grows, is cut off or
 * replaced, and that the terminal is as it was afterwards. */
/* runs: quiet */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "spawn.h"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>

int posix_openpt(int flags);
int grantpt(int fd);
int unlockpt(int fd);
char *ptsname(int fd);

static char path[64];
static int setup(void **state) {
    (void)state;
    snprintf(path, sizeof path, "/tmp/test_top_%d.jsonl", (int)getpid());
    unlink(path);
    setenv("LC_ALL", "C", 1);
    setenv("TERM", "xterm", 1);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------------------------------------- */
static void put(const char *mode, const char *text) {
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static const char header[] =
    "{\"kind\":\"header\",\"time\":100.5,\"version\":1,\"program\":\"trainer\",\"host\":\"box\",\"pid\":77,\"rank\":0,"
    "\"ranks\":4,\"machines\":2,\"cores\":2,\"backend\":\"shm\",\"link\":\"1gbit\",\"asked_strategy\":\"auto\",\"every_"
    "s\":1,"
    "\"strategy\":\"00000000000000aa\",\"codecs\":[],\"tensors\":[{\"name\":\"fc1.weight\",\"elements\":1000000,"
    "\"dtype\":"
    "\"f32\"},{\"name\":\"fc2.weight\",\"elements\":2000,\"dtype\":\"f32\"}]}\n"
    "{\"kind\":\"strategy\",\"time\":101,\"step\":0,\"strategy\":\"00000000000000aa\",\"units\":2,\"compressed_units\":"
    "1,"
    "\"codecs\":[\"dgc:ratio=0.01\"],\"text\":\"espresso-strategy 1\\n\"}\n";

static const char *sample(int step, double median) {
    static char text[1024];
    snprintf(text, sizeof text,
             "{\"kind\":\"sample\",\"time\":%d.0,\"step\":%d,\"steps\":10,\"step_us\":{\"median\":%.1f,\"p90\":%.1f,"
             "\"last\":"
             "2500},\"backward_us\":1000,\"exposed_communication_us\":500,\"exposed_compression_us\":40,\"lane_us\":{"
             "\"compress\":200,\"decompress\":20,\"intra\":300,\"inter\":1500},\"step_bytes\":{\"intra\":1000,"
             "\"inter\":2500000},"
             "\"bytes\":{\"intra\":90000,\"inter\":225000000},\"nonfinite\":0,\"memory_bytes\":5000000,\"strategy\":"
             "\"00000000000000aa\",\"phase\":\"watching\",\"loss\":2.53125,\"predicted_us\":14377,\"difference\":\"+1."
             "000 ms a step: "
             "backward +0.500\",\"tensors\":[{\"name\":\"fc2.weight\",\"error\":0.125,"
             "\"feedback\":1.5,"
             "\"samples\":3}]}\n",
             100 + step, step, median, median * 1.25);
    return text;
}

static void shows(const spawned *s, const char *what) {
    if (!spawn_said(s, 0, what)) fail_msg("not shown: %s\nin:\n%s", what, s->text[0]);
}

/* ---- once -------------------------------------------------------------------------------------------------------------------- */
static void a_snapshot(void **state) {
    (void)state;
    put("w", header);
    put("a", sample(10, 2000));
    put("a", sample(20, 4000));
    for (int k = 0; k < 2; k++) { /* a pipe needs no --once */
        spawned s = k ? SPAWN("top", path) : SPAWN("top", "--once", path);
        assert_int_equal(s.status, 0);
        shows(&s, "trainer: 4 rank(s) on 2 machine(s), shm 1gbit; rank 0, pid 77 on box\n");
        shows(&s, "step 20; no news for ");
        shows(&s, "strategy 00000000000000aa since step 0 (1 so far), asked for: auto; autopilot: watching\n");
        shows(&s, "loss 2.531\n");
        shows(&s, "predicted 14.38 ms a step: +1.000 ms a step: backward +0.500\n");
        shows(&s, "1 of 2 units compressed: dgc:ratio=0.01\n");
        shows(&s, "step time    4.000 ms, p90 5.000 ms, last 2.500 ms\n             _#\n");
        shows(&s, "medians of the last 2 intervals, 2.000 ms to 4.000 ms\n");
        shows(&s, "exposed      communication 500.0 us (12%), compression 40.00 us (1%)\n");
        shows(&s, "inter        1.500 ms   38% ###############.");
        shows(&s, "inter         2.50 MB a step, 225 MB in all\n");
        shows(&s, "fc2.weight                                 2.00 k     0.1250          1.5\n");
        assert_null(strstr(s.text[0], "\033"));
        assert_null(strstr(s.text[0], "fc1.weight")); /* never sampled */
        spawn_free(&s);
    }
}

/* A lane and a row of bytes for each level that the header names; without a step, bars are empty. */
static void levels_with_names(void **state) {
    static const char named[] =
        "{\"kind\":\"header\",\"levels\":[\"gpu\",\"machine\",\"rack_of_machines\"],\"tensors\":[]}\n",
                      odd[] = "{\"kind\":\"header\",\"levels\":[\"gpu\",7,\"rack\"],\"tensors\":[]}\n",
                      stepless[] = "{\"kind\":\"sample\",\"time\":1,\"step\":2,\"steps\":0,\"bytes\":{\"gpu\":5}}\n";
    (void)state;
    put("w", named);
    put("a",
        "{\"kind\":\"sample\",\"time\":1,\"step\":2,\"steps\":2,\"step_us\":{\"mean\":4000,\"median\":4000},\"lane_"
        "us\":{"
        "\"gpu\":1000,\"machine\":2000,\"rack_of_machines\":3000},\"step_bytes\":{\"rack_of_machines\":8},\"bytes\":{"
        "\"rack_of_machines\":16}}\n");
    spawned s = SPAWN("top", "--once", path);
    shows(&s, "  gpu                1.000 ms   25% ##########");
    shows(&s, "  machine            2.000 ms   50% ####################");
    shows(&s, "  rack_of_machines   3.000 ms   75% ##############################");
    shows(&s, "  rack_of_machines        8 B a step, 16 B in all\n");
    assert_null(strstr(s.text[0], "inter"));
    spawn_free(&s);
    put("w", odd); /* up to the first that is no name */
    put("a", stepless);
    s = SPAWN("top", "--once", path);
    shows(&s, "  gpu                 -    0% .");
    assert_null(strstr(s.text[0], "#"));
    assert_null(strstr(s.text[0], "rack"));
    spawn_free(&s);
}

static void the_last_record(void **state) {
    (void)state;
    put("w", header);
    put("a", sample(10, 2000));
    char last[1024];
    snprintf(last, sizeof last, "%s", sample(20, 4000));
    put("a", last);
    put("a", "{\"kind\":\"sample\",\"step\":30,\"cut o"); /* no line yet */
    spawned s = SPAWN("top", "--json", path);
    assert_int_equal(s.status, 0);
    assert_string_equal(s.text[0], last);
    spawn_free(&s);
}

static void a_job_that_ended(void **state) {
    (void)state;
    put("w", header);
    put("a", sample(10, 2000));
    put("a", "{\"kind\":\"end\",\"time\":112,\"step\":10,\"error\":\"rank 2 died\"}\n");
    spawned s = SPAWN("top", "--once", path);
    shows(&s, " ago after step 10: rank 2 died\n");
    spawn_free(&s);
    put("a", header); /* the next job in the same file */
    s = SPAWN("top", "--once", path);
    shows(&s, "no sample yet: the first comes after 1 s\n");
    assert_null(strstr(s.text[0], "ended"));
    spawn_free(&s);
}

/* What is no JSON, is of a later version, lacks members or has them in other types. */
static void garbage_is_counted(void **state) {
    (void)state;
    put("w", header);
    put("a",
        "not json\n{\"kind\":7}\n[1,2]\n{\"kind\":\"sample\",\"step_us\":7,\"lane_us\":[],\"tensors\":{\"a\":1}}\n");
    put("a", "{\"kind\":\"sample\",\"time\":\"x\",\"step\":null,\"steps\":5,\"step_us\":{\"median\":-1},\"tensors\":[7,"
             "{}]}\n");
    put("a", "{\"kind\":\"strategy\",\"codecs\":[1,null],\"units\":\"\"}\n{\"kind\":\"of the future\"}\n");
    spawned s = SPAWN("top", "--once", path);
    assert_int_equal(s.status, 0);
    shows(&s, "3 of 9 lines of the file are no statistics and were passed over\n");
    spawn_free(&s);
    put("w", "{\"kind\":\"header\"}\n");
    put("a", sample(10, 2000));
    s = SPAWN("top", "--once", path);
    assert_int_equal(s.status, 0);
    shows(&s, "step time    2.000 ms");
    spawn_free(&s);
}

/* A name in the file must not steer the terminal. */
static void control_characters_are_taken_out(void **state) {
    (void)state;
    put("w", "{\"kind\":\"header\",\"program\":\"a\\u001b[31mb\\u009bc\\n\",\"ranks\":1}\n");
    spawned s = SPAWN("top", "--once", path);
    shows(&s, "a?[31mb??c?: 1 rank(s)");
    spawn_free(&s);
}

static void a_long_file(void **state) {
    (void)state;
    FILE *f = fopen(path, "w");
    fputs(header, f);
    for (int i = 1; i <= 12000; i++) fputs(sample(i * 10, i == 12000 ? 3000 : 2000), f);
    fclose(f);
    spawned s = SPAWN("top", "--once", path);
    shows(&s, "trainer: 4 rank(s)");
    shows(&s, "step 120000;");
    shows(&s, "medians of the last 86 intervals, 2.000 ms to 3.000 ms");
    spawn_free(&s);
}

static void what_is_wrong_is_said(void **state) {
    (void)state;
    static const struct {
        const char *args[5];
        int status;
        const char *says;
    } cases[] = {
        {{"top"}, 2, "takes one file"},
        {{"top", "a", "b"}, 2, "takes one file"},
        {{"top", "--one", "a"}, 2, "did you mean '--once'?"},
        {{"top", "a", "--once"}, 2, "flags come before the file"},
        {{"top", "/no/such/file"}, 1, "No such file or directory (a job writes it when it runs with ESPRESSO_STATS)"},
        {{"top", "--json", "/no/such/file"}, 1, "cannot be read"},
        {{"top", "/tmp"}, 1, "/tmp: cannot be read: Is a directory"},
        {{"top", "README.md"}, 1, "is no file of statistics"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spawned s = spawn_all(cases[i].args);
        if (s.status != cases[i].status || !spawn_said(&s, 1, cases[i].says))
            fail_msg("case %zu (%s): status %d, %s", i, cases[i].says, s.status, s.text[1]);
        spawn_free(&s);
    }
    put("w", header);
    spawned s = SPAWN("top", "--json", path);
    assert_int_equal(s.status, 1);
    assert_true(spawn_said(&s, 1, "no sample yet"));
    spawn_free(&s);
}

/* ---- a terminal ------------------------------------------------------------------------------------------------------------------ */
typedef struct terminal {
    int fd;
    pid_t pid;
    size_t len, from;
    char text[1 << 20];
} terminal;
static terminal t;

static void terminal_size(int rows, int columns) {
    struct winsize w = {(unsigned short)rows, (unsigned short)columns, 0, 0};
    assert_int_equal(ioctl(t.fd, TIOCSWINSZ, &w), 0);
}

static void terminal_start(int rows, int columns) {
    const char *command = getenv("ESPRESSO_COMMAND");
    memset(&t, 0, sizeof t);
    t.fd = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(t.fd >= 0 && grantpt(t.fd) == 0 && unlockpt(t.fd) == 0);
    const char *name = ptsname(t.fd);
    int end = open(name, O_RDWR | O_NOCTTY); /* so that the size can be set before anybody reads it */
    terminal_size(rows, columns);
    t.pid = fork();
    if (t.pid == 0) {
        setsid();
        int fd = open(name, O_RDWR);
        for (int i = 0; i < 3; i++) dup2(fd, i);
        execl(command ? command : "build/bin/espresso", "espresso", "top", path, (char *)NULL);
        _exit(99);
    }
    usleep(1000);
    close(end);
}

/* Reads until `what` was shown after what was waited for before; it is the test's end if it never is. */
static void terminal_shows(const char *what) {
    long end = spawn_now_ms() + SPAWN_MS;
    for (;;) {
        char *at = strstr(t.text + t.from, what);
        if (at) {
            t.from = (size_t)(at - t.text) + strlen(what);
            return;
        }
        struct pollfd p = {.fd = t.fd, .events = POLLIN};
        if (spawn_now_ms() > end || t.len + 4096 >= sizeof t.text) break;
        if (poll(&p, 1, 100) <= 0) continue;
        ssize_t n = read(t.fd, t.text + t.len, 4096);
        if (n <= 0) break;
        t.len += (size_t)n;
    }
    kill(t.pid, SIGKILL);
    waitpid(t.pid, NULL, 0);
    fail_msg("not shown: %s\nin:\n%s", what, t.text + t.from);
}

/* Its end, with the screen and the cursor given back. */
static int terminal_end(void) {
    int status = 0;
    terminal_shows("\033[?25h\033[?1049l");
    assert_int_equal(waitpid(t.pid, &status, 0), t.pid);
    close(t.fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void a_screen_that_follows(void **state) {
    (void)state;
    terminal_start(30, 80);
    terminal_shows("\033[?1049h\033[?25l");
    terminal_shows("waiting for /tmp/test_top_");
    put("w", header);
    terminal_shows("no sample yet");
    put("a", sample(10, 2000));
    terminal_shows("step time    2.000 ms");
    terminal_shows("q: quit");
    char half[1024];
    snprintf(half, sizeof half, "%s", sample(20, 3000));
    put("a", (half[40] = 0, half)); /* half a line is none */
    put("a", sample(20, 3000) + 40);
    terminal_shows("step time    3.000 ms");
    put("w", header); /* cut off and begun again */
    terminal_shows("no sample yet");
    put("a", sample(30, 5000));
    terminal_shows("step time    5.000 ms");
    char old[80];
    snprintf(old, sizeof old, "%s.old", path);
    assert_int_equal(rename(path, old), 0);
    put("w", header);
    put("a", sample(40, 6000));
    terminal_shows("step time    6.000 ms");
    unlink(old);
    put("a", "{\"kind\":\"end\",\"time\":112,\"step\":41}\n");
    terminal_shows("ago after step 41");
    assert_int_equal(write(t.fd, "xq", 2), 2);
    assert_int_equal(terminal_end(), 0);
}

/* Lines are cut, none is lost past the screen's end. */
static void a_narrow_screen(void **state) {
    (void)state;
    put("w", header);
    put("a", sample(10, 2000));
    terminal_start(6, 24);
    terminal_shows("trainer: 4 rank(s) on 2\033");
    terminal_shows("q: quit");
    t.text[t.len] = 0;
    for (char *line = strstr(t.text, "\033[H"); line; line = strstr(line, "\r\n")) {
        size_t n = strcspn(line += line[0] == '\r' ? 2 : 3, "\r\033");
        if (n > 24) fail_msg("%zu columns: %.60s", n, line);
    }
    terminal_size(40, 100);
    kill(t.pid, SIGWINCH);
    terminal_shows("fc2.weight");
    terminal_size(1, 1);
    kill(t.pid, SIGWINCH);
    terminal_shows("\033[H");
    kill(t.pid, SIGTERM);
    assert_int_equal(terminal_end(), 128 + SIGTERM);
}

static void interrupted(void **state) {
    (void)state;
    struct termios before, after;
    put("w", header);
    terminal_start(24, 80);
    int fd = open(ptsname(t.fd), O_RDWR | O_NOCTTY);
    terminal_shows("no sample yet");
    assert_int_equal(tcgetattr(fd, &before), 0);
    assert_false(before.c_lflag & ECHO);
    assert_int_equal(write(t.fd, "\003", 1), 1); /* Ctrl-C */
    assert_int_equal((terminal_shows("\033[?1049l"), 0), 0);
    int status;
    assert_int_equal(waitpid(t.pid, &status, 0), t.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(tcgetattr(fd, &after), 0);
    assert_true((after.c_lflag & ECHO) && (after.c_lflag & ICANON));
    close(fd);
    close(t.fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_snapshot, setup, teardown),
        cmocka_unit_test_setup_teardown(levels_with_names, setup, teardown),
        cmocka_unit_test_setup_teardown(the_last_record, setup, teardown),
        cmocka_unit_test_setup_teardown(a_job_that_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(garbage_is_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(control_characters_are_taken_out, setup, teardown),
        cmocka_unit_test_setup_teardown(a_long_file, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_said, setup, teardown),
        cmocka_unit_test_setup_teardown(a_screen_that_follows, setup, teardown),
        cmocka_unit_test_setup_teardown(a_narrow_screen, setup, teardown),
        cmocka_unit_test_setup_teardown(interrupted, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
