#!/bin/bash
# The first process of a guest: mounts, makes the device rxe0, runs the command of /x/command and powers off.
# Words of the kernel's command line: ferry.mtu=, ferry.role=a|b, ferry.address=10.8.0.1/24, ferry.peer=10.8.0.2, and ferry.host=
# for a second card that has nothing to do with the device (its address is FERRY_HOST then);
# without an address the device sits on a network card of its own that leads nowhere (10.9.0.1).
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run

off() { sync; echo 1 >/proc/sys/kernel/sysrq; echo o >/proc/sysrq-trigger; sleep 20; }
die() { echo "init: $*" >/dev/console; [ -d /x/. ] && { echo "init: $*" >>/x/output; echo 125 >/x/status; }; off; }

role=one mtu=1500 address='' peer='' host=''
for word in $(cat /proc/cmdline); do
    case $word in
        ferry.role=*) role=${word#*=} ;;
        ferry.mtu=*) mtu=${word#*=} ;;
        ferry.address=*) address=${word#*=} ;;
        ferry.peer=*) peer=${word#*=} ;;
        ferry.host=*) host=${word#*=} ;;
    esac
done
echo "guest-$role" >/proc/sys/kernel/hostname
ip link set lo up
modprobe -a virtio_pci 9pnet_virtio 9p
mkdir -p /x /ferry /site
# Without a cache both sides see each other's files at once; what never changes during a run is cached.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 x /x || die "cannot mount /x"
for share in ferry site; do
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose $share /$share || die "cannot mount /$share"
done

if [ -n "$address" ]; then
    modprobe virtio_net
    for _ in $(seq 50); do card=$(cd /sys/class/net && ls -d e* 2>/dev/null | head -1); [ -n "$card" ] && break; sleep 0.1; done
    [ -n "$card" ] || die "no network card"
    if [ -n "$host" ]; then
        second=$(cd /sys/class/net && ls -d e* | sed -n 2p)
        ip addr add "$host" dev "$second" && ip link set "$second" up || die "no second network card"
        export FERRY_HOST=${host%/*}
    fi
else
    modprobe dummy
    card=d0 address=10.9.0.1/24
    ip link add $card type dummy
fi
ip link set "$card" mtu "$mtu"
ip addr add "$address" dev "$card"
ip link set "$card" up
modprobe -a rdma_rxe ib_uverbs rdma_ucm
rdma link add rxe0 type rxe netdev "$card" || die "no device rxe0"
for _ in $(seq 50); do rdma link show | grep -q 'rxe0.*ACTIVE' && break; sleep 0.1; done
if [ -n "$peer" ]; then
    for _ in $(seq 60); do ping -c1 -W1 "$peer" >/dev/null 2>&1 && break; sleep 0.2; done
    ping -c1 -W2 "$peer" >/dev/null 2>&1 || die "$peer does not answer"
fi

export FERRY_GUEST_ROLE=$role FERRY_GUEST_ADDRESS=${address%/*} FERRY_GUEST_PEER=$peer FERRY_GUEST_CARD=$card
export PYTHONPATH=/ferry/runtime:/ferry/bench/workloads:/ferry:/site PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Compiling for an emulated processor takes minutes: build.sh has done it. Numba wants a directory that it can write.
export NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= NUMBA_CACHE_DIR=/tmp/kernels
ulimit -n 65536
cd /tmp && bash /x/command >>/x/output 2>&1
status=$?
[ $status = 0 ] || dmesg | tail -20 >>/x/output
echo $status >/x/status.new
mv /x/status.new /x/status
off
