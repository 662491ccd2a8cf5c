"""Podman with images, networks and volumes of its own, and images made without an image registry: the base is a
Debian that debootstrap unpacks, with the Python, PostgreSQL and Redis of that release.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
BASE = "localhost/headway-test-base"
_NEEDED = ("podman", "podman-compose", "runc", "debootstrap")
_HELPERS = (Path("/usr/lib/podman/aardvark-dns"), Path("/usr/libexec/podman/catatonit"))
_DEBIAN = "http://deb.debian.org/debian"
_CONTENT = "ca-certificates,postgresql,python3,python3-pip,python3-venv,python-is-python3,redis-server"  # of the base
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_CONTAINERS_CONF = """
[engine]
runtime = "runc"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
"""
_STORAGE_CONF = """
[storage]
driver = "overlay"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""
_PODMAN = """#!/bin/sh
export CONTAINERS_CONF={folder}/containers.conf CONTAINERS_STORAGE_CONF={folder}/storage.conf BUILDAH_FORMAT=docker
exec {program} "$@"
"""
_POSTGRES = """
FROM {base}
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
RUN install --directory --owner=postgres /var/lib/postgresql /run/postgresql
COPY start /usr/local/bin/start
USER postgres
ENTRYPOINT ["sh", "/usr/local/bin/start"]
"""
_POSTGRES_START = """set -e
if ! test -s "$PGDATA/PG_VERSION"; then
    printf %s "$POSTGRES_PASSWORD" > /tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 --auth-local=trust > /dev/null
    rm /tmp/password
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl start --wait --silent --options="-c listen_addresses=''"
    createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl stop --silent
fi
exec postgres -c listen_addresses='*'
"""


def missing() -> list[str]:
    """Return what a host lacks to run these tests."""
    found = [name for name in _NEEDED if shutil.which(name) is None]
    found += [helper.name for helper in _HELPERS if not helper.exists()]
    return found + ([] if os.geteuid() == 0 else ["root"])


class Podman:
    """The engine. `bin` is the folder of a `podman` that uses nothing of the host's own images and volumes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        for name in ("bin", "networks", "images", "run", "build"):
            (folder / name).mkdir()
        (folder / "containers.conf").write_text(_CONTAINERS_CONF.format(folder=folder), encoding="utf-8")
        (folder / "storage.conf").write_text(_STORAGE_CONF.format(folder=folder), encoding="utf-8")
        program = self.bin / "podman"
        program.write_text(_PODMAN.format(folder=folder, program=shutil.which("podman")), encoding="utf-8")
        program.chmod(0o755)
        self.env = {**os.environ, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Return what podman printed on its standard output. With `fails`, an exit code other than 0 is accepted."""
        done = subprocess.run(
            [str(self.bin / "podman"), *arguments], capture_output=True, text=True, check=False, timeout=900
        )
        assert fails or done.returncode == 0, (
            f"podman {arguments[0]}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
        return done.stdout.strip()

    def size_bytes(self, image: str) -> int:
        """Return the bytes of an image's layers as they lie on the disk, those of its base included."""
        return int(self.run("image", "inspect", "--format={{.Size}}", image))

    def make_base(self) -> None:
        """Unpack a Debian, and import it as the image that stands for Python's official one."""
        root = self.folder / "build" / "root"
        command = [
            "debootstrap",
            "--variant=minbase",
            f"--include={_CONTENT}",
            "bookworm",
            str(root),
            _DEBIAN,
        ]
        for _ in range(3):  # a package that could not be downloaded; what was stays in the folder
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stdout[-2000:]
        tar = subprocess.Popen(
            [
                "tar",
                "-C",
                str(root),
                "-c",
                "--exclude=./proc/*",
                "--exclude=./sys/*",
                "--exclude=./dev/*",
                ".",
            ],
            stdout=subprocess.PIPE,
        )
        with tar:
            subprocess.run(
                [str(self.bin / "podman"), "import", "-", BASE],
                stdin=tar.stdout, capture_output=True, check=True, timeout=600,
            )  # fmt: skip
        assert tar.returncode == 0
        shutil.rmtree(root)

    def build(self, target: str, image: str, **arguments: str) -> None:
        """Build a target of the Dockerfile, with this machine's settings of pip as secrets of the build."""
        conf, folders = _pip_settings()
        (self.folder / "pip.conf").write_text(conf, encoding="utf-8")
        secrets = [f"--secret=id=pip.conf,src={self.folder}/pip.conf"]
        secrets += [f"--secret=id=ca.pem,src={_AUTHORITIES}"] if _AUTHORITIES.exists() else []
        given = [f"--build-arg={name}={value}" for name, value in {"BASE": BASE, **arguments}.items()]
        mounts = [f"--volume={one}:{one}:ro" for one in folders]
        self.run(
            "build",
            "--network=host",
            *secrets,
            *mounts,
            *given,
            f"--target={target}",
            f"--tag={image}",
            str(ROOT),
        )

    def build_postgres(self, image: str) -> None:
        """Build an image that takes the variables of the official one of PostgreSQL."""
        folder = self.folder / "build" / "postgres"
        folder.mkdir()
        (folder / "Dockerfile").write_text(_POSTGRES.format(base=BASE), encoding="utf-8")
        (folder / "start").write_text(_POSTGRES_START, encoding="utf-8")
        self.run("build", f"--tag={image}", str(folder))


@contextmanager
def engine(folder: Path) -> Iterator[Podman]:
    """Give an engine in an empty folder, and end and remove everything in it afterwards."""
    podman = Podman(folder)
    try:
        yield podman
    finally:
        podman.run("rm", "--all", "--force", "--time=1", fails=True)
        podman.run("system", "reset", "--force", fails=True)
        shutil.rmtree(folder, ignore_errors=True)


def _pip_settings() -> tuple[str, list[str]]:
    """Return a pip.conf that says what this machine's pip is told, and the folders that it names."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    wanted = ("index-url", "extra-index-url", "find-links", "trusted-host")
    given = {}
    for line in asked.stdout.splitlines():
        name, _, value = line.partition("=")
        if name.rpartition(".")[2] in wanted:
            given[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    words = [word for value in given.values() for word in value.split()]
    indexes = [str(Path(word.removeprefix("file://")).parent) for word in words if word.startswith("file://")]
    folders = [*indexes, *(word for word in words if Path(word).is_dir())]  # an index's files lie beside it
    if _AUTHORITIES.exists():
        given["cert"] = "/run/secrets/ca.pem"
    lines = ["[global]", *(f"{name} = {' '.join(value.split())}" for name, value in given.items())]
    return "\n".join(lines) + "\n", folders
