"""Certificate with which this machine's servers prove themselves to other hosts."""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headway.private_files import write_private

_VALID = timedelta(days=825)
_RENEWED = timedelta(days=30)
_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Identity:
    """Files of a certificate, which is its own authority, and of its key, which this user alone may read."""

    certificate: Path
    key: Path


def identity(folder: Path, address: str, now: datetime) -> Identity:
    """Return the certificate of this machine for an address, kept in a folder.

    A new one is made for another address, and 30 days before the old one ends.

    Args:
        folder: folder of its own; created if missing.
        address: IP address at which other hosts reach this machine.
        now: the time.
    """
    found = Identity(folder / "certificate.pem", folder / "key.pem")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _serves(found, address, now):
        certificate, key = _issue(address, now)
        write_private(found.key, key)
        write_private(found.certificate, certificate)
    return found


def _serves(found: Identity, address: str, now: datetime) -> bool:
    """Return whether the files have a certificate for this address that is valid for long enough."""
    with contextlib.suppress(FileNotFoundError, ValueError, x509.ExtensionNotFound):
        kept = x509.load_pem_x509_certificate(found.certificate.read_bytes())
        names = kept.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        same = ipaddress.ip_address(address) in names.get_values_for_type(x509.IPAddress)
        return found.key.exists() and same and kept.not_valid_after_utc > now + _RENEWED
    return False


def _issue(address: str, now: datetime) -> tuple[str, str]:
    """Return a new certificate for an address, and its key, in PEM format."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Headway")])
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - _SKEW)
        .not_valid_after(now.astimezone(UTC) + _VALID)
        .add_extension(alternative, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                crl_sign=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, hashes.SHA256())
    )
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), plain.decode()
