# shellcheck shell=bash
# Certificates and kubeconfigs. One authority signs everything; a certificate's subject is the identity Kubernetes sees:
# CN the user, O the group. Keys are elliptic curves, because those are made in an instant.

make_authority() {
    mkdir -p "$PKI"
    [[ ! -f $PKI/ca.crt ]] || return 0
    openssl req -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
        -subj "/CN=$PREFIX" -keyout "$PKI/ca.key" -out "$PKI/ca.crt" 2>/dev/null
}

# make_certificate NAME SUBJECT [OTHER_NAMES]: PKI/NAME.key and PKI/NAME.crt.
make_certificate() {
    [[ ! -f $PKI/$1.crt ]] || return 0
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
        -subj "$2" -keyout "$PKI/$1.key" -out "$PKI/$1.csr" 2>/dev/null
    {
        echo 'keyUsage=digitalSignature,keyEncipherment'
        echo 'extendedKeyUsage=serverAuth,clientAuth'
        [[ -z ${3:-} ]] || echo "subjectAltName=$3"
    } >"$PKI/$1.extensions"
    openssl x509 -req -in "$PKI/$1.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial \
        -days 3650 -extfile "$PKI/$1.extensions" -out "$PKI/$1.crt" 2>/dev/null
    rm -f "$PKI/$1.csr" "$PKI/$1.extensions"
}

# Signs the tokens of service accounts.
make_token_key() {
    [[ ! -f $PKI/sa.key ]] || return 0
    openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/sa.key"
    openssl ec -in "$PKI/sa.key" -pubout -out "$PKI/sa.pub" 2>/dev/null
}

# make_kubeconfig CERTIFICATE FILE SERVER. Keys are inside, so that the file works wherever it is read.
make_kubeconfig() {
    cat >"$2" <<YAML
apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster: {server: "$3", certificate-authority-data: "$(base64 -w0 "$PKI/ca.crt")"}
users:
- name: $1
  user: {client-certificate-data: "$(base64 -w0 "$PKI/$1.crt")", client-key-data: "$(base64 -w0 "$PKI/$1.key")"}
contexts:
- name: lab
  context: {cluster: lab, user: $1}
current-context: lab
YAML
    chmod 600 "$2"
}
