/* test_run_hosts.c: `espresso run --hosts`: what ranks on other hosts are told, what becomes of their output, and how jobs end.
 * The remote shell is a script that runs its command on this machine. */
/* runs: quiet slow asan-long */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>
#include "spawn.h"
#include "tests/common/skip.h"

static char folder[64], rsh[128], pids[128];

/* A job on hosts a and b. */
#define START(...)                                                                                                     \
    spawn_start((const char *const[]){"run", "--rsh", rsh, "--root", "127.0.0.1", "--hosts", __VA_ARGS__, NULL})
#define RUN(...) SPAWN("run", "--rsh", rsh, "--root", "127.0.0.1", "--hosts", __VA_ARGS__)

static void check_said(const spawned *s, int k, const char *text) {
    if (!spawn_said(s, k, text)) fail_msg("not said: \"%s\"\nstdout:\n%s\nstderr:\n%s", text, s->text[0], s->text[1]);
}

static void write_script(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, 0700), 0);
}

/* The remote shell: records its pid and the host's name, says something like a login message, and cleans the environment. */
static int make_rsh(void **state) {
    char text[1024];
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/espresso-test-hosts-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(rsh, sizeof rsh, "%s/rsh", folder);
    snprintf(pids, sizeof pids, "%s/pids", folder);
    snprintf(text, sizeof text,
             "#!/bin/sh\necho \"$$ $1\" >>%s\nprintf 'welcome to %%s' \"$1\"\n"
             "case $1 in gone*) echo \"$1: no such host\" >&2; exit 255;; esac\n"
             "h=$1; shift; unset ESPRESSO_LOG OMP_SCHEDULE NOT_OURS ASKED; cd /; HOST=$h sh -c \"$*\"\nexit $?\n",
             pids);
    write_script(rsh, text);
    return 0;
}

static int remove_rsh(void **state) {
    char line[128];
    (void)state;
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

static void environment(void **state) {
    char want[4200], here[4096];
    (void)state;
    setenv("ESPRESSO_LOG", "error", 1);
    setenv("OMP_SCHEDULE", "static,7", 1);
    setenv("NOT_OURS", "x", 1);
    setenv("ASKED", "with = and \" and ' and\ttab", 1);
    setenv("ESPRESSO_RANK", "77", 1); /* of a job around this one */
    spawned s =
        RUN("a:2,user@b:1", "--env", "A=b=c", "--env", "ASKED", "--env", "ESPRESSO_TIMEOUT_MS=1234", "--", "sh", "-c",
            "echo $HOST $ESPRESSO_RANK $ESPRESSO_SIZE $ESPRESSO_MACHINE $ESPRESSO_LOCAL_RANK $ESPRESSO_LAUNCHER "
            "$ESPRESSO_LOG $OMP_SCHEDULE \"<$NOT_OURS>\" $A $ESPRESSO_TIMEOUT_MS; echo \"$ASKED\"; pwd");
    unsetenv("ESPRESSO_LOG"), unsetenv("OMP_SCHEDULE"), unsetenv("NOT_OURS"), unsetenv("ASKED"),
        unsetenv("ESPRESSO_RANK");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "[0] a 0 3 0 0 espresso-run error static,7 <> b=c 1234\n");
    check_said(&s, 0, "[1] a 1 3 0 1 espresso-run error static,7 <> b=c 1234\n");
    check_said(&s, 0, "[2] user@b 2 3 1 0 espresso-run error static,7 <> b=c 1234\n");
    check_said(&s, 0, "[2] with = and \" and ' and\ttab\n");
    snprintf(want, sizeof want, "[2] %s\n", getcwd(here, sizeof here));
    check_said(&s, 0, want);
    check_said(&s, 1, "welcome to a\n");
    spawn_free(&s);
    s = RUN("a,b,c,d", "-n", "4", "--racks", "2", "--", "sh", "-c", "echo $ESPRESSO_PLACE");
    check_said(&s, 0, "[3] rack1/machine1\n");
    spawn_free(&s);
}

