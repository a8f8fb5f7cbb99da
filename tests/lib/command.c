/* command.c: the command from the test build of the library: the one that the tests under sanitizers start. */
int espresso_main(int argc, char **argv);
int main(int argc, char **argv) { return espresso_main(argc, argv); }
