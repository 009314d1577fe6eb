# shellcheck shell=bash
# The control plane: etcd, kube-apiserver and, with nodes, kube-controller-manager, kube-scheduler and CoreDNS.
# Alone it listens on the loopback and needs no root; with nodes it lives in a network namespace (nodes.sh).

kctl() { kubectl --kubeconfig "$ADMIN_KUBECONFIG" "$@"; }

api_up() {
    [[ $FAMILY == ipv4 ]] || die "an API server without nodes has addresses of IPv4 alone"
    setup api
    begin_lab
    keep CP_NETNS CP_ADDR API_PORT SECURE_PORT
    start_api
    guard_owner
    say "API server ready after $SECONDS s; export KUBECONFIG=$ADMIN_KUBECONFIG"
}

# An empty RUN for a lab that is not up; what a crash has left is removed.
begin_lab() {
    ! alive etcd || die "the lab '$NAME' is up already: lab down"
    [[ ! -d $RUN ]] || lab_down
    sweep_orphans
    mkdir -p "$RUN"
    echo "$KUBE_VERSION" >"$RUN/version"
    [[ -n $API_PORT ]] || API_PORT=$(free_ports)
    [[ -n $SECURE_PORT ]] || SECURE_PORT=$API_PORT
}

# keep NAME...: these settings hold for every later command of this lab.
keep() { declare -p "$@" | sed 's/^declare -[-x]* //' >"$RUN/settings"; }

start_api() {
    make_keys
    start_etcd
    start_apiserver
    if [[ -n $CP_NETNS ]]; then
        # The host's loopback leads to it over a Unix socket, so that no interface of the host takes part.
        start forward-in "$CP_NETNS" socat "UNIX-LISTEN:$RUN/api.sock,fork,unlink-early" "TCP:127.0.0.1:$SECURE_PORT"
        start forward-out "" socat "TCP-LISTEN:$API_PORT,bind=127.0.0.1,fork,reuseaddr" "UNIX-CONNECT:$RUN/api.sock"
    fi
    wait_for 120 "the API server" kctl get --raw /readyz
}

make_keys() {
    local name names=DNS:localhost
    for name in kubernetes kubernetes.default kubernetes.default.svc kubernetes.default.svc.cluster.local; do
        names+=,DNS:$name
    done
    make_authority
    make_token_key
    make_certificate apiserver /CN=kube-apiserver "$names,IP:127.0.0.1,IP:$SVC_API,IP:$CP_ADDR"
    make_certificate admin /O=system:masters/CN=admin
    make_certificate apiserver-kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
    make_certificate front-proxy /CN=front-proxy
    make_kubeconfig admin "$ADMIN_KUBECONFIG" "https://127.0.0.1:$API_PORT"
}

start_etcd() {
    local clients=http://127.0.0.1:$((API_PORT + 1)) peers=http://127.0.0.1:$((API_PORT + 2))
    # --unsafe-no-fsync: a lab may lose its data at a power cut of the machine.
    start etcd "$CP_NETNS" "$BIN/etcd" --name lab --data-dir "$RUN/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls "$clients" --advertise-client-urls "$clients" \
        --listen-peer-urls "$peers" --initial-advertise-peer-urls "$peers" --initial-cluster "lab=$peers"
}

start_apiserver() {
    local bind=127.0.0.1
    [[ -z $CP_NETNS ]] || bind=$ALL
    local arguments=(
        --etcd-servers="http://127.0.0.1:$((API_PORT + 1))"
        --bind-address="$bind" --advertise-address="$CP_ADDR" --secure-port="$SECURE_PORT"
        --service-cluster-ip-range="$SVC_CIDR"
        # Webhooks are reached at the addresses of their pods: no kube-proxy runs beside the control plane.
        --enable-aggregator-routing=true
        --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key"
        --client-ca-file="$PKI/ca.crt"
        --authorization-mode=Node,RBAC
        # As on OpenShift: an object that blocks the deletion of its owner needs the right to the finalizers of the owner.
        --enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement
        --anonymous-auth=false
        --service-account-issuer=https://kubernetes.default.svc
        --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key"
        --kubelet-client-certificate="$PKI/apiserver-kubelet-client.crt"
        --kubelet-client-key="$PKI/apiserver-kubelet-client.key"
        --kubelet-preferred-address-types=InternalIP
        --default-not-ready-toleration-seconds="$TOLERATION"
        --default-unreachable-toleration-seconds="$TOLERATION"
        --allow-privileged=true
        --requestheader-client-ca-file="$PKI/ca.crt" --requestheader-allowed-names=front-proxy
        --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group
        --requestheader-extra-headers-prefix=X-Remote-Extra-
        --proxy-client-cert-file="$PKI/front-proxy.crt" --proxy-client-key-file="$PKI/front-proxy.key"
    )
    start kube-apiserver "$CP_NETNS" "$BIN/kube-apiserver" "${arguments[@]}"
}

start_controllers() {
    local name server=https://127.0.0.1:$SECURE_PORT
    for name in controller-manager scheduler; do
        make_certificate $name "/CN=system:kube-$name"
        make_kubeconfig $name "$RUN/$name.kubeconfig" "$server"
    done
    start kube-controller-manager "$CP_NETNS" "$BIN/kube-controller-manager" \
        --kubeconfig="$RUN/controller-manager.kubeconfig" --use-service-account-credentials \
        --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt" \
        --bind-address=127.0.0.1 --leader-elect=false \
        --node-monitor-period=1s --node-monitor-grace-period="$NODE_GRACE"
    start kube-scheduler "$CP_NETNS" "$BIN/kube-scheduler" \
        --kubeconfig="$RUN/scheduler.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false
}

# Names of services, and of nodes; everything else does not exist. A process beside the control plane, not a pod.
start_dns() {
    make_certificate dns /O=system:masters/CN=dns
    make_kubeconfig dns "$RUN/dns.kubeconfig" "https://127.0.0.1:$SECURE_PORT"
    cat >"$RUN/Corefile" <<CORE
. {
    bind $CP_ADDR
    errors
    hosts $RUN/hosts {
        fallthrough
    }
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig $RUN/dns.kubeconfig
        ttl 1
    }
    template ANY ANY . {
        rcode NXDOMAIN
    }
}
CORE
    start dns "$CP_NETNS" "$BIN/coredns" -conf "$RUN/Corefile"
    wait_for 30 "CoreDNS" in_ns "$CP_NETNS" busybox nslookup n1 "$CP_ADDR"
}

# PersistentVolumes of a default storage class that, like network storage, can be mounted on every node.
make_volumes() {
    local i
    cat <<'YAML'
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: shared, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
YAML
    for i in $(seq "$VOLUMES"); do
        mkdir -p "$RUN/volumes/$i"
        chmod 0777 "$RUN/volumes/$i"
        cat <<YAML
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared-$i}
spec:
  storageClassName: shared
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce, ReadWriteMany]
  hostPath: {path: "$RUN/volumes/$i"}
YAML
    done
}
