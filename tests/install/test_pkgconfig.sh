# test_pkgconfig.sh: a program out of the tree, by pkg-config, against an installed copy that was moved: shared and
# static.
# runs: slow
. tests/compile/common.sh
need pkg-config
staged
cp tests/install/use_api.c "$tmp/"
cd "$tmp"
PKG_CONFIG_PATH=$stage/lib/pkgconfig
export PKG_CONFIG_PATH
try pkg-config --exists 'espresso >= 0.1'
try gcc use_api.c -o shared $(pkg-config --cflags --libs espresso)
says_ok env LD_LIBRARY_PATH="$stage/lib" ./shared
rm "$stage"/lib/libespresso.so*
try gcc use_api.c -o static $(pkg-config --static --cflags --libs espresso)
says_ok ./static
[ -d "$(pkg-config --variable=plugindir espresso)" ]
