# shellcheck shell=bash
# A node that is a virtual machine, with a kernel, control groups (version 2) and a Soft-RoCE device of its own; tests/rdma has
# the kernel. Emulated, never /dev/kvm. Its root is this machine's, read-only and below a tmpfs, so that all programs of a node
# are there; the disk with the images, and with what the kubelet writes, is made when the machine is. Two cards: eth0 on the
# bridge of all nodes, eth1 (10.251.0.(10+i)) for RDMA alone. The recorded process of such a node is the emulator.

RDMA_NET=10.251.0
MACHINE=$BUILT/machine # vmlinuz, modules
MACHINE_VERSION=1
MACHINE_CPUS=${FERRY_LAB_CPUS:-1}
MACHINE_MEMORY=${FERRY_LAB_MEMORY:-4000} # MiB
MACHINE_DISK=12G                         # a file with holes
MACHINE_MODULES=(virtio_pci virtio_net virtio_blk ext4 crc32c_generic 9p 9pnet_virtio overlay
    bridge br_netfilter veth rdma_rxe crc32_generic ib_uverbs rdma_ucm
    nf_tables nft_compat nft_chain_nat nft_ct nft_log nft_limit nft_reject_inet nft_masq nft_redir nft_numgen nft_objref
    nf_conntrack_netlink nfnetlink_log ip_set_hash_ip ip_set_hash_net ip_set_hash_ipport ip_set_bitmap_port ip_set_list_set
    xt_comment xt_conntrack xt_mark xt_connmark xt_MASQUERADE xt_nat xt_REDIRECT xt_statistic xt_addrtype xt_tcpudp xt_multiport
    xt_set xt_NFLOG xt_recent xt_limit ipt_REJECT)

takes_machine() { echo "3 min"; }
have_machine() {
    local command
    for command in qemu-system-x86_64 cpio zstd mke2fs; do command -v $command >/dev/null || return 1; done
    built machine "$MACHINE_VERSION ${MACHINE_MODULES[*]}"
}
get_machine() {
    "$HERE/../../rdma/guest" kernel "$MACHINE" "${MACHINE_MODULES[@]}" || die "there is no kernel for machines"
    echo "$MACHINE_VERSION ${MACHINE_MODULES[*]}" >"$BIN/.machine"
}

is_machine() { [[ -f $RUN/n$1/machine ]]; }

# --- on the host --------------------------------------------------------------------------------------------------------

vm_up() {
    local node=n$1 directory=$RUN/n$1
    [[ -n $CP_NETNS ]] || die "this lab has no nodes: lab down, then lab up N"
    ! alive "$node/init" || die "$node is up already"
    [[ ! -d $directory ]] || is_machine "$1" || die "$node is no machine"
    [[ $FAMILY == ipv4 ]] || die "machines have addresses of IPv4 alone"
    setup machine
    mkdir -p "$directory"/{kubelet,log,cni,disk,containerd,asks}
    touch "$directory/machine"
    rm -f "$directory"/asks/*
    connect_machine "$1"
    NODE_REPORT=10s configure_node "$1"
    [[ -f $directory/image ]] || mke2fs -q -t ext4 -O ^has_journal -E lazy_itable_init=1 -d "$IMAGE_STORE" "$directory/image" "$MACHINE_DISK"
    pack_machine "$1" >"$directory/initrd"
    start "$node/init" "$CP_NETNS" qemu-system-x86_64 -name "$node" -accel tcg,thread=multi,tb-size=1024 -cpu max \
        -smp "$MACHINE_CPUS" -m "$MACHINE_MEMORY" -kernel "$MACHINE/vmlinuz" -initrd "$directory/initrd" \
        -append "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check random.trust_cpu=on" \
        -nodefaults -nographic -serial stdio -no-reboot \
        -drive "file=$directory/image,format=raw,if=virtio,cache=unsafe" \
        -virtfs "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap" \
        -virtfs "local,path=$RUN,mount_tag=run,security_model=none,multidevs=remap" \
        -netdev "tap,id=all,ifname=$node,script=no,downscript=no" \
        -device "virtio-net-pci,netdev=all,mac=52:54:00:00:00:$(printf %02x "$1"),romfile=" \
        -netdev "tap,id=rdma,ifname=$node-rdma,script=no,downscript=no" \
        -device "virtio-net-pci,netdev=rdma,mac=52:54:00:00:01:$(printf %02x "$1"),romfile="
    wait_for 240 "containerd on $node" machine_exec "$1" ctr version
}

# Cards of the emulator, and the ways to the pods of the node.
connect_machine() {
    local node=n$1 ip=$(node_ip "$1") file tap
    # Another machine may make the bridge at the same time.
    in_ns "$CP_NETNS" ip link add rdma mtu 4500 type bridge 2>/dev/null || in_ns "$CP_NETNS" ip link show rdma >/dev/null
    in_ns "$CP_NETNS" ip link set rdma up
    for tap in "$node" "$node-rdma"; do
        in_ns "$CP_NETNS" ip link show "$tap" >/dev/null 2>&1 || in_ns "$CP_NETNS" ip tuntap add "$tap" mode tap
    done
    in_ns "$CP_NETNS" ip link set "$node" master br0 up
    in_ns "$CP_NETNS" ip link set "$node-rdma" mtu 4500 master rdma up
    for file in "$CP_NETNS" /run/netns/"$PREFIX"-n*; do
        in_ns "${file##*/}" ip route replace "$(pods_of "$1")" via "$ip"
    done
}

