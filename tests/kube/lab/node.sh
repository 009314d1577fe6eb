# shellcheck shell=bash
# One node: its control groups, its configuration files, and its first process. A node is one tree of
# processes in network, mount, pid, uts and ipc namespaces of its own, with its own containerd, kubelet and kube-proxy.

# --- control groups: a subtree per node -------------------------------------------------------------------------------

make_cgroups() {
    local node=$PREFIX/n$1 part hierarchy directory key limit
    # Control groups of a former life go first, as in a reboot: the kubelet would wait 3 s for the lost container of each.
    drop_cgroups "$node"
    for part in "$PREFIX" "$node"; do
        if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then # version 2
            sed 's/[^ ][^ ]*/+&/g' "/sys/fs/cgroup/$(dirname "$part")/cgroup.controllers" \
                >"/sys/fs/cgroup/$(dirname "$part")/cgroup.subtree_control" || true
            mkdir -p "/sys/fs/cgroup/$part"
            continue
        fi
        # The kubelet wants its root in every hierarchy it uses, and a cpuset is unusable until it has cpus and mems.
        for hierarchy in cpu cpuacct cpuset memory pids blkio devices freezer systemd; do
            directory=/sys/fs/cgroup/$hierarchy/$part
            mkdir -p "$directory"
            [[ $hierarchy != cpuset ]] || for key in cpuset.cpus cpuset.mems; do cat "$directory/../$key" >"$directory/$key"; done
        done
    done
    [[ -n $NODE_MEMORY ]] || return 0
    limit=/sys/fs/cgroup/memory/$node/memory.limit_in_bytes
    [[ -f $limit ]] || limit=/sys/fs/cgroup/$node/memory.max
    echo "$NODE_MEMORY" >"$limit"
}

# drop_cgroups PATH: removes a subtree from every hierarchy. What ran there was killed, but may take a moment to be gone.
drop_cgroups() {
    local hierarchy left
    for _ in $(seq 50); do
        left=0
        for hierarchy in /sys/fs/cgroup/ /sys/fs/cgroup/*/; do
            [[ ! -d $hierarchy$1 ]] || find "$hierarchy$1" -depth -type d -exec rmdir {} + 2>/dev/null || left=1
        done
        ((left)) || return 0
        sleep 0.1
    done
    say "warning: the control group $1 is still in use"
}

node_freeze() { set_frozen "$1" FROZEN 1 || die "n$1 has no pods"; }
node_thaw() { set_frozen "$1" THAWED 0 || true; }

set_frozen() {
    local pods=$PREFIX/n$1/kubepods
    if [[ -d /sys/fs/cgroup/freezer/$pods ]]; then
        echo "$2" >"/sys/fs/cgroup/freezer/$pods/freezer.state"
    elif [[ -d /sys/fs/cgroup/$pods ]]; then
        echo "$3" >"/sys/fs/cgroup/$pods/cgroup.freeze"
    else
        return 1
    fi
}

# --- configuration ----------------------------------------------------------------------------------------------------

configure_node() {
    local node=n$1 directory=$RUN/n$1 server
    server=https://$(netloc "$CP_ADDR"):$SECURE_PORT
    make_certificate "$node" "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:$(node_ip "$1")"
    make_certificate kube-proxy /CN=system:kube-proxy
    make_kubeconfig "$node" "$directory/kubelet.kubeconfig" "$server"
    make_kubeconfig kube-proxy "$directory/kube-proxy.kubeconfig" "$server"
    make_certificate policies /O=system:masters/CN=policies
    make_kubeconfig policies "$directory/policies.kubeconfig" "$server"
    containerd_toml "$directory" >"$directory/containerd.toml"
    cni_json "$1" >"$directory/cni/10-bridge.conflist"
    kubelet_yaml "$node" "$directory" >"$directory/kubelet.yaml"
    kube_proxy_yaml "$node" "$directory" >"$directory/kube-proxy.yaml"
    mend_policies "$directory/programs"
}

# mend_policies DIRECTORY: kube-router 2.1.0 makes sets of IPv6 with a prefix that its rules lack (its issue 1653), and pods with
# policies neither ask for nor tell the addresses of their neighbours, because that is ICMP.
mend_policies() {
    mkdir -p "$1"
    cat >"$1/ip6tables-restore" <<SH
#!/bin/sh
sed 's/--match-set KUBE-/--match-set inet6:KUBE-/g
/^-I KUBE-POD-FW-.*rule for stateful firewall/{p;s/ -m comment.*/ -p ipv6-icmp -j ACCEPT/}' | $(command -v ip6tables-restore) "\$@"
SH
    chmod +x "$1/ip6tables-restore"
}

# restrict_oom_score_adj: without CAP_SYS_RESOURCE no process may lower an oom_score_adj; lower values are clipped, not refused.
containerd_toml() {
    cat <<TOML
version = 2
root = "$1/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "ferry.lab/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$RUN/registries"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$CNI_BIN"
    conf_dir = "$1/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
TOML
}

