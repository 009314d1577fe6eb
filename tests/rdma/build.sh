# shellcheck shell=bash
# Builds the guest from packages of Debian alone, once: a change of the list of packages or of this file builds it again.
# Results are replaced only when the whole build has succeeded.

# qemu-img etc. are not needed; the order is package:program.
HOST_PROGRAMS="qemu-system-x86:qemu-system-x86_64 debootstrap:debootstrap zstd:zstd cpio:cpio kmod:depmod"

guest_version() { cat "$HERE/settings.sh" "$HERE/build.sh" "$HERE/init.sh" | sha256sum | cut -c1-16; }
# The libraries of this clone's environment, in the same versions, because the guest loads kernels that are compiled here. Packages
# for an older Python alone are left out.
wanted() {
    "$ROOT/.venv/bin/python" -c "import sys; from importlib.metadata import distributions
here = {one.name.lower(): one.version for one in distributions()}
for name in sys.argv[1:]: print(f'{name}=={here[name]}' if name in here else name)" $LIBRARIES
}
site_version() { { wanted; echo "$PYTHON"; } | sha256sum | cut -c1-16; }
kernel_sources() { find "$ROOT"/runtime/ferry/{kernels,store} "$ROOT/images/warm_kernels.py" -name '*.py' | LC_ALL=C sort; }
kernels_version() { { site_version; sha256sum $(kernel_sources); } | sha256sum | cut -c1-16; }

setup() {
    mkdir -p "$CACHE"
    exec {lock}>"$CACHE/.lock"
    flock "$lock"
    host_programs
    [[ $(cat "$GUEST/version" 2>/dev/null) == "$(guest_version)" ]] || build_guest
    [[ $(cat "$SITE/.version" 2>/dev/null) == "$(site_version)" ]] || build_site
    [[ $(cat "$SITE/.kernels/version" 2>/dev/null) == "$(kernels_version)" ]] || build_kernels
    exec {lock}>&-
}

host_programs() {
    local entry missing=()
    for entry in $HOST_PROGRAMS; do
        command -v "${entry#*:}" >/dev/null || missing+=("${entry%%:*}")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    [[ $(id -u) == 0 ]] || die "needs root to install: ${missing[*]}"
    say "installing ${missing[*]}"
    apt-get update -qq >/dev/null || true
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >"$CACHE/apt.log" 2>&1 ||
        { tail -20 "$CACHE/apt.log" >&2; die "could not install ${missing[*]}"; }
}

build_site() {
    say "libraries for the guest's Python: $LIBRARIES"
    rm -rf "$SITE.new"
    "$ROOT/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --target "$SITE.new" \
        --python-version "$PYTHON" --only-binary=:all: --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
        $(wanted) >&2
    rm -rf "$SITE.new"/{pyarrow/include,pyarrow/tests,numba/tests,numba/cuda/tests,numpy/tests}
    site_version >"$SITE.new/.version"
    rm -rf "$SITE"
    mv "$SITE.new" "$SITE"
}

# Functions that a sidecar compiles when it starts: here that takes a minute, on an emulated processor very long. Numba looks for
# them by the directory of their sources, which is another one in a guest.
build_kernels() {
    local new=$CACHE/.kernels.$$ directory
    "$ROOT/.venv/bin/python" -c "import sys; sys.exit(f'{sys.version_info[0]}.{sys.version_info[1]}' != '$PYTHON')" ||
        die "the guest's kernels have to be compiled with Python $PYTHON: make setup with that one"
    say "compiling the sidecar's kernels for the guest"
    mkdir -p "$new"
    NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES="" NUMBA_CACHE_DIR=$new PYTHONPATH=$ROOT/runtime:$ROOT/bench/workloads \
        "$ROOT/.venv/bin/python" "$ROOT/images/warm_kernels.py" >&2
    directory=$(echo "$new"/kernels_*)
    mv "$directory" "$new/kernels_$(printf %s /ferry/runtime/ferry/kernels | sha1sum | cut -d" " -f1)"
    kernels_version >"$new/version"
    rm -rf "$SITE/.kernels"
    mv "$new" "$SITE/.kernels"
}

