/* command.c is the command `espresso` in the test build, which the tests start under sanitizers. */
int espresso_main(int argc, char **argv);
int main(int argc, char **argv) { return espresso_main(argc, argv); }
