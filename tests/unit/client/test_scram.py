"""SCRAM against the examples of its RFCs, and against servers that cheat."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from headrace.client import AuthenticationFailed
from headrace.client.scram import HASHES, ScramClient
from headrace.errors import ErrorCode

RFC_7677 = {
    "hash_name": "sha256",
    "nonce": "rOprNGfwEbeRWgbNEkqO",
    "first": b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "server_first": b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "final": b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "server_final": b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
}
RFC_5802 = {
    "hash_name": "sha1",
    "nonce": "fyko+d2lbbFgONRv9qkxdawL",
    "first": b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    "server_first": b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    "final": b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "server_final": b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
}


@pytest.mark.parametrize("example", [RFC_7677, RFC_5802], ids=["RFC 7677", "RFC 5802"])
def test_the_conversation_is_that_of_the_rfc(example: dict[str, str | bytes]) -> None:
    client = ScramClient(str(example["hash_name"]), "user", "pencil", str(example["nonce"]))
    assert client.first() == example["first"]
    server_first, server_final = example["server_first"], example["server_final"]
    assert isinstance(server_first, bytes)
    assert isinstance(server_final, bytes)
    assert client.final(server_first) == example["final"]
    client.verify(server_final)


class Server:
    """The other side, as the RFC has it: knows the salted password only."""

    def __init__(self, hash_name: str, password: str, rounds: int = 4096) -> None:
        self.hash_name = hash_name
        self.rounds = rounds
        salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), b"salt", rounds)
        self.stored_key = hashlib.new(hash_name, self.hmac(salted, b"Client Key")).digest()
        self.server_key = self.hmac(salted, b"Server Key")
        self.signed = b""

    def hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self.hash_name).digest()

    def first(self, client_first: bytes) -> bytes:
        nonce = client_first.rpartition(b"r=")[2]
        answer = b"r=%sserver,s=%s,i=%d" % (nonce, base64.b64encode(b"salt"), self.rounds)
        self.signed = client_first.removeprefix(b"n,,") + b"," + answer + b","
        return answer

    def final(self, client_final: bytes) -> bytes:
        without_proof, _, proof = client_final.rpartition(b",p=")
        signed = self.signed + without_proof
        signature = self.hmac(self.stored_key, signed)
        client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash_name, client_key).digest() != self.stored_key:
            return b"e=invalid-proof"
        return b"v=" + base64.b64encode(self.hmac(self.server_key, signed))


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("name", ["alice", "a,b=c", "älïçé"])
def test_both_sides_convince_each_other(mechanism: str, name: str) -> None:
    client = ScramClient(HASHES[mechanism], name, "päss,word")
    server = Server(HASHES[mechanism], "päss,word")
    first = client.first()
    assert first.decode().count(",") == 3
    client.verify(server.final(client.final(server.first(first))))


def test_a_wrong_password_is_refused_and_not_quoted() -> None:
    client, server = ScramClient("sha256", "alice", "wrong-secret"), Server("sha256", "right-secret")
    answer = server.final(client.final(server.first(client.first())))
    with pytest.raises(AuthenticationFailed, match="invalid-proof") as caught:
        client.verify(answer)
    assert "secret" not in str(caught.value)
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not caught.value.retriable


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client, server = ScramClient("sha256", "alice", "secret"), Server("sha256", "secret")
    client.final(server.first(client.first()))
    with pytest.raises(AuthenticationFailed, match="cannot prove"):
        client.verify(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(AuthenticationFailed, match="cannot prove"):
        client.verify(b"")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"r=other,s=c2FsdA==,i=4096", "nonce"),
        (b"r=mine,s=c2FsdA==,i=4096", "nonce"),
        (b"", "nonce"),
        (b"r=mine1,s=c2FsdA==,i=1", "rounds"),
        (b"r=mine1,s=c2FsdA==,i=99999999999", "rounds"),
        (b"r=mine1,s=c2FsdA==", "rounds"),
        (b"r=mine1,s=?,i=4096", "base64"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_an_answer_that_is_not_the_protocols_is_refused(answer: bytes, complaint: str) -> None:
    with pytest.raises(AuthenticationFailed, match=complaint):
        ScramClient("sha256", "alice", "secret", "mine").final(answer)