build_guest() {
    local work root kernel deb
    [[ $(id -u) == 0 ]] || die "needs root to build the guest"
    work=$CACHE/.build.$$ root=$CACHE/.build.$$/root
    mkdir -p "$work/kernel" "$DEBS/packages" "$DEBS/kernel"
    # shellcheck disable=SC2064
    trap "rm -rf --one-file-system '$work'" EXIT
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C
    apt-cache show "linux-image-$ARCH" >/dev/null 2>&1 || apt-get update -qq >&2
    # linux-image-amd64 only depends on the real one, whose name holds the version.
    kernel=$(apt-cache depends --no-recommends --no-suggests "linux-image-$ARCH" |
        sed -n 's/.*Depends: linux-image-\([0-9][^ ]*\).*/\1/p' | head -1)
    [[ -n $kernel ]] || die "cannot tell which kernel linux-image-$ARCH is"
    deb=$(find "$DEBS/kernel" -name "linux-image-${kernel}_*.deb" | sort | tail -1)
    if [[ -z $deb ]]; then
        say "downloading kernel $kernel"
        (cd "$DEBS/kernel" && apt-get download -qq -o APT::Sandbox::User=root "linux-image-$kernel") >&2
        deb=$(find "$DEBS/kernel" -name "linux-image-${kernel}_*.deb" | sort | tail -1)
    fi
    dpkg-deb -x "$deb" "$work/kernel"
    root_files "$work" "$root"
    kernel_modules "$work/kernel" "$root" "$kernel"
    prune "$root"
    install -m755 "$HERE/init.sh" "$root/init.sh"
    echo '127.0.0.1 localhost' >"$root/etc/hosts"
    mknod -m 600 "$root/dev/console" c 5 1 2>/dev/null || true # needed before /dev is mounted
    chroot "$root" python3 -c 'import ctypes, json, mmap, socket, ssl, sqlite3, pyverbs.device, pyverbs.qp, pyverbs.mr' ||
        die "something that the guest needs was pruned"
    say "packing"
    (cd "$root" && find . -print0 | LC_ALL=C sort -z | cpio --null -o -H newc --quiet) | zstd -q -T0 -10 >"$work/initrd.zst"
    rm -rf "$GUEST.new"
    mkdir "$GUEST.new"
    mv "$work/initrd.zst" "$GUEST.new/"
    cp "$work/kernel/boot/vmlinuz-$kernel" "$GUEST.new/vmlinuz"
    { basename "$deb"; cat "$work/packages"; } >"$GUEST.new/MANIFEST"
    guest_version >"$GUEST.new/version"
    rm -rf "$GUEST"
    mv "$GUEST.new" "$GUEST"
    say "the guest is built: $(du -sh "$GUEST" | cut -f1)"
}

# Mirror and proxy come from the settings of this machine's apt.
root_files() {
    local work=$1 root=$2 mirror proxy=
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $SUITE" | head -1)
    [[ -n $mirror ]] || die "apt has no source for $SUITE"
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    [[ -z $proxy ]] || export http_proxy=$proxy
    say "installing $SUITE into the guest"
    debootstrap --variant=minbase --arch="$ARCH" --cache-dir="$DEBS/packages" --include="${PACKAGES// /,}" \
        "$SUITE" "$root" "$mirror" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; die "debootstrap failed"; }
    dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${Package} ${Version}\n' >"$work/packages"
}

kernel_modules() {
    local from=$1 root=$2 kernel=$3 module file
    depmod -b "$from" "$kernel"
    mkdir -p "$root/lib/modules/$kernel"
    cp "$from/lib/modules/$kernel"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$kernel/"
    for module in $MODULES; do
        modprobe -d "$from" -S "$kernel" --show-depends "$module" || die "kernel $kernel has no module $module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r file; do
        install -D -m644 "$file" "$root/${file#"$from/"}"
    done
    depmod -b "$root" "$kernel"
}

# Every megabyte is unpacked by an emulated processor at every boot.
prune() {
    local root=$1
    ! grep -q " $root/" /proc/mounts || die "something is mounted below $root"
    (
        cd "$root"
        rm -rf etc/apt var/lib/apt var/cache/* var/log/* var/lib/dpkg usr/lib/apt usr/bin/apt* usr/bin/dpkg* usr/sbin/dpkg*
        rm -rf usr/share/{doc,man,info,locale,zoneinfo,lintian,bash-completion,bug,common-licenses,perl5,debconf,menu}
        rm -rf usr/share/{pixmaps,doc-base,gdb} usr/lib/python3.11/{idlelib,lib2to3,pydoc_data,test,ensurepip,tkinter}
        rm -rf usr/bin/perl* usr/lib/x86_64-linux-gnu/perl* usr/share/perl* usr/lib/x86_64-linux-gnu/libperl*
        rm -rf usr/lib/udev/hwdb.* boot/* dev/* tmp/* run/* proc/* sys/*
        find usr/lib/x86_64-linux-gnu/gconv usr/lib/locale -mindepth 1 -not -path '*C.utf8*' -delete 2>/dev/null || true
    )
    chroot "$root" python3 -m compileall -q /usr/lib/python3.11 /usr/lib/python3/dist-packages >/dev/null 2>&1 || true
}
