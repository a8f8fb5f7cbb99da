#!/bin/sh
# install.sh: copies what was built under DESTDIR/PREFIX and writes the pkg-config and CMake files beside it. Both find the
# rest by their own place, so that the tree can be moved. share/espresso/files lists all files, for --remove.
#     install.sh BUILD PREFIX VERSION        (DESTDIR from the environment; run by `make install`)
#     install.sh --remove PREFIX             (make uninstall)
set -eu
export LC_ALL=C
root=${DESTDIR:-}$2
list=share/espresso/files
# removes files, and folders that are then empty
remove() {
    while read -r file; do
        rm -f "$root/$file"
        folder=${file%/*}
        while rmdir "$root/$folder" 2>/dev/null && [ "$folder" != "${folder%/*}" ]; do folder=${folder%/*}; done
    done
}
if [ "$1" = --remove ]; then
    if [ ! -e "$root/$list" ]; then
        echo "make uninstall: $root/$list is not there: set PREFIX and DESTDIR as for make install" >&2
        exit 1
    fi
    { cat "$root/$list" && echo $list; } | remove
    echo "removed from $root"
    exit
fi
build=$1 version=$3 to=$root
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
major=${version%%.*}
# a static library that was compiled with OpenMP needs its runtime
openmp=
if nm "$build/lib/libespresso.a" | grep -q ' U \(GOMP_\|__kmpc_\)'; then openmp=-fopenmp; fi

install -d "$root/include" "$root/lib/espresso" "$root/lib/pkgconfig" "$root/lib/cmake/espresso" "$root/bin"
install -m 644 dist/espresso.h "$root/include/espresso.h"
install -m 644 "$build/lib/libespresso.a" "$root/lib/"
install -m 755 "$build/lib/libespresso.so.$version" "$root/lib/"
ln -sf "libespresso.so.$version" "$root/lib/libespresso.so.$major"
ln -sf "libespresso.so.$major" "$root/lib/libespresso.so"
# what other libraries load
for other in "$build"/lib/libespresso-*-shim.so "$build"/lib/libnccl-*.so; do
    [ ! -e "$other" ] || install -m 755 "$other" "$root/lib/"
done
for plugin in "$build"/lib/espresso/*.so; do install -m 755 "$plugin" "$root/lib/espresso/"; done
if [ -x "$build/bin/espresso" ]; then
    command=$build/bin/espresso man=$root/share/man/man1 completions=$root/share/bash-completion/completions
    install -m 755 "$command" "$root/bin/"
    install -d "$man" "$completions"
    "$command" help --man >"$man/espresso.1"
    for name in $("$command" help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do "$command" help --man "$name" >"$man/espresso-$name.1"; done
    "$command" help --completion >"$completions/espresso"
fi
for data in planner/models "$build"/share/espresso/*; do
    if [ ! -d "$data" ]; then continue; fi # systems come with the command
    install -d "$root/share/espresso/${data##*/}"
    install -m 644 "$data"/*.json "$root/share/espresso/${data##*/}/"
done

cat >"$root/lib/pkgconfig/espresso.pc" <<END
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include
plugindir=\${libdir}/espresso

Name: espresso
Description: Compresses and synchronises gradients, tensor by tensor
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lespresso
Libs.private: -pthread -ldl -lm $openmp
END

cat >"$root/lib/cmake/espresso/espressoConfig.cmake" <<'END'
# find_package(espresso), then link to espresso::espresso (shared) or espresso::static
get_filename_component(_espresso_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(espresso_PLUGIN_DIR "${_espresso_prefix}/lib/espresso")
include(CMakeFindDependencyMacro)
find_dependency(Threads)
if(NOT TARGET espresso::espresso)
  add_library(espresso::espresso SHARED IMPORTED)
  set_target_properties(espresso::espresso PROPERTIES
    IMPORTED_LOCATION "${_espresso_prefix}/lib/libespresso.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_espresso_prefix}/include")
  add_library(espresso::static STATIC IMPORTED)
  set_target_properties(espresso::static PROPERTIES
    IMPORTED_LOCATION "${_espresso_prefix}/lib/libespresso.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_espresso_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
unset(_espresso_prefix)
END
if [ -n "$openmp" ]; then
    echo 'set_property(TARGET espresso::static APPEND PROPERTY INTERFACE_LINK_LIBRARIES -fopenmp)' \
        >>"$root/lib/cmake/espresso/espressoConfig.cmake"
fi

cat >"$root/lib/cmake/espresso/espressoConfigVersion.cmake" <<END
set(PACKAGE_VERSION "$version")
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
# before 1.0 a minor version may change the interface
if("\${PACKAGE_FIND_VERSION_MAJOR}.\${PACKAGE_FIND_VERSION_MINOR}" VERSION_EQUAL "${version%.*}"
   AND NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
elseif(PACKAGE_FIND_VERSION STREQUAL "")
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
else()
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
END
# running programs keep the files that are replaced
new=$work/list
(cd "$root" && find . ! -type d | sed 's,^./,,' | sort) >"$new"
(cd "$root" && while read -r file; do
    install -d "$to/${file%/*}"
    cp -d --remove-destination "$file" "$to/$file"
done) <"$new"
# what an earlier version has installed, and this one has not
if [ -e "$to/$list" ]; then comm -23 "$to/$list" "$new" | (root=$to && remove); fi
install -m 644 "$new" "$to/$list"
echo "installed under $to"