/* The launcher makes a secret for the job, whatever the one of a job around it is; both ranks have it, and no command line does. */
static void secret_is_not_on_the_command_line(void **state) {
    (void)state;
    setenv("ESPRESSO_SECRET", "of-the-job-around-this-one", 1);
    spawned s = RUN("a:1,b:1", "--", "sh", "-c",
                    "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' >\"$0.$ESPRESSO_RANK\"; "
                    "echo \"found $(grep -c -- \"$ESPRESSO_SECRET\" \"$0.$ESPRESSO_RANK\"), ${#ESPRESSO_SECRET} long\"",
                    rsh);
    unsetenv("ESPRESSO_SECRET");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "[0] found 0, 48 long\n");
    check_said(&s, 0, "[1] found 0, 48 long\n");
    char line[512];
    snprintf(line, sizeof line, "grep -q 'run' %s.1", rsh); /* the command lines were there */
    assert_int_equal(system(line), 0);
    spawn_free(&s);
}

static void odd_arguments(void **state) {
    (void)state;
    static const char odd[] = "a'b\"c $HOME `x` \\ *\n;&|<>()~#! \t\x01\xff";
    spawned s = RUN("a:1,b:1", "--no-prefix", "--", "printf", "%s|%s|", odd, "");
    char want[128];
    assert_int_equal(s.status, 0);
    snprintf(want, sizeof want, "%s||", odd);
    check_said(&s, 0, want);
    assert_int_equal(s.len[0], 2 * (strlen(want) + 1)); /* + 1: a last line gets its newline */
    spawn_free(&s);
    /* the command's own path, too */
    char path[128], absolute[4096];
    const char *command = getenv("ESPRESSO_COMMAND");
    snprintf(path, sizeof path, "%s/it's \"$x", folder);
    assert_non_null(realpath(command ? command : "build/bin/espresso", absolute));
    assert_int_equal(symlink(absolute, path), 0);
    s = RUN("a:1,b:1", "--espresso", path, "--", "echo", "hello");
    check_said(&s, 0, "[1] hello\n");
    spawn_free(&s);
}

/* The library's ranks meet at the port that the launcher chose, and average: by shared memory, since the "hosts" are one. */
static void a_real_job(void **state) {
    (void)state;
    const char *build = getenv("BUILD");
    char program[256];
    snprintf(program, sizeof program, "%s/bin/hello", build ? build : "build");
    if (access(program, X_OK) != 0) test_skip("the example hello was not built");
    spawned s = RUN("a:2,b:2", "--env", "ESPRESSO_BACKEND=shm", "--", program);
    if (s.status != 0) fail_msg("status %d\n%s\n%s", s.status, s.text[0], s.text[1]);
    spawn_free(&s);
}

static void meeting_point(void **state) {
    (void)state;
    spawned s = SPAWN("run", "--rsh", rsh, "--hosts", "127.0.0.1,127.0.0.2", "-n2", "--no-prefix", "sh", "-c",
                      "echo $ESPRESSO_ROOT");
    int port[2] = {0};
    assert_int_equal(sscanf(s.text[0], "127.0.0.1:%d\n127.0.0.1:%d\n", &port[0], &port[1]), 2);
    assert_true(port[0] > 0 && port[0] == port[1]);
    spawn_free(&s);
    s = RUN("a:1,b:1", "--root", "[fe80::1]:29400", "--", "sh", "-c", "echo $ESPRESSO_ROOT");
    check_said(&s, 0, "[1] [fe80::1]:29400\n");
    spawn_free(&s);
    s = SPAWN("run", "--rsh", rsh, "--hosts", "[::1]:1,127.0.0.1:1", "sh", "-c", "echo $HOST $ESPRESSO_ROOT");
    check_said(&s, 0, "[0] ::1 [::1]:");
    spawn_free(&s);
}

