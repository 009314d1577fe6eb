# shellcheck shell=bash
# Boots guests and ends them. Always emulated, never /dev/kvm, so that a result is the same on every machine.

# begin DIRECTORY COMMAND: a run's directory, which both sides see.
begin() {
    mkdir -p "$1"
    printf '%s\n' "$2" >"$1/command"
    : >"$1/output"
}

# start DIRECTORY SECONDS WORDS QEMU-ARGUMENTS...: a guest in the background; its process is $!.
start() {
    local directory=$1 seconds=$2 words=$3
    shift 3
    timeout -k 5 "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "$CPUS" -m "$MEMORY" \
        -kernel "$GUEST/vmlinuz" -initrd "$GUEST/initrd.zst" -nodefaults -nographic -serial stdio -no-reboot \
        -append "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check random.trust_cpu=on rdinit=/init.sh ferry.mtu=$MTU $words" \
        -pidfile "$directory/pid" \
        -virtfs "local,path=${directory//,/,,},mount_tag=x,security_model=none,multidevs=remap" \
        -virtfs "local,path=${ROOT//,/,,},mount_tag=ferry,security_model=none,readonly=on,multidevs=remap" \
        -virtfs "local,path=${SITE//,/,,},mount_tag=site,security_model=none,readonly=on,multidevs=remap" \
        "$@" >"$directory/console" 2>&1 </dev/null &
}

# result DIRECTORY STATUS: the exit code of the guest's command. Without one: 124 after a timeout, otherwise 125. STATUS is the
# exit code of `timeout`.
result() {
    if [[ -s $1/status ]]; then cat "$1/status"
    elif [[ $2 == 124 || $2 == 137 ]]; then echo 124
    else
        say "the guest failed; the end of $1/console:"
        tail -5 "$1/console" >&2
        echo 125
    fi
}

run_one() {
    local directory tail status=0
    [[ -f $GUEST/version ]] || die "there is no guest: guest setup"
    mkdir -p "$RUNS"
    directory=$(mktemp -d "$RUNS/one.XXXXXX")
    begin "$directory" "$2"
    start "$directory" "$1" "" -nic none
    local guest=$!
    # shellcheck disable=SC2064
    trap "kill $guest 2>/dev/null; wait; rm -rf '$directory'; exit 130" INT TERM
    tail -q -n +1 -f --pid="$guest" -s 0.2 "$directory/output" &
    tail=$!
    wait "$guest" || status=$?
    wait "$tail" || true
    status=$(result "$directory" "$status")
    rm -rf "$directory"
    return "$status"
}

# One of several guests, on network cards of the caller. The end of its process (DIRECTORY/pid) ends the machine.
run_host() {
    local directory=$1 seconds=$2 words=$3 status=0
    [[ -f $GUEST/version ]] || die "there is no guest: guest setup"
    mkdir -p "$directory"
    begin "$directory" "$4"
    shift 4
    start "$directory" "$seconds" "$words" "$@"
    local guest=$!
    # shellcheck disable=SC2064
    trap "kill $guest 2>/dev/null; wait; exit 130" INT TERM
    wait "$guest" || status=$?
    return "$(result "$directory" "$status")"
}

listening() { grep -qi "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$1") [0-9A-F]*:0000 0A" /proc/net/tcp; }
card() { echo "-netdev socket,id=n,$1=127.0.0.1:$2 -device virtio-net-pci,netdev=n,mac=52:54:00:00:00:$3,romfile="; }

# A guest asks for a fault by a file in its /x: kill-a, stop-a, go-on-a (or -b): power off, frozen, not frozen any more.
run_pair() {
    local seconds=$1 base a b port try qemu_a qemu_b status_a=0 status_b=0 killed=
    [[ -f $GUEST/version ]] || die "there is no guest: guest setup"
    mkdir -p "$RUNS"
    base=$(mktemp -d "$RUNS/pair.XXXXXX")
    a=$base/a b=$base/b
    begin "$a" "$2"
    begin "$b" "$3"
    for try in 1 2 3 4 5; do
        port=$((20000 + RANDOM % 12000))
        listening "$port" && continue
        # shellcheck disable=SC2046
        start "$a" "$seconds" "ferry.role=a ferry.address=10.8.0.1/24 ferry.peer=10.8.0.2" $(card listen "$port" 0a)
        qemu_a=$!
        for _ in $(seq 100); do
            listening "$port" && break 2
            kill -0 "$qemu_a" 2>/dev/null || break
            sleep 0.05
        done
        [[ $try != 5 ]] || die "the first guest did not start"
    done
    # shellcheck disable=SC2046
    start "$b" "$seconds" "ferry.role=b ferry.address=10.8.0.2/24 ferry.peer=10.8.0.1" $(card connect "$port" 0b)
    qemu_b=$!
    # shellcheck disable=SC2064
    trap "kill $qemu_a $qemu_b 2>/dev/null; wait; rm -rf '$base'; exit 130" INT TERM
    while kill -0 "$qemu_a" 2>/dev/null || kill -0 "$qemu_b" 2>/dev/null; do
        faults "$a" "$b"
        [[ $(cat "$b/status" 2>/dev/null) =~ ^[1-9] ]] && { kill "$qemu_a" 2>/dev/null || true; }
        sleep 0.05
    done
    wait "$qemu_a" 2>/dev/null || status_a=$?
    wait "$qemu_b" 2>/dev/null || status_b=$?
    sed 's/^/a: /' "$a/output"
    sed 's/^/b: /' "$b/output"
    status_a=$([[ $killed == *a* ]] && echo 0 || result "$a" "$status_a")
    status_b=$([[ $killed == *b* ]] && echo 0 || result "$b" "$status_b")
    rm -rf "$base"
    [[ $status_a == 0 ]] || return "$status_a"
    return "$status_b"
}

faults() {
    local directory side pid
    for directory in "$@"; do
        for side in a b; do
            pid=$(cat "$(dirname "$directory")/$side/pid" 2>/dev/null) || continue
            [[ ! -e $directory/kill-$side ]] || { rm "$directory/kill-$side"; killed+=$side; kill -KILL "$pid" || true; }
            [[ ! -e $directory/stop-$side ]] || { rm "$directory/stop-$side"; kill -STOP "$pid" || true; }
            [[ ! -e $directory/go-on-$side ]] || { rm "$directory/go-on-$side"; kill -CONT "$pid" || true; }
        done
    done
}
