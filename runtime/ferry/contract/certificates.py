"""Certificates of a run: all of them are derived from its secret, so no certificate is ever stored, sent or read back.

The authority's key is derived from the secret, so any process that knows the secret can issue certificates of the run
and check them. A process issues its own certificate at its start and keeps the key in memory only. Spark's tasks do not
know the secret; they get the authority's certificate, which does not reveal it.

"""

from __future__ import annotations

import hmac
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ferry.contract.places import TLS_NAME

_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

_BEGIN, _END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
"""Certificates outlast every clock error: the run ends first, and its secret with it."""

_AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a run of Ferry")])


@dataclass(frozen=True, slots=True)
class Identity:
    """One process's proof that it belongs to the run, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def _authority_key(secret: str) -> ec.EllipticCurvePrivateKey:
    """Derives twice as many bits as the curve has, so that the modulo favours no key."""
    wide = hmac.digest(secret.encode(), b"ferry authority", "sha512")
    return ec.derive_private_key(int.from_bytes(wide, "big") % (_ORDER - 1) + 1, _CURVE)


def authority(secret: str) -> bytes:
    """The certificate of the authority that issues all other certificates of the run, as PEM."""
    key = _authority_key(secret)
    usage = x509.KeyUsage(False, False, False, False, False, True, False, False, False)
    return (
        _certificate(key.public_key())
        .subject_name(_AUTHORITY)
        .serial_number(1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256(), ecdsa_deterministic=True)
        .public_bytes(serialization.Encoding.PEM)
    )


def issue(secret: str, *hosts: str) -> Identity:
    """A certificate with a new key. `hosts`: names and addresses of a server for other clients; processes of a run share
    one name."""
    key, signer = ec.generate_private_key(_CURVE), _authority_key(secret)
    signed = (
        _certificate(key.public_key())
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, TLS_NAME)]))
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, hosts or [TLS_NAME]))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return Identity(
        signed.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def covers(certificate: bytes, hosts: Iterable[str]) -> bool:
    """Whether a certificate has these names and addresses. Raises ValueError for a text that is no certificate."""
    extensions = x509.load_pem_x509_certificate(certificate).extensions
    try:
        names = list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = []
    return all(_general_name(host) in names for host in hosts)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(_AUTHORITY)
        .public_key(public)
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def client_context(trusted: bytes) -> ssl.SSLContext:
    """A TLS context that trusts processes of the run with this authority, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # A certificate proves membership in the run. Addresses come and go, so certificates name none.
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=trusted.decode())
    return context


def server_context(mine: Identity) -> ssl.SSLContext:
    """A TLS context that proves to be this process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    load(context, mine)
    return context


def load(context: ssl.SSLContext, mine: Identity) -> None:
    """Have the connections that a TLS context accepts from now on present this certificate."""
    # The library reads keys from files only; this file has mode 0600 and is deleted right after the key was read.
    with tempfile.NamedTemporaryFile() as file:
        file.write(mine.key + mine.certificate)
        file.flush()
        context.load_cert_chain(file.name)