# The initial file system: busybox, modules, and a first process that goes on as `lab vm-init` on this machine's root.
pack_machine() {
    local tree
    tree=$(mktemp -d)
    mkdir -p "$tree"/{bin,lib,proc,sys,dev,host,layers,new}
    cp -a "$MACHINE/modules/lib/modules" "$tree/lib/"
    cp "$(command -v busybox)" "$tree/bin/busybox"
    cat >"$tree/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
die() { echo "machine: \$*"; poweroff -f; }
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in virtio_pci 9pnet_virtio 9p overlay; do modprobe \$module || die "no module \$module"; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose root /host || die "no root"
mount -t tmpfs -o size=50% layers /layers
mkdir -p /layers/upper/usr/lib /layers/work
cp -a /lib/modules /layers/upper/usr/lib/
mount -t overlay -o lowerdir=/host,upperdir=/layers/upper,workdir=/layers/work overlay /new || die "no overlay"
for one in proc sys dev; do mount --move /\$one /new/\$one; done
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME='$HOME' FERRY_LAB='$NAME' FERRY_LAB_CACHE='$CACHE' FERRY_LAB_KUBE='$KUBE_VERSION'
exec switch_root /new '$HERE/lab' vm-init $1
INIT
    chmod +x "$tree/init"
    (cd "$tree" && find . -print0 | cpio --null -o -H newc --quiet) | zstd -q -T0 -3
    rm -rf "$tree"
}

# A command is asked for by a file; the machine answers by files. That needs no network, and works while a card is unplugged.
machine_exec() {
    local node=n$1 ask=$RUN/n$1/asks/$BASHPID-$RANDOM status
    alive "$node/init" || die "$node is not up"
    shift
    printf '%q ' "$@" >"$ask.new"
    mv "$ask.new" "$ask.ask"
    until [[ -s $ask.status ]]; do
        alive "$node/init" || die "$node has ended"
        sleep 0.1
    done
    status=$(<"$ask.status")
    cat "$ask.out"
    cat "$ask.err" >&2
    rm -f "$ask".*
    return "$status"
}

# --- in the machine -----------------------------------------------------------------------------------------------------

vm_init() {
    set +e
    mount_machine "$1" || { echo "machine: no file systems"; exit 1; }
    answer "$RUN/n$1/asks" &
    network_machine "$1"
    make_cgroups "$1"
    rdma link add rxe0 type rxe netdev eth1
    # It is slow: pods need a toleration, and the kubelet looks at containers less often.
    export GOGC=400
    run_kubelet "$1" --register-with-taints=ferry.lab/machine=:NoSchedule --housekeeping-interval=60s
    reap
}

mount_machine() {
    local directory=$RUN/n$1 part path
    mkdir -p /dev/shm /dev/pts
    mount -t tmpfs shm /dev/shm
    mount -t devpts pts /dev/pts
    mount -t cgroup2 cgroup /sys/fs/cgroup
    for path in /tmp /run /var/lib/kubelet /var/log/containers; do
        mkdir -p "$path"
        mount -t tmpfs tmpfs "$path"
    done
    mkdir -p /run/lock
    # Without a cache both sides see the files of each other at once.
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap run "$RUN" || return
    modprobe -a "${MACHINE_MODULES[@]}"
    mount -t ext4 /dev/vda "$directory/containerd" || return
    for part in kubelet log disk; do
        mkdir -p "$directory/containerd/of-node/$part"
        mount --bind "$directory/containerd/of-node/$part" "$directory/$part"
    done
    mount --bind "$directory/disk" /mnt
    mount --bind "$RUN/hosts" /etc/hosts
    mount --make-rshared /
    ulimit -n 1048576
}

network_machine() {
    local other
    ip link set lo up
    ip addr add "$(node_ip "$1")/$NODE_BITS" dev eth0
    ip link set eth0 up
    ip route add default via "${NODE_NET}1"
    ip addr add "$RDMA_NET.$((10 + $1))/24" dev eth1
    ip link set eth1 mtu 4500 up
    sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1
    for other in $(seq 20); do
        [[ $other == "$1" ]] || ip route add "$(pods_of "$other")" via "$(node_ip "$other")"
    done
}

answer() {
    local ask
    while :; do
        for ask in "$1"/*.ask; do
            [[ -f $ask ]] || continue
            mv "$ask" "${ask%.ask}.taken"
            answer_one "${ask%.ask}" &
        done
        sleep 0.5
    done
}

answer_one() {
    local status=0
    bash "$1.taken" >"$1.out" 2>"$1.err" </dev/null || status=$?
    echo "$status" >"$1.new"
    mv "$1.new" "$1.status"
}
