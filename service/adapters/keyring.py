"""Key rings for secrets: keys from the environment, or a program that talks to a key service.

The sealed form is `nonce (12 bytes) + ciphertext + tag (16 bytes)` of AES-256-GCM. With a program, each value
has its own key. The program wraps that key, and the wrapped key precedes the sealed form, with its length in
two bytes.
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

from service.domain.shared.errors import SecretUnreadable, Unavailable
from service.settings import SECRETS_KEY_BYTES, SecretSettings
from service.usecases.ports.secrets import KeyRing, Sealed

_NONCE_BYTES = 12
_LENGTH_BYTES = 2
_COMMAND_TIMEOUT_S = 8.0
"""Time limit of one call of the key program, shorter than the request timeout of agents."""
_COMMAND = "command"
_UNREADABLE = "a stored secret cannot be opened with the service's keys; set it again, or give the service the key that sealed it"


def ring_of(settings: SecretSettings) -> KeyRing | None:
    """Return the key ring that the settings name, or None if they name none."""
    ring = EnvKeyRing(settings.keys) if settings.keys else None
    return CommandKeyRing(settings.command, ring) if settings.command else ring


class EnvKeyRing(KeyRing):
    """Key ring of keys that the service holds itself.

    The first key seals; every key opens.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = {_id_of(key): AESGCM(key) for key in keys}
        self._first = _id_of(keys[0])

    async def seal(self, value: bytes, context: bytes) -> Sealed:
        return Sealed(self._first, _encrypt(self._ciphers[self._first], value, context))

    async def open(self, sealed: Sealed, context: bytes) -> bytes:
        cipher = self._ciphers.get(sealed.key_id)
        if cipher is None:
            raise SecretUnreadable(_UNREADABLE)
        return _decrypt(cipher, sealed.data, context)


class CommandKeyRing(KeyRing):
    """Key ring whose key only a program can use.

    `PROGRAM wrap` and `PROGRAM unwrap` read base64 from standard input and write base64 to standard output.
    `older` opens values that were sealed before the program was configured.
    """

    def __init__(self, argv: Sequence[str], older: KeyRing | None = None) -> None:
        self._argv = tuple(argv)
        self._older = older

    async def seal(self, value: bytes, context: bytes) -> Sealed:
        key = secrets.token_bytes(SECRETS_KEY_BYTES)
        wrapped = await self._run("wrap", key)
        length = len(wrapped).to_bytes(_LENGTH_BYTES, "big")
        return Sealed(_COMMAND, length + wrapped + _encrypt(AESGCM(key), value, context))

    async def open(self, sealed: Sealed, context: bytes) -> bytes:
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
        """Return the program's decoded answer. Its standard error goes to the standard error of the service.

        Raises:
            Unavailable: the program cannot be started, fails, exceeds its time limit or does not answer in
                base64.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv, verb, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise Unavailable(
                f"HEADWAY_SECRETS_COMMAND cannot be started: {error.strerror}; check its path"
            ) from error
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT_S):
                answer, _ = await process.communicate(base64.b64encode(given) + b"\n")
        except TimeoutError:
            process.kill()
            await process.wait()
            raise Unavailable(
                "the program of HEADWAY_SECRETS_COMMAND did not answer in time; nothing was changed, try again"
            ) from None
        if process.returncode:
            raise Unavailable(
                f"the program of HEADWAY_SECRETS_COMMAND ended with exit status {process.returncode}; see its error output "
                "in the service's log"
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
