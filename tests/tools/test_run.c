/* test_run.c: `espresso run`: what ranks are told, what becomes of their output, and how jobs end.
 * Ranks are shell scripts: the launcher must not need the library on the other side. */
/* runs: quiet slow asan-long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "spawn.h"
#include "espresso_impl/base/cores.h"

#define RUN(n, ...) SPAWN("run", "-n", n, __VA_ARGS__)
#define START(...) spawn_start((const char *const[]){"run", __VA_ARGS__, NULL})

static void check_said(const spawned *s, int k, const char *text) {
    if (!spawn_said(s, k, text)) fail_msg("not said: \"%s\"\nstdout:\n%s\nstderr:\n%s", text, s->text[0], s->text[1]);
}

static void environment(void **state) {
    (void)state;
    spawned s = RUN("4", "--machines", "2", "--inter", "1gbit,50us", "--env", "A=b=c", "--env",
                    "ESPRESSO_TIMEOUT_MS=1234", "--", "sh", "-c",
                    "echo $ESPRESSO_RANK $ESPRESSO_SIZE $ESPRESSO_MACHINE $ESPRESSO_LOCAL_RANK $ESPRESSO_LAUNCHER "
                    "$ESPRESSO_INTER_LINK $A $ESPRESSO_TIMEOUT_MS");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "[0] 0 4 0 0 espresso-run 1gbit,50us b=c 1234\n");
    check_said(&s, 0, "[1] 1 4 0 1 espresso-run 1gbit,50us b=c 1234\n");
    check_said(&s, 0, "[2] 2 4 1 0 espresso-run 1gbit,50us b=c 1234\n");
    check_said(&s, 0, "[3] 3 4 1 1 espresso-run 1gbit,50us b=c 1234\n");
    spawn_free(&s);
}

static void racks(void **state) {
    (void)state;
    spawned s = RUN("8", "--machines", "4", "--racks", "2", "--outer", "100mbit,1ms", "--", "sh", "-c",
                    "echo $ESPRESSO_MACHINE $ESPRESSO_PLACE $ESPRESSO_OUTER_LINK");
    check_said(&s, 0, "[1] 0 rack0/machine0 100mbit,1ms\n");
    check_said(&s, 0, "[3] 1 rack0/machine1 100mbit,1ms\n");
    check_said(&s, 0, "[7] 3 rack1/machine1 100mbit,1ms\n");
    spawn_free(&s);
    setenv("ESPRESSO_PLACE", "elsewhere", 1); /* of a job around this one */
    s = RUN("1", "--", "sh", "-c", "echo \"<$ESPRESSO_PLACE>\"");
    unsetenv("ESPRESSO_PLACE");
    check_said(&s, 0, "[0] <>\n");
    spawn_free(&s);
    s = RUN("4", "--machines", "4", "--racks", "3", "--", "true");
    assert_int_equal(s.status, 2);
    check_said(&s, 1, "4 machines do not divide by 3 racks");
    spawn_free(&s);
    s = RUN("4", "--machines", "4", "--outer", "1gbit", "--", "true");
    assert_int_equal(s.status, 2);
    check_said(&s, 1, "--outer needs --racks");
    spawn_free(&s);
}

/* Each rank has an OpenMP team of its own: together no more threads than cores, unless somebody said a number. */
static void openmp_threads(void **state) {
    char own[32];
    (void)state;
    unsetenv("OMP_NUM_THREADS"), unsetenv("OMP_WAIT_POLICY");
    snprintf(own, sizeof own, "[0] %d passive\n", (int)esp__cores());
    spawned s = RUN("1", "--", "sh", "-c", "echo $OMP_NUM_THREADS $OMP_WAIT_POLICY");
    check_said(&s, 0, own);
    spawn_free(&s);
    s = RUN("64", "--machines", "8", "--", "sh", "-c", "echo $OMP_NUM_THREADS");
    if (esp__cores() < 128) check_said(&s, 0, "[63] 1\n");
    spawn_free(&s);
    s = RUN("4", "--env", "OMP_NUM_THREADS=7", "--env", "OMP_WAIT_POLICY=active", "--", "sh", "-c",
            "echo $OMP_NUM_THREADS $OMP_WAIT_POLICY");
    check_said(&s, 0, "[3] 7 active\n");
    spawn_free(&s);
    setenv("OMP_NUM_THREADS", "3", 1);
    s = RUN("4", "--", "sh", "-c", "echo $OMP_NUM_THREADS");
    check_said(&s, 0, "[2] 3\n");
    spawn_free(&s);
    unsetenv("OMP_NUM_THREADS");
}