/* 4 ranks on 2 hosts, 10000 lines each on both streams: each line whole, none lost, in order. */
static void no_line_is_lost(void **state) {
    (void)state;
    enum { RANKS = 4, LINES = 10000 };
    int next[2][RANKS] = {{0}};
    spawned s = RUN("a:3,b:1", "--", "sh", "-c",
                    "seq 0 9999 | awk '{ s = $0 \" the quick brown fox\"; print s; print s > \"/dev/stderr\" }'");
    assert_int_equal(s.status, 0);
    for (int k = 0; k < 2; k++) {
        char *save = NULL;
        for (char *line = strtok_r(s.text[k], "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            int rank = -1, number = -1, used = 0;
            if (strstr(line, "welcome")) continue;
            assert_int_equal(sscanf(line, "[%d] %d the quick brown fox%n", &rank, &number, &used), 2);
            assert_int_equal(line[used], 0);
            assert_in_range(rank, 0, RANKS - 1);
            assert_int_equal(number, next[k][rank]++);
        }
        for (int r = 0; r < RANKS; r++) assert_int_equal(next[k][r], LINES);
    }
    spawn_free(&s);
}

static void no_rank_reads_the_input(void **state) {
    (void)state;
    spawned s = START("a:1,b:1", "--", "sh", "-c", "cat; echo end");
    assert_int_equal(write(s.in, "hello\n", 6), 6);
    assert_true(spawn_read(&s, "[0] end\n"));
    spawn_end(&s);
    assert_int_equal(s.status, 0);
    assert_false(spawn_said(&s, 0, "hello"));
    spawn_free(&s);
}

/* Many variables and a long command: more than a pipe takes by default. */
static void long_command(void **state) {
    (void)state;
    enum { LONG = 120000 };
    static char value[LONG + 1], name[LONG + 3];
    memset(value, 'x', LONG);
    snprintf(name, sizeof name, "A=%s", value);
    spawned s = RUN("a:1,b:1", "--env", name, "--", "sh", "-c", "echo ${#1} ${#A}", "sh", value);
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "[1] 120000 120000\n");
    spawn_free(&s);
}

