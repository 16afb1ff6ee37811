"""A certificate authority and a leaf for loopback, as PEM files."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LEAF_NAMES = ("localhost", "broker.example")


def write_authority_and_leaf(folder):
    """Writes `ca.pem`, `leaf.pem` and `leaf.key` into `folder`."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("test authority")
    authority = (
        _builder(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    leaf_key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName(name) for name in LEAF_NAMES]
    names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    leaf = (
        _builder(_name("broker"), authority_name, leaf_key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(authority.public_bytes(pem))
    (folder / "leaf.pem").write_bytes(leaf.public_bytes(pem))
    plain = serialization.NoEncryption()
    key = leaf_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    (folder / "leaf.key").touch(mode=0o600)
    (folder / "leaf.key").write_bytes(key)


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject, issuer, key):
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
