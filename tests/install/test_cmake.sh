# test_cmake.sh: a CMake project out of the tree against an installed copy that was moved: shared and static.
# runs: slow
. tests/compile/common.sh
need cmake
staged
mkdir "$tmp/project"
cp tests/install/use_api.c "$tmp/project/"
cat >"$tmp/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.13)
project(use C)
find_package(espresso 0.1 REQUIRED)
add_executable(shared use_api.c)
target_link_libraries(shared espresso::espresso)
add_executable(static use_api.c)
target_link_libraries(static espresso::static)
END
try cmake -S "$tmp/project" -B "$tmp/project/build" -DCMAKE_PREFIX_PATH="$stage"
try cmake --build "$tmp/project/build"
says_ok "$tmp/project/build/shared"
says_ok "$tmp/project/build/static"
