# test_onefile.sh: programs out of the tree with the one-file header alone: two files with a private copy each, the code
# in one and the declarations in the other, and C++ beside it. test_standards.sh builds a program of one file.
# runs: slow
. tests/compile/common.sh
try make -s dist
if grep -n '^ *# *include *"' dist/espresso.h; then
    echo "dist/espresso.h still includes files of the tree"
    exit 1
fi
cp dist/espresso.h tests/install/use_api.c "$tmp/"
cd "$tmp"
echo 'extern int other(void);' >two_a.c
{ printf '#define ESPRESSO_STATIC\n#define ESPRESSO_IMPLEMENTATION\n' && cat use_api.c; } >>two_a.c
printf '#define ESPRESSO_STATIC\n#define ESPRESSO_IMPLEMENTATION\n#include "espresso.h"\n' >two_b.c
echo 'int other(void); int other(void) { return esp_status_name(ESP_OK)[0]; }' >>two_b.c
try gcc -Wall -Wextra -Werror -c two_a.c
try gcc -Wall -Wextra -Werror -c two_b.c
try gcc two_a.o two_b.o -o two -pthread -ldl -lm
says_ok ./two

# a static copy is private: the object exports only main
if nm -g --defined-only two_a.o | grep -v ' main$'; then exit 1; fi

printf '#define ESPRESSO_IMPLEMENTATION\n#include "espresso.h"\n' >code.c
try gcc -c code.c
try gcc use_api.c code.o -o three -pthread -ldl -lm
says_ok ./three
if have g++; then
    try g++ -std=c++11 -x c++ use_api.c -x none code.o -o four -pthread -ldl -lm
    says_ok ./four
else
    leaves_out "g++ is not there"
fi
checked
