"""Properties of every key ring: the service's own, and one behind a program."""

from __future__ import annotations

import base64
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.adapters.keyring import CommandKeyRing, EnvKeyRing, ring_of
from service.domain.shared.errors import SecretUnreadable, Unavailable
from service.settings import SecretSettings, SettingsError, read_settings
from service.usecases.ports.secrets import KeyRing, Sealed
from tests.unit.service.test_settings import REQUIRED

ONE, OTHER = b"\x01" * 32, b"\x02" * 32
_PROGRAM = """#!{python}
import base64, sys
data = base64.b64decode(sys.stdin.read())
if sys.argv[1:] == ["wrap"]:
    data = b"wrapped" + bytes(one ^ 7 for one in data)
elif sys.argv[1:] == ["unwrap"] and data.startswith(b"wrapped"):
    data = bytes(one ^ 7 for one in data.removeprefix(b"wrapped"))
else:
    sys.exit("no such key")
print(base64.b64encode(data).decode())
"""


def program(folder: Path, text: str = _PROGRAM) -> str:
    """A stand-in for a key service's command line."""
    path = folder / "keys"
    path.write_text(text.replace("{python}", sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


MAKERS: dict[str, Callable[[Path], KeyRing]] = {
    "env": lambda _: EnvKeyRing([ONE]),
    "command": lambda folder: CommandKeyRing([program(folder)]),
}


@pytest.fixture(params=sorted(MAKERS))
def ring(request: pytest.FixtureRequest, tmp_path: Path) -> KeyRing:
    return MAKERS[request.param](tmp_path)


@pytest.mark.parametrize("value", [b"x", b"swordfish", bytes(range(256)) * 256])
async def test_what_is_sealed_opens_for_its_context_alone(ring: KeyRing, value: bytes) -> None:
    sealed = await ring.seal(value, b"vision/key")
    assert await ring.open(sealed, b"vision/key") == value
    with pytest.raises(SecretUnreadable):
        await ring.open(sealed, b"speech/key")


async def test_nothing_of_the_value_is_in_what_is_kept(ring: KeyRing) -> None:
    sealed = await ring.seal(b"swordfish", b"c")
    assert b"swordfish" not in sealed.data
    assert "swordfish" not in repr(sealed)
    assert (await ring.seal(b"swordfish", b"c")).data != sealed.data, "each time another nonce"


async def test_what_was_changed_does_not_open(ring: KeyRing) -> None:
    sealed = await ring.seal(b"swordfish", b"c")
    changed = sealed.data[:-1] + bytes([sealed.data[-1] ^ 1])
    for data in (changed, sealed.data[:-1], sealed.data[-20:]):
        with pytest.raises((SecretUnreadable, Unavailable)):
            await ring.open(Sealed(sealed.key_id, data), b"c")


async def test_a_key_of_another_ring_is_not_known(ring: KeyRing) -> None:
    with pytest.raises(SecretUnreadable):
        await ring.open(await EnvKeyRing([OTHER]).seal(b"x", b"c"), b"c")


async def test_the_first_key_seals_and_all_open() -> None:
    old = await EnvKeyRing([ONE]).seal(b"x", b"c")
    both = EnvKeyRing([OTHER, ONE])
    assert await both.open(old, b"c") == b"x"
    assert (await both.seal(b"x", b"c")).key_id == (await EnvKeyRing([OTHER]).seal(b"y", b"c")).key_id


async def test_a_program_takes_over_from_keys_of_the_service(tmp_path: Path) -> None:
    old = await EnvKeyRing([ONE]).seal(b"x", b"c")
    ring = ring_of(SecretSettings(keys=(ONE,), command=(program(tmp_path),)))
    assert ring is not None
    assert await ring.open(old, b"c") == b"x"
    assert (await ring.seal(b"x", b"c")).key_id == "command"


@pytest.mark.parametrize(
    "text", ["#!{python}\nimport sys; sys.exit(3)", "#!{python}\nprint('!')", "#!/no/such/thing\n"]
)
async def test_a_program_that_fails_is_away(tmp_path: Path, text: str) -> None:
    with pytest.raises(Unavailable):
        await CommandKeyRing([program(tmp_path, text)]).seal(b"x", b"c")


def test_keys_are_read_from_the_environment_and_not_shown() -> None:
    both = f"{base64.b64encode(ONE).decode()}, {OTHER.hex()}"
    settings = read_settings({**REQUIRED, "HEADWAY_SECRETS_KEY": both})
    assert settings.secrets.keys == (ONE, OTHER)
    assert base64.b64encode(ONE).decode() not in repr(settings)
    assert repr(ONE) not in repr(settings)
    assert ring_of(read_settings(REQUIRED).secrets) is None


@pytest.mark.parametrize("text", ["short", "A" * 43, "zz" * 32, base64.b64encode(ONE[:31]).decode()])
def test_a_key_that_is_none_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(SettingsError, match="openssl rand") as error:
        read_settings({**REQUIRED, "HEADWAY_SECRETS_KEY": text})
    assert text not in str(error.value)