static void uneven_machines(void **state) {
    (void)state;
    spawned s = SPAWN("run", "--ranks-per-machine", "3,1", "sh", "-c",
                      "echo $ESPRESSO_RANK $ESPRESSO_SIZE $ESPRESSO_MACHINE $ESPRESSO_LOCAL_RANK");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "[2] 2 4 0 2\n");
    check_said(&s, 0, "[3] 3 4 1 0\n");
    spawn_free(&s);
}

/* One meeting point a run, the same for its ranks, another for the next run, an abstract socket. */
static void meeting_point(void **state) {
    (void)state;
    spawned s = RUN("2", "--no-prefix", "--", "sh", "-c", "echo $ESPRESSO_ROOT");
    spawned t = RUN("2", "--no-prefix", "--", "sh", "-c", "echo $ESPRESSO_ROOT");
    assert_int_equal(strncmp(s.text[0], "unix:espresso-", 14), 0);
    size_t half = s.len[0] / 2;
    assert_true(half > 24);
    assert_memory_equal(s.text[0], s.text[0] + half, half);
    assert_string_not_equal(s.text[0], t.text[0]);
    spawn_free(&s);
    spawn_free(&t);
}

/* One secret a run, the same for its ranks, another for the next run, whatever the environment says; and on no command line. */
static void secret(void **state) {
    (void)state;
    const char *show = "echo $ESPRESSO_SECRET; tr '\\0' ' ' </proc/$PPID/cmdline | grep -c -- \"$ESPRESSO_SECRET\"";
    setenv("ESPRESSO_SECRET", "ffffffffffffffffffffffff", 1);
    spawned s = RUN("2", "--no-prefix", "--", "sh", "-c", "echo $ESPRESSO_SECRET");
    spawned t = RUN("1", "--no-prefix", "--", "sh", "-c", show);
    spawned e = RUN("1", "--env", "ESPRESSO_SECRET=0123456789abcdef0123456789abcdef", "--", "true");
    unsetenv("ESPRESSO_SECRET");
    assert_int_equal(s.len[0], 2 * 49);
    assert_int_equal(strspn(s.text[0], "0123456789abcdef"), 48);
    assert_memory_equal(s.text[0], s.text[0] + 49, 49);
    assert_int_equal(t.len[0], 49 + 2);
    assert_string_equal(t.text[0] + 49, "0\n");
    assert_memory_not_equal(s.text[0], t.text[0], 48);
    assert_int_equal(e.status, 2);
    check_said(&e, 1, "espresso run sets ESPRESSO_SECRET itself");
    spawn_free(&s);
    spawn_free(&t);
    spawn_free(&e);
}

/* Every line to both streams. awk knows /dev/stderr by itself: a bare system has no such file. */
#define BOTH_STREAMS(lines, text) lines " | awk '{ s = " text "; print s; print s > \"/dev/stderr\" }'"

