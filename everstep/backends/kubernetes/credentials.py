"""What agents and workers of a job identify each other by: a token, and certificates of its own authority.

The authority's key is used here and thrown away: nothing can be signed with it later.
"""

from __future__ import annotations

import datetime as dt
import secrets
import ssl
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from everstep.protocol import wire

CLIENT_CERTIFICATE = "client.crt"
CLIENT_KEY = "client.key"
OF_AGENTS = (wire.TOKEN, wire.AUTHORITY, wire.CERTIFICATE, wire.CERTIFICATE_KEY)
"""The entries that a pod mounts: they serve to answer a worker and to copy snapshots to other agents, not to
command these."""
_ENTRIES = (*OF_AGENTS, CLIENT_CERTIFICATE, CLIENT_KEY)

_FROM = dt.timedelta(days=1)  # clocks of nodes differ
_FOR = dt.timedelta(days=3650)  # longer than any job


def make(job: str) -> dict[str, str]:
    """New credentials for a job, as the entries of its Secret."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"everstep {job}"[:64])])
    basic = x509.BasicConstraints(ca=True, path_length=0)
    authority = _signed(name, name, authority_key, authority_key, (basic, True))
    is_agent = x509.SubjectAlternativeName([x509.DNSName(wire.HOST_NAME)])
    # As a client an agent copies snapshots to another one, which lets it do no more.
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    agent_key, agent = _certificate(wire.AGENT_NAME, name, authority_key, both, (is_agent, False))
    client_key, client = _certificate(
        "worker", name, authority_key, [ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    return {
        wire.TOKEN: secrets.token_hex(32),
        wire.AUTHORITY: _text(authority),
        wire.CERTIFICATE: _text(agent),
        wire.CERTIFICATE_KEY: _key_text(agent_key),
        CLIENT_CERTIFICATE: _text(client),
        CLIENT_KEY: _key_text(client_key),
    }


def read(data: Mapping[str, str]) -> dict[str, str]:
    """The entries of a Secret, by its `data`. Raises ValueError where `make` wrote others."""
    if missing := [name for name in _ENTRIES if name not in data]:
        raise ValueError(f"it has no {', '.join(missing)}")
    return {name: b64decode(data[name]).decode() for name in _ENTRIES}


def client_context(credentials: Mapping[str, str]) -> ssl.SSLContext:
    """The TLS context of a worker's connections to the agents of the job."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=credentials[wire.AUTHORITY])
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:  # the library reads only files
        pem = Path(folder) / "client.pem"
        pem.touch(mode=0o600)
        pem.write_text(credentials[CLIENT_KEY] + credentials[CLIENT_CERTIFICATE])
        context.load_cert_chain(pem)
    return context


Extension = tuple[x509.ExtensionType, bool]


def _certificate(
    name: str,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    uses: list[x509.ObjectIdentifier],
    *extensions: Extension,
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purpose = x509.ExtendedKeyUsage(uses)
    leaf = x509.BasicConstraints(ca=False, path_length=None)
    return key, _signed(
        subject, issuer, key, issuer_key, (leaf, True), (purpose, False), *extensions
    )


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    *extensions: Extension,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _FROM)
        .not_valid_after(now + _FOR)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(issuer_key, SHA256())


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
