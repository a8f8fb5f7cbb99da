/* command.c: the command `espresso` as the tests build it, with sanitizers. */
int espresso_main(int argc, char **argv);
int main(int argc, char **argv) { return espresso_main(argc, argv); }
