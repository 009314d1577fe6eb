# shellcheck shell=bash disable=SC2034
# Settings of the lab: versions, directories, addresses, clocks. FERRY_LAB_* come from the environment; nothing is done here.

NAME=${FERRY_LAB:-default}
CACHE=${FERRY_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ferry/kube}
RUN=$CACHE/runs/$NAME # pids, keys, logs and data of this lab

# A lab that is up keeps its version.
KUBE_VERSION=${FERRY_LAB_KUBE:-$(cat "$RUN/version" 2>/dev/null || echo v1.34.10)}
KUBE_MINOR=${KUBE_VERSION#v1.} KUBE_MINOR=${KUBE_MINOR%%.*}
CLIENT_VERSION=v1.34.10 # of the Go clients in CoreDNS and in the device plugin, beside every KUBE_VERSION
ETCD_VERSION=v3.6.16
DNS_VERSION=v1.13.1 # CoreDNS
KREW_VERSION=v0.4.3
S3_VERSION=v1.8.0   # versitygw
POLICIES_VERSION=v2.1.0 # kube-router, of which only the firewall runs
GO_MIN=1.25         # what these need
GO_VERSION=1.26.6   # what is fetched when there is no such Go

# --- directories ------------------------------------------------------------------------------------------------------

BUILT=$CACHE/$KUBE_VERSION
BIN=$BUILT/bin
IMAGES=$BUILT/images # archives every node has
STORES=$CACHE/stores # unpacked images, shared by nodes
PREFIX=ferry-$NAME    # of network namespaces and control groups
export PATH=$BIN:$PATH

# --- addresses: all of them inside the lab's own network namespaces, but for API_PORT on the host's loopback -----------

FAMILY=${FERRY_LAB_FAMILY:-ipv4} # of nodes, pods and services: ipv4 or ipv6
API_PORT=${FERRY_LAB_PORT:-} # empty: a free one
CP_NETNS= CP_ADDR=127.0.0.1  # `lab up` moves the control plane into a network namespace
SECURE_PORT=                 # where the API server itself listens; empty: API_PORT. With nodes 6443, which policies name

# --- clocks: seconds where Kubernetes has minutes, so that tests of lost nodes end -------------------------------------

NODE_GRACE=${FERRY_LAB_NODE_GRACE:-12s} # silence before a node counts as lost; at least four reports
NODE_REPORT=2s                          # a kubelet's reports
NODE_LEASE=8                            # seconds; renewed every quarter of it
TOLERATION=${FERRY_LAB_TOLERATION:-5}   # seconds that pods stay bound to a lost node

# --- nodes ------------------------------------------------------------------------------------------------------------

PROXY_MODE=${FERRY_LAB_PROXY:-iptables} # of kube-proxy: iptables or nftables
NODE_MEMORY=${FERRY_LAB_NODE_MEMORY:-}  # hard limit of all pods of a node, such as 4G; not announced
NODE_RESERVED=${FERRY_LAB_RESERVED:-}   # taken from what a node announces, such as 'cpu: 500m, memory: 20Gi'
CNI_BIN=${FERRY_LAB_CNI:-/usr/lib/cni}
VOLUMES=32                              # PersistentVolumes of the default storage class

PKI=$RUN/pki
ADMIN_KUBECONFIG=$RUN/admin.kubeconfig

# What a running lab has chosen holds for every later command.
# shellcheck disable=SC1091
[[ ! -f $RUN/settings ]] || source "$RUN/settings"

# NODE_NET: the control plane has the number 1, node i 10+i. ALL: every address.
case $FAMILY in
    ipv4) NODE_NET=10.250.0. NODE_BITS=24 POD_CIDR=10.244.0.0/16 SVC_CIDR=10.96.0.0/16 SVC_API=10.96.0.1 ALL=0.0.0.0 ;;
    ipv6) NODE_NET=fd00:10:250:: NODE_BITS=64 POD_CIDR=fd00:10:244::/48 SVC_CIDR=fd00:10:96::/112 SVC_API=fd00:10:96::1 ALL=:: ;;
    *) printf 'lab: FERRY_LAB_FAMILY is ipv4 or ipv6, not %s\n' "$FAMILY" >&2; exit 1 ;;
esac

node_ip() { echo "$NODE_NET$((10 + $1))"; }
netloc() { if [[ $1 == *:* ]]; then echo "[$1]"; else echo "$1"; fi; }
pods_of() { if [[ $FAMILY == ipv4 ]]; then echo "10.244.$1.0/24"; else echo "fd00:10:244:$1::/64"; fi; }

say() { printf 'lab: %s\n' "$*" >&2; }
die() { printf 'lab: %s\n' "$*" >&2; exit 1; }
