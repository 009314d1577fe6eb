# shellcheck shell=bash
# Processes that outlive the command which starts them, and waiting. A process is known by its pid and the time of its
# start, so that a later one of the same pid is never taken for it. Knows nothing of Kubernetes.

# Seconds since SECOND, which `now` gave, with one decimal.
now() { date +%s.%N; }
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.1f", to - from }'; }

# in_ns NETNS CMD...: runs CMD in a named network namespace; "" is the host's. Not by `ip netns exec`, which mounts
# another /sys and thereby hides the control groups that containerd and the kubelet need.
in_ns() {
    local ns=$1
    shift
    if [[ -n $ns ]]; then nsenter --net="/run/netns/$ns" "$@"; else "$@"; fi
}

# The time at which a process began, in ticks; nothing when there is none, or a zombie.
began() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" { print $20 }'; }

# start NAME NETNS CMD...: a process in a session of its own; output in RUN/NAME.log, identity in RUN/NAME.pid.
start() {
    local name=$1 ns=$2 pid
    shift 2
    ! alive "$name" || die "$name runs already (pid $(pid_of "$name"))"
    mkdir -p "$(dirname "$RUN/$name")"
    if [[ -n $ns ]]; then set -- nsenter --net="/run/netns/$ns" "$@"; fi
    (close_inherited && exec setsid "$@") >>"$RUN/$name.log" 2>&1 </dev/null &
    pid=$!
    echo "$pid $(began "$pid")" >"$RUN/$name.pid"
}

# A daemon must not hold a lock or a pipe of the caller while the lab runs.
close_inherited() {
    local fd
    for fd in /proc/"$BASHPID"/fd/*; do
        fd=${fd##*/}
        ((fd <= 2)) || eval "exec $fd>&-"
    done
}

# The pid of a process that `start` recorded, if it still runs.
pid_of() {
    local pid at
    [[ -s $RUN/$1.pid ]] && read -r pid at <"$RUN/$1.pid" && [[ -n $at && $(began "$pid") == "$at" ]] && echo "$pid"
}

alive() { pid_of "$1" >/dev/null; }

# stop NAME [SIGNAL]: ends one and waits; after 10 s it is killed.
stop() {
    local pid
    if pid=$(pid_of "$1"); then
        kill "-${2:-TERM}" "$pid" 2>/dev/null || true
        for _ in $(seq 100); do
            alive "$1" || break
            sleep 0.1
        done
        ! alive "$1" || kill -KILL "$pid" 2>/dev/null || true
    fi
    rm -f "$RUN/$1.pid"
}

# wait_for SECONDS WHAT CMD...: repeats CMD until it succeeds.
wait_for() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || die "waited in vain for $what; logs are in $RUN"
        sleep 0.2
    done
}

# A lab that belongs to a process goes down with it, however that ends: FERRY_LAB_OWNER is its pid.
guard_owner() {
    [[ -n ${FERRY_LAB_OWNER:-} ]] || return 0
    echo "$FERRY_LAB_OWNER $(began "$FERRY_LAB_OWNER")" >"$RUN/owner"
    # shellcheck disable=SC2046
    start guard "" "$HERE/lab" guard $(<"$RUN/owner")
}

# Labs whose owner and guard were both killed, or were up when the machine stopped.
sweep_orphans() {
    local file pid at
    for file in "$CACHE"/runs/*/owner; do
        [[ -f $file ]] && read -r pid at <"$file" || continue
        [[ $(began "$pid") == "$at" ]] || FERRY_LAB=$(basename "$(dirname "$file")") "$HERE/lab" down
    done
}

guard() {
    while [[ -n $2 && $(began "$1") == "$2" ]]; do sleep 1; done
    rm -f "$RUN/guard.pid" # so that the end of the lab is not the end of this process
    lab_down
}

# A port from which on three are free on the loopback: the API server's, etcd's for clients and etcd's for peers.
free_ports() {
    local first=6443 port
    [[ $NAME == default ]] || first=$((10000 + 3 * ($(cksum <<<"$NAME" | cut -d' ' -f1) % 5000)))
    for port in $(seq "$first" 3 32000); do
        if ! in_use "$port" && ! in_use $((port + 1)) && ! in_use $((port + 2)); then echo "$port"; return; fi
    done
    die "found no free port"
}

in_use() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
