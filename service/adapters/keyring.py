"""Keys of secrets: from the environment, or behind a program that talks to a key service.

What is sealed is `nonce (12 bytes) + ciphertext + tag (16 bytes)` of AES-256-GCM. The program wraps a key that is made for each
value; its wrapped form goes before, with its length in two bytes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from service.domain.errors import SecretUnreadable, Unavailable
from service.settings import SECRETS_KEY_BYTES, SecretSettings
from service.usecases.secret_ports import KeyRing, Sealed

_NONCE_BYTES = 12
_LENGTH_BYTES = 2
_COMMAND_TIMEOUT_S = 8.0
"""Less than agents wait for an answer."""
_COMMAND = "command"
_UNREADABLE = "a stored secret cannot be opened with the service's keys; set it again, or give the service the key that sealed it"


def ring_of(settings: SecretSettings) -> KeyRing | None:
    """The keys that the settings name; None when they name none."""
    ring = EnvKeyRing(settings.keys) if settings.keys else None
    return CommandKeyRing(settings.command, ring) if settings.command else ring


class EnvKeyRing:
    """Keys that the service holds itself. The first seals; all of them open. Implements `usecases.secret_ports.KeyRing`."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = {_id_of(key): AESGCM(key) for key in keys}
        self._first = _id_of(keys[0])

    async def seal(self, value: bytes, context: bytes) -> Sealed:
        """Encrypt with the first key."""
        return Sealed(self._first, _encrypt(self._ciphers[self._first], value, context))

    async def open(self, sealed: Sealed, context: bytes) -> bytes:
        """Decrypt with the key that sealed it."""
        cipher = self._ciphers.get(sealed.key_id)
        if cipher is None:
            raise SecretUnreadable(_UNREADABLE)
        return _decrypt(cipher, sealed.data, context)


class CommandKeyRing:
    """A key that only a program can use: `PROGRAM wrap` and `PROGRAM unwrap` read base64 from their input and write base64.

    `older` opens what was sealed before the program was there. Implements `usecases.secret_ports.KeyRing`.
    """

    def __init__(self, argv: Sequence[str], older: KeyRing | None = None) -> None:
        self._argv = tuple(argv)
        self._older = older

    async def seal(self, value: bytes, context: bytes) -> Sealed:
        """Encrypt with a new key, and have the program wrap that."""
        key = secrets.token_bytes(SECRETS_KEY_BYTES)
        wrapped = await self._run("wrap", key)
        length = len(wrapped).to_bytes(_LENGTH_BYTES, "big")
        return Sealed(_COMMAND, length + wrapped + _encrypt(AESGCM(key), value, context))

    async def open(self, sealed: Sealed, context: bytes) -> bytes:
        """Have the program unwrap the key, and decrypt with that."""
        if sealed.key_id != _COMMAND:
            if self._older is None:
                raise SecretUnreadable(_UNREADABLE)
            return await self._older.open(sealed, context)
        end = _LENGTH_BYTES + int.from_bytes(sealed.data[:_LENGTH_BYTES], "big")
        key = await self._run("unwrap", sealed.data[_LENGTH_BYTES:end])
        if len(key) != SECRETS_KEY_BYTES:
            raise SecretUnreadable(_UNREADABLE)
        return _decrypt(AESGCM(key), sealed.data[end:], context)

    async def _run(self, verb: str, given: bytes) -> bytes:
        """What the program makes of it. What it says on its error output goes to the service's own."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv, verb, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise Unavailable(f"HEADWAY_SECRETS_COMMAND cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT_S):
                answer, _ = await process.communicate(base64.b64encode(given) + b"\n")
        except TimeoutError:
            process.kill()
            await process.wait()
            raise Unavailable("the keys of secrets do not answer; nothing was done, try again") from None
        if process.returncode:
            raise Unavailable(
                f"the program of HEADWAY_SECRETS_COMMAND ended with {process.returncode}; the service's log has its words"
            )
        try:
            return base64.b64decode(answer.strip(), validate=True)
        except binascii.Error:
            raise Unavailable("the program of HEADWAY_SECRETS_COMMAND does not answer in base64") from None


def _id_of(key: bytes) -> str:
    return hashlib.sha256(b"headway secrets key\0" + key).hexdigest()[:16]


def _encrypt(cipher: AESGCM, value: bytes, context: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, value, context)


def _decrypt(cipher: AESGCM, data: bytes, context: bytes) -> bytes:
    try:
        return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], context)
    except (InvalidTag, ValueError) as error:
        raise SecretUnreadable(_UNREADABLE) from error
