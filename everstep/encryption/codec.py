"""The codec of payloads: AES-256-GCM, with the name of the key beside what it encrypts.

A payload is encrypted as a whole, with the metadata that say how it is read. Another nonce for each one; the
metadata that stay clear are authenticated with it. What was written without a codec is read as it is.

A payload that no key here opens raises `PayloadClosed`. The SDK tries a workflow task, and an activity, again
after that: a worker without the key ends no job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from everstep.core.errors import KeysUnusable, PayloadClosed
from everstep.encryption.keys import VARIABLE, KeyFolder

ENCODING = b"binary/encrypted"
CIPHER = b"AES-256-GCM"
CIPHER_NAME, KEY_NAME = "encryption-cipher", "encryption-key-id"
NONCE_BYTES, TAG_BYTES = 12, 16
NAME_SHOWN = 64


def is_closed(payload: Payload) -> bool:
    """Whether a codec encrypted the payload, ours or another one."""
    return payload.metadata.get("encoding") == ENCODING


class WithoutKeys(PayloadCodec):
    """The codec of a process that has no keys: it writes as before, and refuses what is encrypted.

    It refuses in the codec, since the SDK gives up a signal that it cannot convert, and a workflow would
    take an unreadable document for a wrong one.
    """

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [*payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        for payload in payloads:
            if is_closed(payload):
                hint = f"set {VARIABLE} to the folder that has it"
                closed = _closed_with(_key_name(payload))
                raise PayloadClosed(f"{closed}, and this process has no keys: {hint}")
        return [*payloads]


class Codec(PayloadCodec):
    """Encrypts with the current key of a folder, and decrypts with all of them."""

    def __init__(self, keys: KeyFolder) -> None:
        """Raises `KeysUnusable` if the package that encrypts is not installed."""
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            hint = "`pip install 'everstep[encryption]'` brings it"
            raise KeysUnusable(f"{VARIABLE} needs the package cryptography; {hint}") from None
        self._cipher, self._wrong_tag = AESGCM, InvalidTag
        self._keys = keys

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self.encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self.decrypted(payload) for payload in payloads]

    def encrypted(self, payload: Payload) -> Payload:
        """The payload, encrypted with the current key."""
        name, key = self._keys.current()
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._cipher(key).encrypt(nonce, payload.SerializeToString(), _clear_part(name))
        metadata = {"encoding": ENCODING, CIPHER_NAME: CIPHER, KEY_NAME: name.encode()}
        return Payload(metadata=metadata, data=nonce + sealed)

    def decrypted(self, payload: Payload) -> Payload:
        """The payload as it was before. Raises `PayloadClosed`."""
        if not is_closed(payload):
            return payload
        name = _key_name(payload)
        key = self._keys.key(name)
        closed = _closed_with(name)
        if key is None:
            raise PayloadClosed(f"{closed}, which this process does not have: {HINT}")
        if payload.metadata.get(CIPHER_NAME) != CIPHER:
            raise PayloadClosed(f"{closed}, but not by Everstep: its cipher is another one")
        nonce, sealed = payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:]
        if len(sealed) < TAG_BYTES:
            raise PayloadClosed(f"{closed}, and is cut off: it was changed after it was written")
        try:
            content = self._cipher(key).decrypt(nonce, sealed, _clear_part(name))
        except self._wrong_tag:
            raise PayloadClosed(
                f"{closed}, and does not open with it: the key of this name is another one here, "
                "or the payload was changed after it was written"
            ) from None
        return Payload.FromString(content)


HINT = f"add it to the folder that {VARIABLE} names"


def _closed_with(name: str) -> str:
    return f"a payload is encrypted with key {name}"


def _key_name(payload: Payload) -> str:
    """The name of its key. It comes from the server, so nothing but plain text is shown of it."""
    text = payload.metadata.get(KEY_NAME, b"").decode("ascii", errors="replace")[:NAME_SHOWN]
    return text if text.isprintable() and text else ascii(text)


def _clear_part(name: str) -> bytes:
    """What of a payload stays clear, as it is authenticated."""
    return b"\0".join((ENCODING, CIPHER, name.encode()))