cni_json() {
    cat <<JSON
{ "cniVersion": "0.4.0", "name": "pods", "plugins": [
  { "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
    "ipam": { "type": "host-local", "dataDir": "/run/cni-ipam",
              "ranges": [[{ "subnet": "$(pods_of "$1")" }]], "routes": [{ "dst": "$ALL/0" }] } },
  { "type": "portmap", "capabilities": { "portMappings": true } } ] }
JSON
}

# All nodes share one disk, and an image that was imported cannot be pulled again: no eviction and no collection of
# images because of a full one. failCgroupV1 must be said from 1.35 on, and is unknown before 1.31;
# podLogsDir is unknown before 1.30.
kubelet_yaml() {
    cat <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$PREFIX/$1
$( ((KUBE_MINOR < 31)) || echo "failCgroupV1: false")
$( ((KUBE_MINOR < 30)) || echo "podLogsDir: $2/log")
resolvConf: ""
address: "$ALL"
clusterDNS: ["$CP_ADDR"]
clusterDomain: cluster.local
registerNode: true
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/$1.crt
tlsPrivateKeyFile: $PKI/$1.key
nodeStatusUpdateFrequency: $NODE_REPORT
nodeLeaseDurationSeconds: $NODE_LEASE
maxPods: 100
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
failSwapOn: false
protectKernelDefaults: false
shutdownGracePeriod: 0s
systemReserved: {$NODE_RESERVED}
YAML
}

# conntrack: these are limits of the whole kernel, and stay as they are.
kube_proxy_yaml() {
    cat <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $2/kube-proxy.kubeconfig}
hostnameOverride: $1
mode: $PROXY_MODE
clusterCIDR: "$POD_CIDR"
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
}

# --- the first process of a node --------------------------------------------------------------------------------------

node_init() {
    local directory=$RUN/n$1 v4=true v6=false
    [[ $FAMILY == ipv4 ]] || v4=false v6=true
    set +e # as systemd, it goes on
    mount_node "$directory"
    run_kubelet "$1"
    PATH=$directory/programs:$PATH supervise "$directory/policies.log" "$BIN/kube-router" \
        --kubeconfig="$directory/policies.kubeconfig" --hostname-override="n$1" --run-firewall=true --run-router=false --run-service-proxy=false --enable-cni=false \
        --service-cluster-ip-range="$SVC_CIDR" --health-port=0 --enable-ipv4=$v4 --enable-ipv6=$v6
    reap
}

# The end of a first process, which never ends: it reaps what is orphaned.
reap() {
    while :; do
        wait
        sleep 1
    done
}

# run_kubelet I ARGUMENTS...: containerd, the kubelet with further arguments, and kube-proxy.
run_kubelet() {
    local node=n$1 directory=$RUN/n$1
    shift
    hostname "$node"
    supervise "$directory/containerd.log" containerd --config "$directory/containerd.toml" --log-level warn
    until ctr version >/dev/null 2>&1; do sleep 0.1; done
    supervise "$directory/kubelet.log" "$BIN/kubelet" --config="$directory/kubelet.yaml" \
        --kubeconfig="$directory/kubelet.kubeconfig" --root-dir="$directory/kubelet" --cert-dir="$directory/kubelet/pki" \
        --hostname-override="$node" --node-ip="$(node_ip "${node#n}")" \
        --node-labels="topology.kubernetes.io/zone=zone-${node#n},topology.kubernetes.io/region=lab" "$@"
    supervise "$directory/kube-proxy.log" "$BIN/kube-proxy" --config="$directory/kube-proxy.yaml"
}

supervise() {
    local log=$1
    shift
    while :; do
        "$@" >>"$log" 2>&1
        echo "$1 ended with $?" >>"$log"
        sleep 1
    done &
}

mount_node() {
    local directory=$1 path
    # A /sys that shows this network namespace, with the control groups on it.
    mkdir -p "$directory/cgroup"
    mount --rbind /sys/fs/cgroup "$directory/cgroup"
    umount -l /sys
    mount -t sysfs sysfs /sys
    mount --rbind "$directory/cgroup" /sys/fs/cgroup
    umount -l "$directory/cgroup"
    # As on a real machine, /run is empty at boot; /mnt is this node's own disk, other paths are the machine's.
    mount -t tmpfs tmpfs /run
    mkdir -p /run/lock
    mount --bind "$directory/disk" /mnt
    # Fixed paths of the kubelet: sockets of device plugins, links to logs.
    for path in /var/lib/kubelet /var/log/containers; do
        mkdir -p "$path"
        mount -t tmpfs tmpfs "$path"
    done
    # Each kubelet removes logs of pods that it does not know: older ones must not share their directory.
    if ((KUBE_MINOR < 30)); then
        mkdir -p /var/log/pods
        mount --bind "$directory/log" /var/log/pods
    fi
    # Pods on the host network get a copy of this file, and Java refuses to start where its own name means nothing.
    mount --bind "$RUN/hosts" /etc/hosts
    # Last, because the unmounting above would reach the host: shared inside this node, as containers may ask for it.
    mount --make-rshared /
    sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1 2>/dev/null
}