static void failing_rank(void **state) {
    (void)state;
    spawned s = RUN("a:1,b:2", "--", "sh", "-c", "[ $ESPRESSO_RANK != 1 ] || exit 7; exec sleep 60");
    assert_int_equal(s.status, 7);
    check_said(&s, 1, "espresso run on b: rank 1 (pid ");
    check_said(&s, 1, ") exited with status 7\n");
    check_said(&s, 1, "SIGTERM: hosts a, b\n");
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

static void others_may_end_by_themselves(void **state) {
    (void)state;
    spawned s = RUN("a:1,b:2", "--", "sh", "-c", "[ $ESPRESSO_RANK != 1 ] || exit 7; sleep 1; echo saved; exit 3");
    assert_int_equal(s.status, 7);
    check_said(&s, 0, "[0] saved\n");
    check_said(&s, 0, "[2] saved\n");
    check_said(&s, 1, "espresso run on b: rank 2 failed after that\n");
    check_said(&s, 1, "espresso run: host a failed after that\n");
    assert_false(spawn_said(&s, 1, "SIGTERM"));
    spawn_free(&s);
}

/* Rank 0 on another host exits at once when rank 1 is killed: the killed one is named. */
static void the_killed_rank_is_the_cause(void **state) {
    (void)state;
    char script[512];
    snprintf(script, sizeof script,
             "if [ $ESPRESSO_RANK = 1 ]; then echo $$ >%s/victim.new; mv %s/victim.new %s/victim; exec sleep 60; fi;"
             "until [ -s %s/victim ]; do sleep 0.01; done; kill -9 $(cat %s/victim); exit 5",
             folder, folder, folder, folder, folder);
    spawned s = RUN("a:1,b:1", "--", "sh", "-c", script);
    assert_int_equal(s.status, 137);
    check_said(&s, 1, "espresso run on b: rank 1 (pid ");
    check_said(&s, 1, ") was killed by signal 9 (Killed)\n");
    spawn_free(&s);
}

static void stubborn_others(void **state) {
    (void)state;
    spawned s = RUN("a:1,b:1", "--", "sh", "-c", "[ $ESPRESSO_RANK != 1 ] || exit 9; trap '' TERM; sleep 60; sleep 60");
    assert_int_equal(s.status, 9);
    check_said(&s, 1, "SIGKILL: host a\n");
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

static void signals_are_passed_on(void **state) {
    (void)state;
    static const struct {
        int signal;
        const char *trap;
    } cases[] = {{SIGTERM, "TERM"}, {SIGUSR1, "USR1"}};
    for (int c = 0; c < 2; c++) {
        char script[128], want[32];
        snprintf(script, sizeof script, "trap 'echo got; exit 0' %s; echo ready; while :; do sleep 0.05; done",
                 cases[c].trap);
        spawned s = START("a:1,b:2", "--", "sh", "-c", script);
        for (int i = 0; i < 3; i++) {
            snprintf(want, sizeof want, "[%d] ready\n", i);
            assert_true(spawn_read(&s, want));
        }
        kill(s.pid, cases[c].signal);
        spawn_end(&s);
        assert_int_equal(s.status, 0);
        for (int i = 0; i < 3; i++) {
            snprintf(want, sizeof want, "[%d] got\n", i);
            check_said(&s, 0, want);
        }
        spawn_free(&s);
    }
}

/* Ctrl-Z stops the launcher and all ranks, and fg continues them. */
static void stop_and_continue(void **state) {
    (void)state;
    int status;
    spawned s = START("a:1,b:1", "--", "sh", "-c",
                      "echo ready; i=0; while [ $i -lt 40 ]; do sleep 0.05; i=$((i + 1)); done; echo end");
    assert_true(spawn_read(&s, "[0] ready\n"));
    assert_true(spawn_read(&s, "[1] ready\n"));
    kill(s.pid, SIGTSTP);
    assert_int_equal(waitpid(s.pid, &status, WUNTRACED), s.pid);
    assert_true(WIFSTOPPED(status));
    sleep(4); /* longer than the ranks' loop */
    kill(s.pid, SIGCONT);
    const long begin = spawn_now_ms();
    spawn_end(&s);
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "[0] end\n");
    assert_true(spawn_now_ms() - begin > 500); /* they had not gone on meanwhile */
    spawn_free(&s);
}

static void insisting_ends_stubborn_ranks(void **state) {
    (void)state;
    spawned s = START("a:1,b:1", "--", "sh", "-c", "trap '' INT; echo ready; sleep 60; sleep 60");
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

static const char busy[] = "sleep 60 & echo ready; sleep 60; echo never";

static void killed_launcher_leaves_nobody(void **state) {
    (void)state;
    spawned s = START("a:2,b:1", "--", "sh", "-c", busy);
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

/* The pid of the remote shell of a host, of the last job. */
static pid_t shell_of(const char *host) {
    FILE *f = fopen(pids, "r");
    char name[64];
    int pid, found = 0;
    assert_non_null(f);
    while (fscanf(f, "%d %63s", &pid, name) == 2)
        if (!strcmp(name, host)) found = pid;
    fclose(f);
    assert_true(found > 0);
    return found;
}

/* kill -9 of a remote shell: its ranks end, and so do the others. */
static void killed_remote_shell(void **state) {
    (void)state;
    spawned s = START("a:1,b:2", "--", "sh", "-c", busy);
    assert_true(spawn_read(&s, "[0] ready\n"));
    assert_true(spawn_read(&s, "[2] ready\n"));
    kill(shell_of("b"), SIGKILL);
    spawn_end(&s);
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "host b (ranks 1-2): '");
    check_said(&s, 1, "rsh' was killed by signal 9 (Killed)\n");
    check_said(&s, 1, "SIGTERM: host a\n");
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

/* kill -9 of the process that starts the ranks on a host: the same. */
static void killed_part(void **state) {
    (void)state;
    char script[256];
    snprintf(script, sizeof script, "echo $PPID >%s/part.$ESPRESSO_RANK; %s", folder, busy);
    spawned s = START("a:1,b:2", "--", "sh", "-c", script);
    int pid = 0;
    for (int i = 0; i < 3; i++) {
        char want[32];
        snprintf(want, sizeof want, "[%d] ready\n", i);
        assert_true(spawn_read(&s, want));
    }
    snprintf(script, sizeof script, "%s/part.1", folder);
    FILE *f = fopen(script, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &pid), 1);
    fclose(f);
    kill(pid, SIGKILL);
    spawn_end(&s);
    assert_int_equal(s.status, 137);
    check_said(&s, 1, "host b (ranks 1-2) ended with status 137\n");
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

static void background_children_end(void **state) {
    (void)state;
    spawned s = RUN("a:1,b:1", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & sleep 61 & echo done");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "[1] done\n");
    assert_true(spawn_nobody_left(&s));
    spawn_free(&s);
}

/* Nobody reads our output: signals must work all the same. */
static void blocked_output(void **state) {
    (void)state;
    int status;
    spawned s = START("a:1,b:1", "--", "yes");
    assert_true(spawn_read(&s, "[0] y\n"));
    assert_true(spawn_read(&s, "[1] y\n"));
    usleep(500000);
    kill(s.pid, SIGTERM);
    usleep(700000);
    kill(s.pid, SIGTERM); /* insists: the output that nobody reads is dropped */
    assert_true(spawn_nobody_left(&s));
    assert_int_equal(waitpid(s.pid, &status, 0), s.pid);
    /* 137: on a busy machine SIGKILL came before a rank had taken SIGTERM */
    assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 143 || WEXITSTATUS(status) == 137));
    spawn_free(&s);
}

static void closed_output(void **state) {
    (void)state;
    spawned s = START("a:1,b:1", "--", "yes");
    close(s.out[0]);
    s.out[0] = -1;
    spawn_end(&s);
    assert_int_equal(s.status, 128 + SIGPIPE);
    spawn_free(&s);
}

/* Nothing is started where a host is not ready: the program would have left a file. */
static void hosts_that_fail(void **state) {
    (void)state;
    char mark[128], bad[128], text[512];
    snprintf(mark, sizeof mark, "%s/started", folder);
    snprintf(bad, sizeof bad, "%s/bad", folder);
    snprintf(text, sizeof text, "#!/bin/sh\nhead -c 32 | sed 's/^[0-9.]*/0.0.1/' | %s \"$@\"\n", rsh);
    write_script(bad, text);
    const struct {
        const char *args[9], *says;
    } cases[] = {
        {{"a:1,gone:1", "--"}, "host gone (rank 1): '"},
        {{"a:1,gone:1", "--"}, "gone: no such host\n"},
        {{"a:1,b:1", "--espresso", "/no/such/espresso", "--"}, "is espresso at '/no/such/espresso' there"},
        {{"a:1,b:1", "--espresso", "/bin/true", "--"}, "is '/bin/true' there this version of espresso?"},
        {{"a:1,b:1", "--rsh", "/no/such/rsh", "--"}, "'/no/such/rsh' here?"},
        {{"a:1,b:1", "--rsh", bad, "--"}, "espresso run on b: this is version "},
        {{"a:1,b:1", "--rsh", bad, "--"}, "the launcher is version 0.0.1: install one version everywhere"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[24] = {"run", "--rsh", rsh, "--root", "127.0.0.1", "--hosts"};
        int n = 6;
        for (int k = 0; cases[i].args[k]; k++) args[n++] = cases[i].args[k];
        args[n++] = "touch";
        args[n++] = mark;
        spawned s = spawn_all(args);
        if (s.status != 1) fail_msg("case %zu (%s): status %d, not 1", i, cases[i].says, s.status);
        check_said(&s, 1, cases[i].says);
        assert_true(spawn_nobody_left(&s));
        assert_int_not_equal(access(mark, F_OK), 0);
        spawn_free(&s);
    }
    spawned s = RUN("a:1,b:1", "--", "./no/such/program");
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "espresso run on b: cannot start './no/such/program': No such file");
    spawn_free(&s);
}

/* The directory that is here is not on the other host. */
static void no_such_directory(void **state) {
    (void)state;
    char other[128], text[512], line[1024];
    const char *command = getenv("ESPRESSO_COMMAND");
    snprintf(other, sizeof other, "%s/moved", folder);
    snprintf(text, sizeof text,
             "#!/bin/sh\nif [ $1 = b ]; then mv %s/here %s/elsewhere; sleep 0.2; fi; exec %s \"$@\"\n", folder, folder,
             rsh);
    write_script(other, text);
    snprintf(line, sizeof line,
             "mkdir %s/here && cd %s/here && '%s' run --hosts a:1,b:1 --root 127.0.0.1 --rsh %s true 2>%s/said; [ $? = "
             "1 ] && "
             "grep -q \"cannot enter '%s/here' here: No such file\" %s/said",
             folder, folder, command, other, folder, folder, folder);
    assert_int_equal(system(line), 0);
}

static void wrong_usage(void **state) {
    (void)state;
    static const struct {
        const char *args[8], *says;
    } cases[] = {
        {{"run", "--hosts", "a,b", "ls"}, "how many ranks?"},
        {{"run", "--hosts", "a,b", "-n", "3", "ls"}, "3 ranks do not divide by 2 hosts"},
        {{"run", "--hosts", "a:2,b:1", "-n", "4", "ls"}, "do not agree: its numbers make 3"},
        {{"run", "--hosts", "a:2,b", "ls"}, "behind every host, or behind none"},
        {{"run", "--hosts", "a:2,a:1", "ls"}, "a is there twice"},
        {{"run", "--hosts", "a,you@a", "-n2", "ls"}, "a is there twice"},
        {{"run", "--hosts", "a,,b", "-n2", "ls"}, "'' is no name of a host"},
        {{"run", "--hosts", "", "-n2", "ls"}, "'' is no name of a host"},
        {{"run", "--hosts=-oProxyCommand=x,b", "-n2", "ls"}, "is no name of a host"},
        {{"run", "--hosts", "a:0,b:1", "ls"}, "'a:0': write a number of ranks"},
        {{"run", "--hosts", "fe80::1,b", "-n2", "ls"}, "in brackets"},
        {{"run", "--hosts", "localhost,b", "-n2", "ls"}, "b cannot reach the first host by the name 'localhost'"},
        {{"run", "--hosts", "a,b", "-n2", "--root", "a:x", "ls"}, "--root a:x: write HOST or HOST:PORT"},
        {{"run", "--hosts", "a,b", "-n2", "--machines=2", "ls"}, "--machines is for machines that are emulated here"},
        {{"run", "--hosts", "a,b", "-n2", "--inter=1gbit", "ls"}, "--inter is for machines"},
        {{"run", "--hosts", "a,b", "--ranks-per-machine=1,2", "ls"}, "node1:3,node2:1"},
        {{"run", "--hosts", "a,b,c", "-n3", "--racks=2", "ls"}, "3 hosts do not divide by 2 racks"},
        {{"run", "--rsh", "x", "-n2", "ls"}, "--rsh needs --hosts"},
        {{"run", "-n2", "--env", "NOT_SET_HERE", "ls"}, "NOT_SET_HERE is not set here: write NAME=VALUE"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spawned s = spawn_all(cases[i].args);
        if (s.status != 2) fail_msg("case %zu (%s): status %d, not 2: %s", i, cases[i].says, s.status, s.text[1]);
        check_said(&s, 1, cases[i].says);
        spawn_free(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment),
        cmocka_unit_test(secret_is_not_on_the_command_line),
        cmocka_unit_test(odd_arguments),
        cmocka_unit_test(a_real_job),
        cmocka_unit_test(meeting_point),
        cmocka_unit_test(no_line_is_lost),
        cmocka_unit_test(no_rank_reads_the_input),
        cmocka_unit_test(long_command),
        cmocka_unit_test(failing_rank),
        cmocka_unit_test(others_may_end_by_themselves),
        cmocka_unit_test(the_killed_rank_is_the_cause),
        cmocka_unit_test(stubborn_others),
        cmocka_unit_test(signals_are_passed_on),
        cmocka_unit_test(stop_and_continue),
        cmocka_unit_test(insisting_ends_stubborn_ranks),
        cmocka_unit_test(killed_launcher_leaves_nobody),
        cmocka_unit_test(killed_remote_shell),
        cmocka_unit_test(killed_part),
        cmocka_unit_test(background_children_end),
        cmocka_unit_test(blocked_output),
        cmocka_unit_test(closed_output),
        cmocka_unit_test(hosts_that_fail),
        cmocka_unit_test(no_such_directory),
        cmocka_unit_test(wrong_usage),
    };
    return cmocka_run_group_tests(tests, make_rsh, remove_rsh);
}
