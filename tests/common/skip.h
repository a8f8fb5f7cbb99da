/* skip.h: ends a test that cannot check anything here, with the reason, which run.sh prints. Include after cmocka.h. */
#ifndef TEST_SKIP_H
#define TEST_SKIP_H
#define test_skip(why)                                                                                                 \
    do {                                                                                                               \
        print_message("skipped: %s\n", why);                                                                           \
        skip();                                                                                                        \
    } while (0)
#endif
