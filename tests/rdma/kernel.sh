# shellcheck shell=bash
# The guest's kernel for other machines: tests/kube/lab has nodes with it.

# kernel_for DIRECTORY MODULE...: in DIRECTORY `vmlinuz` and `modules`, a tree of these modules and of modules that they need.
kernel_for() {
    local directory=$1 work kernel
    shift
    mkdir -p "$CACHE"
    exec {lock}>"$CACHE/.lock"
    flock "$lock"
    host_programs
    [[ $(cat "$GUEST/version" 2>/dev/null) == "$(guest_version)" ]] || (build_guest)
    work=$(mktemp -d "$CACHE/.kernel.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    dpkg-deb -x "$DEBS/kernel/$(head -1 "$GUEST/MANIFEST")" "$work"
    kernel=$(basename "$work"/boot/vmlinuz-*)
    kernel=${kernel#vmlinuz-}
    rm -rf "$directory/modules"
    mkdir -p "$directory"
    MODULES="$*" kernel_modules "$work" "$directory/modules" "$kernel"
    cp "$GUEST/vmlinuz" "$directory/"
    exec {lock}>&-
}
