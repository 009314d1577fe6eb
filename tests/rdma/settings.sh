# shellcheck shell=bash disable=SC2034
# Settings of the guests: directories, packages, sizes. FERRY_RDMA_* come from the environment; nothing is done here.

CACHE=${FERRY_RDMA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ferry/rdma}
GUEST=$CACHE/guest       # vmlinuz, initrd.zst, MANIFEST
SITE=$CACHE/site         # Python libraries of the tests and of a sidecar, for the guest's Python; its compiled kernels
DEBS=$CACHE/debs         # downloaded packages: a second build downloads nothing
RUNS=$CACHE/runs         # one directory per guest that runs or ran

SUITE=bookworm
ARCH=amd64
PYTHON=3.11              # of that suite
PACKAGES="python3 python3-pyverbs rdma-core ibverbs-providers ibverbs-utils perftest iperf3 iproute2 kmod iputils-ping"
# rdma_rxe asks for crc32 by name when it runs, which no dependency of modules tells: crc32_generic.
MODULES="virtio_pci virtio_net 9p 9pnet_virtio dummy rdma_rxe crc32_generic ib_uverbs rdma_ucm sch_netem"
LIBRARIES="numpy pytest pytest-timeout numba llvmlite pyarrow redis msgpack lmdb xxhash prometheus-client async-timeout cryptography httpx" # of the tests and of a sidecar

MEMORY=${FERRY_RDMA_MEMORY:-1000} # MiB of one guest
CPUS=${FERRY_RDMA_CPUS:-1}
MTU=4500                          # of the network card; from 4200 on the path MTU of RDMA is 4096

say() { printf 'rdma: %s\n' "$*" >&2; }
die() { printf 'rdma: %s\n' "$*" >&2; exit 1; }
