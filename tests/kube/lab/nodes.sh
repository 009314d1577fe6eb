# shellcheck shell=bash
# A whole lab, and the faults of its nodes. Every node and the control plane have a network namespace of their own. A bridge
# in the namespace of the control plane connects them, and the host's network does not change.

lab_up() {
    local count=${1:-3} i
    [[ $count =~ ^[1-9][0-9]?$ ]] || die "usage: lab up N [ARCHIVE...]; N is the number of nodes"
    [[ $# -eq 0 ]] || shift
    [[ $(id -u) == 0 ]] || die "nodes need root; without it there is \`lab api-up\`, or a cluster you have (KUBECONFIG and FERRY_KUBE_EXISTING=1)"
    setup nodes
    begin_lab
    ((${#RUN} < 90)) || die "the path $RUN is too long for a socket in it: set FERRY_LAB_CACHE to a shorter one"
    image_store "$IMAGES"/*.tar "$@"
    CP_NETNS=$PREFIX-cp CP_ADDR=${NODE_NET}1 SECURE_PORT=6443
    keep CP_NETNS CP_ADDR API_PORT SECURE_PORT IMAGE_STORE PROXY_MODE FAMILY
    # Kubelets change these for the whole machine; the last lab that goes puts them back.
    [[ -f $CACHE/sysctl ]] || sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops >"$CACHE/sysctl"
    guard_owner
    make_network
    name_nodes
    start_api
    start_controllers
    start_dns
    for i in $(seq "$count"); do node_up "$i"; done
    kctl apply -f <(make_volumes) >/dev/null
    for i in $(seq "$count"); do wait_for 90 "node n$i to be ready" is_ready "$i"; done
    wait_for 60 "the service account default/default" kctl -n default get serviceaccount default
    say "$count nodes ready after $SECONDS s; export KUBECONFIG=$ADMIN_KUBECONFIG"
}

is_ready() { [[ $(kctl get node "n$1" -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}') == True ]]; }

lab_down() {
    local daemon directory file
    [[ -d $RUN ]] || return 0
    stop guard
    for directory in "$RUN"/n[0-9]*/; do
        [[ ! -d $directory ]] || node_kill "$(basename "$directory" | tr -d n)" &
    done
    for daemon in store dns kube-scheduler kube-controller-manager forward-out forward-in etcd; do stop $daemon KILL & done
    stop kube-apiserver KILL # its graceful end would only be waited for
    wait
    for file in /run/netns/"$PREFIX"-*; do [[ ! -e $file ]] || ip netns del "${file##*/}"; done
    drop_cgroups "$PREFIX"
    rm -rf "$RUN"
    if [[ -f $CACHE/sysctl && -z $(compgen -G "$CACHE/runs/*/n[0-9]*") ]]; then
        sysctl -q -p "$CACHE/sysctl" || true
        rm -f "$CACHE/sysctl"
    fi
}

lab_status() {
    local file name pid
    [[ -f $RUN/settings ]] || { say "the lab '$NAME' is not up"; return 1; }
    for file in "$RUN"/*.pid "$RUN"/n[0-9]*/*.pid; do
        [[ -f $file ]] || continue
        name=${file#"$RUN/"} name=${name%.pid}
        if pid=$(pid_of "$name"); then
            printf '%-26s pid %-8s %5d MB\n' "$name" "$pid" $(($(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status") / 1024))
        else
            printf '%-26s ended\n' "$name"
        fi
    done
    printf 'kubeconfig %s\nlogs       %s\n' "$ADMIN_KUBECONFIG" "$RUN/*.log $RUN/n*/*.log"
    kctl get nodes -o wide
}

# --- network ----------------------------------------------------------------------------------------------------------

# A network that forwards. Addresses are not tried before they are used: they would be unusable for a second.
add_network() {
    ip netns add "$1"
    in_ns "$1" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.default.accept_dad=0
    in_ns "$1" ip link set lo up
}

make_network() {
    add_network "$CP_NETNS"
    in_ns "$CP_NETNS" ip link add br0 type bridge
    in_ns "$CP_NETNS" ip addr add "${NODE_NET}1/$NODE_BITS" dev br0
    in_ns "$CP_NETNS" ip link set br0 up
}

# Every node has a name on every node, also a node that comes later.
name_nodes() {
    local i
    echo "127.0.0.1 localhost" >"$RUN/hosts"
    for i in $(seq 99); do echo "$(node_ip "$i") n$i"; done >>"$RUN/hosts"
}

# connect I: eth0 of the node is a port of the bridge; its pods are known to everyone.
connect() {
    local node=n$1 ns=$PREFIX-n$1 ip=$(node_ip "$1") file other
    add_network "$ns"
    in_ns "$ns" ip link add eth0 type veth peer name "$node" netns "$CP_NETNS"
    in_ns "$CP_NETNS" ip link set "$node" master br0 up
    in_ns "$ns" ip addr add "$ip/$NODE_BITS" dev eth0
    in_ns "$ns" ip link set eth0 up
    # Nothing is behind the default route, but the kernel asks for a route before kube-proxy's rules rewrite an address.
    in_ns "$ns" ip route add default via "${NODE_NET}1"
    in_ns "$CP_NETNS" ip route replace "$(pods_of "$1")" via "$ip"
    for file in /run/netns/"$PREFIX"-n*; do
        other=${file##*-n}
        [[ $other != "$1" ]] || continue
        in_ns "$PREFIX-n$other" ip route replace "$(pods_of "$1")" via "$ip"
        in_ns "$ns" ip route replace "$(pods_of "$other")" via "$(node_ip "$other")"
    done
}

# --- what happens to nodes --------------------------------------------------------------------------------------------

node_up() {
    local node=n$1 directory=$RUN/n$1
    if is_machine "$1"; then vm_up "$1"; return; fi
    [[ -n $CP_NETNS ]] || die "this lab has no nodes: lab down, then lab up N"
    ! alive "$node/init" || die "$node is up already"
    [[ -e /run/netns/$PREFIX-$node ]] || connect "$1"
    mkdir -p "$directory"/{kubelet,log,cni,disk}
    [[ -f $directory/cut ]] || in_ns "$CP_NETNS" ip link set "$node" up
    [[ -d $directory/containerd ]] || link_images "$directory/containerd"
    make_cgroups "$1"
    configure_node "$1"
    # When the recorded process ends, the first process of the node is killed, and with it every process of the node.
    start "$node/init" "$PREFIX-$node" unshare --mount --uts --ipc --pid --fork --mount-proc --propagation private \
        --kill-child=KILL "$HERE/lab" node-init "$1"
    wait_for 60 "containerd on $node" node_exec "$1" ctr version
}

# The network goes first: a machine without power does not even close its connections.
node_kill() {
    local outer inner
    outer=$(pid_of "n$1/init") || return 0
    inner=$(first_process "$outer") || inner=
    in_ns "$CP_NETNS" ip link set "n$1" down
    stop "n$1/init" KILL
    [[ -z $inner ]] || while [[ -n $(began "$inner") ]]; do sleep 0.05; done
}

# The first process of a node, from the process that holds the namespaces of the node.
first_process() { awk '{ print $1 }' "/proc/$1/task/$1/children" 2>/dev/null; }

node_exec() {
    local outer inner
    if is_machine "$1"; then machine_exec "$@"; return; fi
    outer=$(pid_of "n$1/init") || die "n$1 is not up"
    inner=$(first_process "$outer")
    shift
    nsenter -t "$inner" --mount --uts --ipc --net --pid "$@"
}

node_cut() {
    local i=$1 other=${2:-all}
    [[ -d $RUN/n$i ]] || die "there is no node n$i"
    case $other in
        all)
            touch "$RUN/n$i/cut" # holds when the node is booted meanwhile
            in_ns "$CP_NETNS" ip link set "n$i" down ;;
        cp) cuts && in_ns "$CP_NETNS" nft add element bridge cut cp "{ n$i }" ;;
        *) cuts && in_ns "$CP_NETNS" nft add element bridge cut pairs "{ n$i . n$other, n$other . n$i }" ;;
    esac
}

# Filters of the bridge, made on first use.
cuts() {
    in_ns "$CP_NETNS" nft list table bridge cut >/dev/null 2>&1 || in_ns "$CP_NETNS" nft -f - <<'NFT'
table bridge cut {
  set pairs { type ifname . ifname; }
  set cp { type ifname; }
  chain forward { type filter hook forward priority 0; iifname . oifname @pairs drop; }
  chain input { type filter hook input priority 0; iifname @cp drop; }
  chain output { type filter hook output priority 0; oifname @cp drop; }
}
NFT
}

node_heal() {
    local i=$1 file other
    [[ -d $RUN/n$i ]] || die "there is no node n$i"
    rm -f "$RUN/n$i/cut"
    ! alive "n$i/init" || in_ns "$CP_NETNS" ip link set "n$i" up
    in_ns "$CP_NETNS" nft delete element bridge cut cp "{ n$i }" 2>/dev/null || true
    for file in /run/netns/"$PREFIX"-n*; do
        other=${file##*-n}
        in_ns "$CP_NETNS" nft delete element bridge cut pairs "{ n$i . n$other, n$other . n$i }" 2>/dev/null || true
    done
}
