#!/bin/sh
# package.sh: writes dist/espresso-VERSION.tar.gz, the sources, or dist/espresso_VERSION_ARCHITECTURE.deb, what `make
# install PREFIX=/usr` installs. Neither depends on when, where or by whom it is made: all times in it are that of the
# last commit, or SOURCE_DATE_EPOCH.
#     package.sh tarball|deb BUILD VERSION        (in the project's root; run by `make tarball` and `make deb`)
set -eu
what=$1 build=$2 version=$3
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y espresso.h)}
export SOURCE_DATE_EPOCH LC_ALL=C
umask 022
mkdir -p dist

if [ "$what" = tarball ]; then
    name=espresso-$version
    { git ls-files 2>/dev/null || find . -type f ! -path './build*' ! -path './dist/*' | sed 's,^\./,,'; } | sort |
        tar -c -T - --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
            --format=ustar --transform="s,^,$name/," | gzip -9n >"dist/$name.tar.gz"
    echo "dist/$name.tar.gz"
    exit
fi

command -v dpkg-deb >/dev/null || { echo "make deb: dpkg-deb is not there (Debian: dpkg)" >&2 && exit 1; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
DESTDIR=$root sh espresso_impl/install.sh "$build" /usr "$version" >/dev/null
rm "$root/usr/share/espresso/files" # dpkg has its own list
# debug information has the path of the build folder
find "$root/usr" -name '*.so*' -type f -o -path '*/bin/*' -type f -o -name '*.a' |
    xargs strip --strip-unneeded -R .note.gnu.build-id
gzip -9n "$root"/usr/share/man/man1/*
install -d "$root/usr/share/doc/espresso" "$root/DEBIAN"
cp LICENSE "$root/usr/share/doc/espresso/copyright"
# the packages of the shared libraries that files need
packages() { # FILE...
    for library in $(objdump -p "$@" | sed -n 's/^ *NEEDED *//p' | sort -u); do
        path=$(ldd "$@" | sed -n "s,^[[:space:]]*$library => \\(/usr\\)\\?\\(/[^ ]*\\) .*,\\2,p" | head -n 1)
        # dpkg knows it by its path with /usr or without
        [ -z "$path" ] || dpkg -S "*$path" 2>/dev/null | head -n 1 | cut -d: -f1
    done | sort -u
}
packages "$root/usr/bin/espresso" "$root"/usr/lib/libespresso.so >"$root/DEBIAN/needed"
packages "$root"/usr/lib/espresso/*.so | comm -13 "$root/DEBIAN/needed" - >"$root/DEBIAN/more"
listed() { paste -s -d, "$1" | sed 's/,/, /g'; }
cat >"$root/DEBIAN/control" <<END
Package: espresso
Version: $version
Architecture: $(dpkg --print-architecture)
Section: libs
Priority: optional
Maintainer: Espresso in C maintainers <espresso@localhost>
Installed-Size: $(find "$root/usr" -type f -size +0 -printf '%s\n' | awk '{ n += int(($1 + 1023) / 1024) } END { print n }')
Depends: $(listed "$root/DEBIAN/needed")
Suggests: $(listed "$root/DEBIAN/more")
Description: averages and compresses gradients of data-parallel training
 A library for C and C++ trainers, with codecs, backends, a planner that decides
 for each tensor whether to compress it, and the command espresso. The suggested
 packages are for backends that plugins connect.
END
rm "$root/DEBIAN/needed" "$root/DEBIAN/more"
deb=dist/espresso_${version}_$(dpkg --print-architecture).deb
dpkg-deb --root-owner-group -Zxz -z3 --build "$root" "$deb" >/dev/null
echo "$deb"
