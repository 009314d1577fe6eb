# shellcheck shell=bash
# Images of the lab. Nothing is ever pulled: archives are unpacked once, into a store of their own, and the nodes share
# its files by hard links, because unpacking a big image takes 15 s and its full size per node, and links take neither.

IMAGES_VERSION=1
STORES_KEPT=2

takes_images() { echo "2 s"; }
have_images() { built images "$IMAGES_VERSION"; }

# pause (holds the namespaces of a pod) and busybox (a shell for tests). Debian's static busybox crashes when it looks up
# a name, so curl comes along, with its libraries.
get_images() {
    local tree applet file
    tree=$(mktemp -d)
    mkdir -p "$IMAGES" "$tree/pause" "$tree/box"/{bin,etc,tmp,proc,sys,dev,root}
    (cd "$HERE/go/pause" && go build -ldflags "-s -w" -o "$tree/pause/pause" main.go)
    "$HERE/mkimage.py" ferry.lab/pause:1 "$tree/pause" "$IMAGES/pause.tar" /pause
    cp "$(command -v busybox)" "$tree/box/bin/busybox"
    for applet in $(busybox --list); do
        [[ $applet == busybox ]] || ln -s busybox "$tree/box/bin/$applet"
    done
    file=$(command -v curl)
    # shellcheck disable=SC2046
    cp -L --parents "$file" $(ldd "$file" | grep -o '/[^ ]*') "$tree/box/"
    echo 'root:x:0:0:root:/root:/bin/sh' >"$tree/box/etc/passwd"
    "$HERE/mkimage.py" ferry.lab/busybox:1 "$tree/box" "$IMAGES/busybox.tar"
    rm -rf "$tree"
    echo "$IMAGES_VERSION" >"$BIN/.images"
}

# image_store ARCHIVE...: sets IMAGE_STORE to a directory in which containerd has these images.
image_store() {
    local key state
    key=$(sha256sum "$@" | cut -d' ' -f1 | sort | sha256sum | cut -c1-16)
    IMAGE_STORE=$STORES/$key
    if [[ -d $IMAGE_STORE ]]; then touch "$IMAGE_STORE"; return; fi
    say "unpacking $# images, once"
    state=$(mktemp -d)
    mkdir -p "$STORES"
    rm -rf "$IMAGE_STORE.new"
    cat >"$state/config.toml" <<TOML
version = 2
root = "$IMAGE_STORE.new"
state = "$state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "$state/sock"
TOML
    start store "" containerd --config "$state/config.toml" --log-level error
    wait_for 20 containerd ctr -a "$state/sock" version
    local archive
    for archive in "$@"; do
        ctr -a "$state/sock" -n k8s.io images import "$archive" >/dev/null || { stop store; die "could not import $archive"; }
    done
    stop store
    rm -rf "$state"
    mv "$IMAGE_STORE.new" "$IMAGE_STORE"
    # Nodes keep their links, so an old store may go at any time.
    # shellcheck disable=SC2012
    ls -dt "$STORES"/*/ | tail -n +$((STORES_KEPT + 1)) | xargs -r rm -rf
}

# Gives a new node the images of the store: layers are never written to, databases must be copies of their own.
link_images() {
    local database
    cp -al "$IMAGE_STORE" "$1"
    (cd "$IMAGE_STORE" && find . -name '*.db') | while read -r database; do
        cp --remove-destination "$IMAGE_STORE/$database" "$1/$database"
    done
}

image_load() {
    local archive directory
    [[ $# -gt 0 ]] || die "usage: lab image-load ARCHIVE..."
    for archive in "$@"; do
        [[ -f $archive ]] || die "there is no archive $archive"
        for directory in "$RUN"/n[0-9]*/; do
            node_exec "$(basename "$directory" | tr -d n)" ctr -n k8s.io images import "$(readlink -f "$archive")" >/dev/null
        done
    done
}
