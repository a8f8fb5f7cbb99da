#!/bin/sh
# install.sh: copies what was built under DESTDIR/PREFIX and writes the pkg-config and CMake files beside it. Both find the
# rest by their own place, so that the tree can be moved.
#     install.sh BUILD PREFIX VERSION        (DESTDIR from the environment; run by `make install`)
set -eu
build=$1 prefix=$2 version=$3
root=${DESTDIR:-}$prefix
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
for plugin in "$build"/lib/espresso/*.so; do install -m 755 "$plugin" "$root/lib/espresso/"; done
if [ -x "$build/bin/espresso" ]; then install -m 755 "$build/bin/espresso" "$root/bin/"; fi
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
echo "installed under $root"
