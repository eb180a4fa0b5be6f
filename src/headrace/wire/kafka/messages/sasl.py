"""Authentication: SaslHandshake chooses a mechanism, SaslAuthenticate carries its messages."""

from __future__ import annotations

from headrace.wire.kafka.schema import array, bits, i16, i64, message, string

__all__ = [
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
]


@message(api_key=17, versions=(0, 1))
class SaslHandshakeRequest:
    mechanism: str = string()


@message(api_key=17, versions=(0, 1))
class SaslHandshakeResponse:
    error_code: int = i16()
    mechanisms: list[str] = array("string")


@message(api_key=36, versions=(0, 2), flexible=2)
class SaslAuthenticateRequest:
    auth_bytes: bytes = bits()


def _without_secrets(self: SaslAuthenticateRequest) -> str:
    return f"SaslAuthenticateRequest({len(self.auth_bytes)} bytes)"


setattr(SaslAuthenticateRequest, "__repr__", _without_secrets)  # noqa: B010 - PLAIN carries the password


@message(api_key=36, versions=(0, 2), flexible=2)
class SaslAuthenticateResponse:
    error_code: int = i16()
    error_message: str | None = string(null=0)
    auth_bytes: bytes = bits()
    session_lifetime_ms: int = i64(since=1)
