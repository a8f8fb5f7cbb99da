/* command.c is the main of the command `espresso` that tests start. It is built as they are, also with sanitizers. */
int espresso_main(int argc, char **argv);
int main(int argc, char **argv) { return espresso_main(argc, argv); }
