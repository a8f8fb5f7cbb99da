# test_packages.sh: the source tarball and the Debian package have the same bytes when they are made again, in another
# folder at another time; the tarball is complete; the package's command, manual pages and completion work; `make
# uninstall` leaves nothing but what others have put there. With TEST_ALL=1, also: two builds in two folders make the same
# package.
# runs: slow
# time limit: 900 s
. tests/compile/common.sh
version=$(sed -n 's/^.define ESPRESSO_VERSION "\(.*\)"/\1/p' espresso.h)
work=$tmp/work
mkdir "$work"

# ---- installed and removed ----
export DESTDIR="$tmp/stage"
try make -s install # with the default PREFIX: another one would compile everything again
try make -s install # over itself
touch "$DESTDIR/usr/local/lib/espresso/libespresso-mine.so"
try make -s uninstall
left=$(find "$DESTDIR" ! -type d)
[ "$left" = "$DESTDIR/usr/local/lib/espresso/libespresso-mine.so" ] || { echo "uninstall leaves: $left" && exit 1; }
[ "$(find "$DESTDIR/usr/local" -type d | wc -l)" -eq 3 ] || { find "$DESTDIR/usr/local" && exit 1; }
if make -s uninstall >"$tmp/output" 2>&1; then echo "uninstall of nothing: no error" && exit 1; fi
grep -q "/usr/local/share/espresso/files is not there: set PREFIX and DESTDIR" "$tmp/output" || { cat "$tmp/output" && exit 1; }
unset DESTDIR

# ---- the tarball: complete, and the same from its own folder ----
try make -s tarball
tarball=espresso-$version.tar.gz
export SOURCE_DATE_EPOCH=1700000000 # what is made from here on
try sh espresso_impl/package.sh tarball "$build" "$version"
cp "dist/$tarball" "$work/"
(cd "$work" && tar xzf "$tarball")
cd "$work/espresso-$version"
try gcc -fsyntax-only -I. espresso.c
touch README.md
try sh espresso_impl/package.sh tarball build "$version"
cmp "dist/$tarball" "../$tarball"
rm -r dist
cd "$root"

# ---- the package ----
have dpkg-deb || { leaves_out "the Debian package: dpkg-deb is not there" && checked; }
try make -s deb
deb=espresso_${version}_$(dpkg --print-architecture).deb
cp "dist/$deb" "$work/"
sleep 1
try make -s deb
cmp "dist/$deb" "$work/$deb"
dpkg-deb -x "dist/$deb" "$tmp/root"
dpkg-deb -f "dist/$deb" Depends | grep -q libc6
[ "$("$tmp/root/usr/bin/espresso" --version | cut -d' ' -f2)" = "$version," ]
for name in $("$tmp/root/usr/bin/espresso" help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    page=$tmp/root/usr/share/man/man1/espresso-$name.1.gz
    gzip -dc "$page" | grep -q "^\.SH SYNOPSIS" || { echo "no manual page of $name" && exit 1; }
    ! have groff || [ -z "$(gzip -dc "$page" | groff -man -Tascii -ww 2>&1 >/dev/null)" ] || { echo "groff warns of the manual page of $name" && exit 1; }
done
if have bash; then
    completes() { # WORDS...: prints what bash would offer for the last one
        bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _espresso; echo "${COMPREPLY[*]}"' \
            "$tmp/root/usr/share/bash-completion/completions/espresso" espresso "$@"
    }
    [ "$(completes pl)" = "plan plugins" ]
    [ "$(completes help sta)" = "state" ]
    [ "$(completes run -n 4 --mach)" = "--machines" ]
    [ -z "$(completes run -n 4 tra)" ]
fi

if [ -n "${TEST_ALL:-}" ]; then
    for folder in one another; do
        mkdir "$tmp/$folder"
        (cd "$tmp/$folder" && tar xzf "$work/$tarball" && cd "espresso-$version" && try env OPT=-O0 make -s -j2 NVCC= CCACHE= deb)
    done
    cmp "$tmp/one/espresso-$version/dist/$deb" "$tmp/another/espresso-$version/dist/$deb"
fi
checked
