"""SCRAM as RFC 5802 has it: both sides prove that they know the password, and nobody says it.

    client → n,,n=alice,r=<nonce>                    who I am, and a number of mine
    server → r=<nonce><more>,s=<salt>,i=<rounds>     a number of ours, and how the password was salted
    client → c=biws,r=…,p=<proof>                    only who knows the password can compute this
    server → v=<signature>                           only who has its salted form can compute that

There is no channel binding ("n,,"), as in Kafka. Bytes in, bytes out; the connection carries them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from headrace.errors import ErrorCode, KafkaError

__all__ = ["AuthenticationFailed", "ScramClient"]

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ROUNDS_MIN = 4096
ROUNDS_MAX = 1_000_000
"""A server may not keep us busy for longer than about a second."""


class AuthenticationFailed(KafkaError):
    """The broker does not accept who we say we are, or is not who it says. Trying again does not help."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED) -> None:
        super().__init__(code, message)


class ScramClient:
    """One authentication: ``first``, ``final``, ``verify``, in this order."""

    def __init__(self, hash_name: str, username: str, password: str, nonce: str | None = None) -> None:
        self._hash = hash_name
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._bare = f"n={_escape(username)},r={self._nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The proof that we know the password."""
        text = _text(server_first)
        fields = _fields(text)
        nonce, rounds = fields.get("r", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationFailed("the broker's SCRAM answer does not continue our nonce")
        if not rounds.isdecimal() or not ROUNDS_MIN <= int(rounds) <= ROUNDS_MAX:
            raise AuthenticationFailed(f"the broker asks for {rounds[:20] or 'no'} SCRAM rounds, not 4096 to 1000000")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _decode(fields.get("s", "")), int(rounds))
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """The proof that the broker knows it too: without it anybody could have let us in."""
        fields = _fields(_text(server_final))
        if "e" in fields:
            raise AuthenticationFailed(f"the broker refused the SCRAM proof: {fields['e']}")
        assert self._server_signature, "verify comes after final"
        if not hmac.compare_digest(_decode(fields.get("v", "")), self._server_signature):
            raise AuthenticationFailed("the broker cannot prove that it knows the password: is it the right one?")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("the broker's SCRAM answer is not text") from None


def _fields(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("the broker's SCRAM answer holds something that is not base64") from None
