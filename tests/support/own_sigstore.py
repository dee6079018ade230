"""A Sigstore of our own: an authority, a log of certificates and a log of signatures."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_SCTS = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_MINUTE = datetime.timedelta(minutes=1)


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class OwnSigstore:
    """Signs as somebody with an identity, whom an issuer of identities knows."""

    def __init__(self) -> None:
        self._authority, self._certificates, self._signatures = (
            ec.generate_private_key(ec.SECP256R1()) for _ in range(3)
        )
        # Certificates end soon. What counts is when the log has taken the signature.
        self._when = datetime.datetime.now(datetime.timezone.utc) - 300 * _MINUTE
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self._root = (
            x509.CertificateBuilder(name, name, self._authority.public_key(), 1)
            .not_valid_before(self._when - 60 * _MINUTE)
            .not_valid_after(self._when + 600 * _MINUTE)
            .add_extension(x509.BasicConstraints(True, 0), True)
            .add_extension(x509.KeyUsage(*[False] * 5, True, True, False, False), True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._authority.public_key()), False
            )
            .sign(self._authority, hashes.SHA256())
        )

    def trusted_root(self, file: Path) -> Path:
        """Write what those need who trust this Sigstore."""
        valid = {"start": "2020-01-01T00:00:00Z"}

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            public = _public(key)
            details = {"rawBytes": _base64(public), "keyDetails": "PKIX_ECDSA_P256_SHA_256"}
            return {
                "baseUrl": "https://log.invalid",
                "hashAlgorithm": "SHA2_256",
                "publicKey": details | {"validFor": valid},
                "logId": {"keyId": _base64(hashlib.sha256(public).digest())},
            }

        der = self._root.public_bytes(serialization.Encoding.DER)
        authority = {
            "subject": {"organization": "example", "commonName": "authority"},
            "uri": "https://authority.invalid",
            "certChain": {"certificates": [{"rawBytes": _base64(der)}]},
            "validFor": valid,
        }
        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self._signatures)],
            "certificateAuthorities": [authority],
            "ctlogs": [log(self._certificates)],
            "timestampAuthorities": [],
        }
        file.write_text(json.dumps(root))
        return file

    def bundle(
        self, payload: bytes, identity: str, issuer: str, kind: str = PAYLOAD_TYPE
    ) -> dict[str, Any]:
        """Return a bundle with this payload, and its type."""
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = self._certificate(key, identity, issuer)
        head = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode()
        signature = _base64(_sign(key, head + payload))
        pem = _base64(leaf.public_bytes(serialization.Encoding.PEM))
        spec = {
            "envelopeHash": {"algorithm": "sha256", "value": "0" * 64},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [{"signature": signature, "verifier": pem}],
        }
        der = leaf.public_bytes(serialization.Encoding.DER)
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": _base64(der)},
                "tlogEntries": [self._entry(spec)],
            },
            "dsseEnvelope": {
                "payload": _base64(payload),
                "payloadType": kind,
                "signatures": [{"sig": signature}],
            },
        }

    def _certificate(
        self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str
    ) -> x509.Certificate:
        usage = x509.KeyUsage(True, *[False] * 8)
        builder = (
            x509.CertificateBuilder(self._root.subject, x509.Name([]), key.public_key(), 2)
            .not_valid_before(self._when - _MINUTE)
            .not_valid_after(self._when + 10 * _MINUTE)
            .add_extension(usage, True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._authority.public_key()),
                False,
            )
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(identity)]), True)
            .add_extension(x509.UnrecognizedExtension(_ISSUER, issuer.encode()), False)
        )
        before = builder.sign(self._authority, hashes.SHA256())
        # RFC 6962: the log has signed the certificate as it is without this extension.
        time = int(self._when.timestamp() * 1000)
        tbs = before.tbs_certificate_bytes
        entry = hashlib.sha256(_public(self._authority)).digest()
        entry += len(tbs).to_bytes(3, "big") + tbs
        signed = _sign(self._certificates, struct.pack("!BBQH", 0, 0, time, 1) + entry + b"\0\0")
        log = hashlib.sha256(_public(self._certificates)).digest()
        stamp = b"\0" + log + struct.pack("!QHBBH", time, 0, 4, 3, len(signed)) + signed
        stamps = struct.pack("!HH", len(stamp) + 2, len(stamp)) + stamp
        extension = x509.UnrecognizedExtension(_SCTS, bytes([4, len(stamps)]) + stamps)
        return builder.add_extension(extension, False).sign(self._authority, hashes.SHA256())

    def _entry(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return the entry of a log that has no other one."""
        body = {"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}
        content = json.dumps(body, separators=(",", ":"), sort_keys=True).encode()
        log = hashlib.sha256(_public(self._signatures)).digest()
        root = hashlib.sha256(b"\0" + content).digest()
        note = f"log.invalid - 1\n1\n{_base64(root)}\n"
        signed = _base64(log[:4] + _sign(self._signatures, note.encode()))
        time = int(self._when.timestamp())
        promised = {
            "body": _base64(content),
            "integratedTime": time,
            "logID": log.hex(),
            "logIndex": 0,
        }
        promise = json.dumps(promised, separators=(",", ":"), sort_keys=True).encode()
        return {
            "logIndex": "0",
            "logId": {"keyId": _base64(log)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(time),
            "inclusionPromise": {"signedEntryTimestamp": _base64(_sign(self._signatures, promise))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _base64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\u2014 log.invalid {signed}\n"},
            },
            "canonicalizedBody": _base64(content),
        }