/* 8 ranks, 10000 lines each on both streams: each line whole, none lost, in order. */
static void no_line_is_lost(void **state) {
    (void)state;
    enum { RANKS = 8, LINES = 10000 };
    int next[2][RANKS] = {{0}};
    spawned s = RUN("8", "--", "sh", "-c", BOTH_STREAMS("seq 0 9999", "$0 \" the quick brown fox\""));
    assert_int_equal(s.status, 0);
    for (int k = 0; k < 2; k++) {
        char *save = NULL;
        for (char *line = strtok_r(s.text[k], "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            int rank = -1, number = -1, used = 0;
            assert_int_equal(sscanf(line, "[%d] %d the quick brown fox%n", &rank, &number, &used), 2);
            assert_int_equal(line[used], 0);
            assert_in_range(rank, 0, RANKS - 1);
            assert_int_equal(number, next[k][rank]++);
        }
        for (int r = 0; r < RANKS; r++) assert_int_equal(next[k][r], LINES);
    }
    spawn_free(&s);
}

/* Where both streams are one file, lines stay whole too. */
static void one_file_for_both(void **state) {
    (void)state;
    const char *command = getenv("ESPRESSO_COMMAND");
    char line[1024];
    int n = 0, bad = 0;
    snprintf(line, sizeof line, "'%s' run -n 4 -- sh -c \"$BOTH\" 2>&1", command ? command : "build/bin/espresso");
    setenv("BOTH", BOTH_STREAMS("seq 1 3000", "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\" $0"), 1);
    FILE *p = popen(line, "r");
    assert_non_null(p);
    for (; fgets(line, sizeof line, p); n++) {
        int number, used = 0;
        if (sscanf(line, "[%*d] xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx%d\n%n", &number, &used) != 1 || line[used]) bad++;
    }
    assert_int_equal(pclose(p), 0);
    assert_int_equal(n, 4 * 2 * 3000);
    assert_int_equal(bad, 0);
}

static void last_line_without_newline(void **state) {
    (void)state;
    spawned s = RUN("2", "--", "printf", "a\\nb");
    assert_int_equal(s.len[0], 4 * 6);
    check_said(&s, 0, "[0] b\n");
    check_said(&s, 0, "[1] b\n");
    spawn_free(&s);
}

static void long_lines(void **state) {
    (void)state;
    spawned s = RUN("2", "--", "sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x; echo; head -c 3000000 /dev/zero");
    assert_int_equal(s.status, 0);
    assert_true(s.len[0] >= 2 * 3300001);
    spawn_free(&s);
}

static void input_goes_to_rank_0(void **state) {
    (void)state;
    spawned s = START("-n", "2", "--", "sh", "-c", "cat; echo end");
    assert_int_equal(write(s.in, "hello\n", 6), 6);
    spawn_end(&s);
    check_said(&s, 0, "[0] hello\n");
    assert_false(spawn_said(&s, 0, "[1] hello\n"));
    check_said(&s, 0, "[1] end\n");
    spawn_free(&s);
}

static void failing_rank(void **state) {
    (void)state;
    spawned s = RUN("3", "--", "sh", "-c", "[ $ESPRESSO_RANK != 1 ] || exit 7; exec sleep 60");
    assert_int_equal(s.status, 7);
    check_said(&s, 1, "rank 1 (pid ");
    check_said(&s, 1, ") exited with status 7\n");
    check_said(&s, 1, "SIGTERM: ranks 0, 2\n");
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

/* The others are given time to find out by themselves. */
static void others_may_end_by_themselves(void **state) {
    (void)state;
    spawned s = RUN("3", "--", "sh", "-c", "[ $ESPRESSO_RANK != 1 ] || exit 7; sleep 0.5; echo saved; exit 3");
    assert_int_equal(s.status, 7);
    check_said(&s, 0, "[0] saved\n");
    check_said(&s, 0, "[2] saved\n");
    check_said(&s, 1, "ranks 0, 2 failed after that\n");
    assert_false(spawn_said(&s, 1, "SIGTERM"));
    spawn_free(&s);
}

static void killed_rank_and_stubborn_others(void **state) {
    (void)state;
    spawned s = RUN("2", "--", "sh", "-c", "[ $ESPRESSO_RANK != 1 ] || kill -9 $$; trap '' TERM; sleep 60; sleep 60");
    assert_int_equal(s.status, 137);
    check_said(&s, 1, "rank 1 (pid ");
    check_said(&s, 1, ") was killed by signal 9 (Killed)\n");
    check_said(&s, 1, "SIGKILL: rank 0\n");
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

static void signals_are_passed_on(void **state) {
    (void)state;
    spawned s =
        START("-n", "3", "--", "sh", "-c", "trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.05; done");
    for (int i = 0; i < 3; i++) {
        char want[32];
        snprintf(want, sizeof want, "[%d] ready\n", i);
        assert_true(spawn_read(&s, want));
    }
    kill(s.pid, SIGTERM);
    spawn_end(&s);
    assert_int_equal(s.status, 0);
    for (int i = 0; i < 3; i++) {
        char want[32];
        snprintf(want, sizeof want, "[%d] term\n", i);
        check_said(&s, 0, want);
    }
    spawn_free(&s);
}

static void other_signals_end_nothing(void **state) {
    (void)state;
    spawned s =
        START("-n", "2", "--", "sh", "-c", "trap 'echo usr1; exit 0' USR1; echo ready; while :; do sleep 0.05; done");
    assert_true(spawn_read(&s, "[0] ready\n"));
    assert_true(spawn_read(&s, "[1] ready\n"));
    kill(s.pid, SIGUSR1);
    spawn_end(&s);
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "[0] usr1\n");
    check_said(&s, 0, "[1] usr1\n");
    spawn_free(&s);
}

static void interrupt_is_the_status(void **state) {
    (void)state;
    spawned s = START("-n", "2", "--", "sh", "-c", "echo ready; exec sleep 60");
    assert_true(spawn_read(&s, "[0] ready\n"));
    assert_true(spawn_read(&s, "[1] ready\n"));
    kill(s.pid, SIGINT);
    spawn_end(&s);
    assert_int_equal(s.status, 130);
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

static void insisting_ends_stubborn_ranks(void **state) {
    (void)state;
    spawned s = START("-n", "2", "--", "sh", "-c", "trap '' INT; echo ready; sleep 60; sleep 60");
    assert_true(spawn_read(&s, "[0] ready\n"));
    assert_true(spawn_read(&s, "[1] ready\n"));
    kill(s.pid, SIGINT);
    usleep(700000);
    kill(s.pid, SIGINT);
    spawn_end(&s);
    assert_int_equal(s.status, 137);
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

/* kill -9 of the launcher: no rank lives on, nor what a rank started. */
static void killed_launcher_leaves_nobody(void **state) {
    (void)state;
    spawned s = START("-n", "3", "--", "sh", "-c", "sleep 60 & echo ready; sleep 60; echo never");
    for (int i = 0; i < 3; i++) {
        char want[32];
        snprintf(want, sizeof want, "[%d] ready\n", i);
        assert_true(spawn_read(&s, want));
    }
    kill(s.pid, SIGKILL);
    spawn_end(&s);
    assert_int_equal(s.status, 137);
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

/* What a rank left in the background ends with the job, whether or not it holds the output. */
static void background_children_end(void **state) {
    (void)state;
    spawned s = RUN("2", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & sleep 61 & echo done");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "[1] done\n");
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

/* Nobody reads our output: signals must work all the same. */
static void blocked_output(void **state) {
    (void)state;
    spawned s = START("-n", "2", "--", "yes");
    usleep(300000);
    kill(s.pid, SIGTERM);
    int status;
    usleep(700000);
    kill(s.pid, SIGTERM); /* insists: the output that nobody reads is dropped */
    assert_true(spawn_nobody_left(&s));
    assert_int_equal(waitpid(s.pid, &status, 0), s.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 143);
    spawn_free(&s);
}

static void closed_output(void **state) {
    (void)state;
    spawned s = START("-n", "2", "--", "yes");
    close(s.out[0]);
    s.out[0] = -1;
    spawn_end(&s);
    assert_int_equal(s.status, 128 + SIGPIPE);
    assert_int_equal(s.len[1], 0);
    spawn_free(&s);
}

static void full_disk(void **state) {
    (void)state;
    char line[1024];
    const char *command = getenv("ESPRESSO_COMMAND");
    snprintf(line, sizeof line, "'%s' run -n 2 echo hi 2>&1 >/dev/full", command ? command : "build/bin/espresso");
    FILE *p = popen(line, "r");
    assert_non_null(fgets(line, sizeof line, p));
    assert_non_null(strstr(line, "No space left"));
    assert_int_equal(WEXITSTATUS(pclose(p)), 1);
}

/* A caller that closed a standard stream: nothing else may land in its place. */
static void closed_streams(void **state) {
    (void)state;
    static const char *const cases[] = {"<&-", ">&-", "2>&-", "<&- >&- 2>&-"};
    const char *command = getenv("ESPRESSO_COMMAND");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[1024];
        snprintf(line, sizeof line,
                 "timeout 20 '%s' run -n 2 -- sh -c 'cat; echo out; echo err >&2' </dev/null 2>/dev/null %s",
                 command ? command : "build/bin/espresso", cases[i]);
        assert_int_equal(system(line), 0);
    }
}

static void no_such_program(void **state) {
    (void)state;
    spawned s = RUN("2", "--", "./no/such/program");
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "cannot start './no/such/program': No such file");
    spawn_free(&s);
    s = RUN("2", "--", "no-such-program-anywhere");
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "cannot start 'no-such-program-anywhere': not found in PATH");
    spawn_free(&s);
    s = RUN("2", "--", "./README.md");
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "cannot start './README.md': ");
    spawn_free(&s);
    s = RUN("2", "--", "/tmp");
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "directory");
    spawn_free(&s);
}

static void wrong_usage(void **state) {
    (void)state;
    static const struct {
        const char *args[6], *says;
    } cases[] = {
        {{"runn"}, "did you mean 'run'?"},
        {{"bake"}, "no subcommand 'bake'"},
        {{"run"}, "no program"},
        {{"run", "ls"}, "how many ranks?"},
        {{"run", "-n"}, "-n wants a value"},
        {{"run", "-n", "0", "ls"}, "-n 0: expected a whole number from 1"},
        {{"run", "-n", "2x", "ls"}, "-n 2x"},
        {{"run", "-n", "-1", "ls"}, "-n -1"},
        {{"run", "-n", "4"}, "no program"},
        {{"run", "-n", "4", "--"}, "no program"},
        {{"run", "-np", "4", "ls"}, "did you mean '-n'?"},
        {{"run", "--machine", "4", "ls"}, "did you mean '--machines'?"},
        {{"run", "-n", "4", "--machines=3", "ls"}, "4 ranks do not divide by 3 machines"},
        {{"run", "-n", "5", "--ranks-per-machine=3,1", "ls"}, "do not agree"},
        {{"run", "--ranks-per-machine=3,,1", "ls"}, "as in 3,1"},
        {{"run", "--ranks-per-machine=3,0", "ls"}, "as in 3,1"},
        {{"run", "-n2", "--env", "A", "ls"}, "write NAME=VALUE"},
        {{"run", "-n2", "--env", "ESPRESSO_RANK=1", "ls"}, "sets ESPRESSO_RANK itself"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spawned s = spawn_all(cases[i].args);
        if (s.status != 2) fail_msg("case %zu (%s): status %d, not 2", i, cases[i].says, s.status);
        check_said(&s, 1, cases[i].says);
        assert_int_equal(s.len[0], 0);
        spawn_free(&s);
    }
}

static void help(void **state) {
    (void)state;
    spawned s = SPAWN("help", "run");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "--inter RATE[,LATENCY]");
    spawn_free(&s);
    s = SPAWN("run", "--help");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "--machines M");
    spawn_free(&s);
    s = SPAWN("--version");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "espresso 0.");
    spawn_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment),
        cmocka_unit_test(racks),
        cmocka_unit_test(openmp_threads),
        cmocka_unit_test(uneven_machines),
        cmocka_unit_test(meeting_point),
        cmocka_unit_test(secret),
        cmocka_unit_test(no_line_is_lost),
        cmocka_unit_test(one_file_for_both),
        cmocka_unit_test(last_line_without_newline),
        cmocka_unit_test(long_lines),
        cmocka_unit_test(input_goes_to_rank_0),
        cmocka_unit_test(failing_rank),
        cmocka_unit_test(others_may_end_by_themselves),
        cmocka_unit_test(killed_rank_and_stubborn_others),
        cmocka_unit_test(signals_are_passed_on),
        cmocka_unit_test(other_signals_end_nothing),
        cmocka_unit_test(interrupt_is_the_status),
        cmocka_unit_test(insisting_ends_stubborn_ranks),
        cmocka_unit_test(killed_launcher_leaves_nobody),
        cmocka_unit_test(background_children_end),
        cmocka_unit_test(blocked_output),
        cmocka_unit_test(closed_output),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(closed_streams),
        cmocka_unit_test(no_such_program),
        cmocka_unit_test(wrong_usage),
        cmocka_unit_test(help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
