"""The services of docker-compose.yml by podman-compose, which (in version 1.0.3) knows no profiles, waits for nothing
that `depends_on` names and quotes the programs of health checks wrongly. Here a test does all three.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import subprocess
from typing import Any

import yaml

from headway.local.ports import free_port
from tests.integration.containers.engine import ROOT, Podman
from tests.waiting import until

PROJECT = "headway-test"


class Compose:
    """The services without a profile, with images that were built before."""

    def __init__(self, podman: Podman, images: dict[str, str]) -> None:
        self.podman = podman
        self.folder = podman.folder / "compose"
        self.folder.mkdir()
        read: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
        self.services: dict[str, dict[str, Any]] = {
            name: service for name, service in read["services"].items() if "profiles" not in service
        }
        for name, service in self.services.items():
            service.pop("build", None)
            service["image"] = images.get(name, f"localhost/{service['image']}")
            waits = {
                other: how for other, how in service.get("depends_on", {}).items() if other in self.services
            }
            service["depends_on"] = waits
        plain = {**read, "services": self.services}
        (self.folder / "docker-compose.yml").write_text(yaml.safe_dump(plain), encoding="utf-8")
        names = re.findall(
            r"^(\w+)=$", (ROOT / ".env.example").read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        self.settings = {**{name: secrets.token_hex(24) for name in names}, "HEADWAY_PORT": str(free_port())}
        lines = "".join(f"{name}={value}\n" for name, value in self.settings.items())
        (self.folder / ".env").write_text(lines, encoding="utf-8")

    def container(self, service: str) -> str:
        """Return the name of a service's container."""
        return f"{PROJECT}_{service}_1"

    async def up(self) -> None:
        """Start every service once what it waits for is well or has succeeded."""
        started: set[str] = set()
        while len(started) < len(self.services):
            ready = [
                name
                for name, one in self.services.items()
                if name not in started and started >= set(one["depends_on"])
            ]
            for name in ready:
                self._compose("up", "--detach", "--no-build", "--no-deps", name)
            for name in ready:
                if self.services[name]["restart"] == "no":
                    assert self.podman.run("wait", self.container(name)) == "0", self.log(name)
                else:
                    await self.well(name)
            started |= set(ready)

    def down(self) -> None:
        """Stop and remove the containers, and keep the volumes."""
        self._compose("down", "--timeout", "30")
        assert self.podman.run("ps", "--all", "--quiet") == ""

    async def well(self, service: str) -> None:
        """Wait until the health check of a service succeeds, run as its file and its image say."""
        try:
            await until(lambda: self._is_well(service), within_s=120)
        except TimeoutError as error:
            raise AssertionError(f"{service} is not well:\n{self.log(service)}") from error

    def log(self, service: str) -> str:
        """Return the end of what a service's container printed."""
        done = subprocess.run(
            [str(self.podman.bin / "podman"), "logs", "--tail=40", self.container(service)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        return done.stdout

    def headway(self, *arguments: str) -> Any:
        """Return what the command line prints as JSON. It runs outside of every container."""
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")},
            "HEADWAY_URL": f"http://127.0.0.1:{self.settings['HEADWAY_PORT']}",
            "HEADWAY_TOKEN": self.settings["HEADWAY_API_TOKEN"],
        }
        program = ROOT / ".venv" / "bin" / "headway"
        done = subprocess.run(
            [str(program), *arguments, "--output", "json"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _compose(self, verb: str, *arguments: str) -> None:
        subprocess.run(
            ["podman-compose", "--project-name", PROJECT, verb, *arguments],
            cwd=self.folder, env=self.podman.env, capture_output=True, check=True, timeout=300,
        )  # fmt: skip

    async def _is_well(self, service: str) -> bool:
        check = self.services[service].get("healthcheck")
        if check is None:
            command = ["healthcheck", "run", self.container(service)]
        else:
            kind, *words = check["test"]
            shell = ["sh", "-c"] if kind == "CMD-SHELL" else []
            command = ["exec", self.container(service), *shell, *words]
        asked = await asyncio.create_subprocess_exec(
            self.podman.bin / "podman", *command,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        return await asked.wait() == 0
