"""Injection of each kind of fault into a rig, and its reversal."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from redis import Redis, RedisError

from benchmarks.faulting.network import Address
from benchmarks.faulting.plan import HOST_KINDS, Fault, Kind
from benchmarks.faulting.rig import Rig, launchers
from benchmarks.faulting.watching import Watcher
from benchmarks.networking.namespaces import flapping
from headway.local.ports import HOST
from worker_agent.launcher import processes

T = TypeVar("T")
Undo = Callable[[], None]
_REDIS_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Done:
    """Injected fault. `undo` reverses it; None if it ends by itself."""

    target: str
    undo: Undo | None = None


class Harm:
    """Injector of faults into a rig.

    Args:
        rig: the cluster.
        watcher: source of the living ranks.
        note: called with events for the record.
    """

    def __init__(self, rig: Rig, watcher: Watcher, note: Callable[..., None]) -> None:
        self._note = note
        self._rig = rig
        self._watcher = watcher

    def do(self, fault: Fault) -> Done | None:
        """Inject a fault now. Return None if it has no target at present."""
        match fault.kind:
            case Kind.KILL_POSTGRES | Kind.CRASH_POSTGRES:
                return self._stop_postgres(fault.kind)
            case Kind.KILL_REDIS | Kind.FLUSH_REDIS | Kind.RESTORE_REDIS:
                return self._hurt_redis(fault.kind)
            case Kind.CUT | Kind.REFUSE | Kind.BLACKHOLE | Kind.DELAY | Kind.PARTITION | Kind.KILL_ANSWERING:
                return self._disturb(fault)
            case Kind.FILL_STORAGE | Kind.FILL_AGENT:
                return self._fill(fault)
            case Kind.JUMP_CLOCK:
                return self._jump(fault)
            case Kind.FREEZE_ALL_SERVICES:
                return self._freeze(self._victims("api") + self._victims("scheduler"))
        if fault.kind in HOST_KINDS:
            return self._hurt_host(fault)
        return self._stop_process(fault)

    def _hurt_redis(self, kind: Kind) -> Done | None:
        if kind is Kind.KILL_REDIS:
            return _kill("redis", self._rig.redis.pid, signal.SIGKILL)
        if kind is Kind.FLUSH_REDIS:
            return Done("redis") if self._flush() else None
        return self._age_redis()

    def _age_redis(self) -> Done | None:
        try:
            with Redis.from_url(self._rig.redis.url(), socket_timeout=_REDIS_TIMEOUT_S) as redis:
                dump = _dump(redis)
        except (RedisError, OSError):
            return None

        def restore() -> None:
            try:
                with Redis.from_url(self._rig.redis.url(), socket_timeout=_REDIS_TIMEOUT_S) as redis:
                    _restore(redis, dump)
            except (RedisError, OSError) as error:
                self._note("not_restored", error=str(error))
            else:
                self._note("restored", keys=len(dump))

        return Done("redis", restore)

    def _kill_answering(self) -> Done:
        link = self._rig.network.links["users-api"]

        def kill(target: Address) -> None:
            name = self._rig.api_at(target)
            done = _kill(name, self._rig.programs[name].pid, signal.SIGKILL)
            self._note("answer_lost", whom=done and done.target)

        link.lose_answer = kill
        return Done(link.name, lambda: setattr(link, "lose_answer", None))

    def _fill(self, fault: Fault) -> Done:
        names = ["storage"] if fault.kind is Kind.FILL_STORAGE else self._rig.names("agent")
        name = names[fault.target % len(names)]
        disk = self._rig.disks[name]
        disk.fill()
        return Done(f"{name} ({disk.how})", disk.empty)

    def _stop_process(self, fault: Fault) -> Done | None:
        verb, _, whom = fault.kind.partition("_")
        victim = _choose(self._victims(whom), fault.target)
        if victim is None:
            return None
        if verb == "kill":
            return _kill(*victim, signal.SIGKILL)
        return self._freeze([victim])

    def _freeze(self, victims: Sequence[tuple[str, int]]) -> Done | None:
        frozen = [(whom, pid) for whom, pid in victims if _kill(whom, pid, signal.SIGSTOP)]
        if not frozen:
            return None
        return Done(
            ", ".join(f"{whom} ({pid})" for whom, pid in frozen), lambda: _wake(pid for _, pid in frozen)
        )

    def _victims(self, whom: str) -> list[tuple[str, int]]:
        if whom == "rank":
            return [
                (f"rank {life.rank} of {life.name}, generation {life.generation}", life.pid)
                for life in self._watcher.living()
            ]
        if whom == "launcher":
            return [
                (f"launcher of {name}", pid)
                for name in self._rig.names("agent")
                for pid in launchers(self._rig.agent_state(name))
            ]
        running = {name: self._rig.programs[name] for name in self._rig.names(whom)}
        return [(name, one.pid) for name, one in running.items() if one.pid is not None and one.alive()]

    def _stop_postgres(self, kind: Kind) -> Done | None:
        number = signal.SIGKILL if kind is Kind.KILL_POSTGRES else signal.SIGQUIT
        pid_file = self._rig.postgres.data / "cluster" / "postmaster.pid"
        with contextlib.suppress(OSError, ValueError):
            if self._rig.postgres.alive():
                return _kill("postgres", int(pid_file.read_text(encoding="utf-8").split()[0]), number)
        return None

    def _flush(self) -> bool:
        """Delete all data of Redis, and return True on success."""
        parts = urlsplit(self._rig.redis.url())
        try:
            with socket.create_connection((HOST, parts.port or 0), timeout=2.0) as connection:
                connection.sendall(f"AUTH {parts.password}\r\nFLUSHALL\r\n".encode())
                connection.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: connection.recv(256), b""))
        except OSError:
            return False
        return answer == b"+OK\r\n+OK\r\n"

    def _disturb(self, fault: Fault) -> Done | None:
        if fault.kind is Kind.KILL_ANSWERING:
            return self._kill_answering()
        links = self._rig.network.links
        among = (
            [f"{name}-api" for name in self._rig.names("agent")]
            if fault.kind is Kind.PARTITION
            else list(links)
        )
        link = links[among[fault.target % len(among)]]
        match fault.kind:
            case Kind.CUT:
                return Done(f"{link.name}: {self._rig.network.cut(link)} sockets")
            case Kind.REFUSE:
                link.refuses = True
                self._rig.network.cut(link)
                return Done(link.name, lambda: setattr(link, "refuses", False))
            case Kind.DELAY:
                link.delay_s = fault.amount
                return Done(link.name, lambda: setattr(link, "delay_s", 0.0))
        link.swallow()
        return Done(link.name, link.flow)

    def _hurt_host(self, fault: Fault) -> Done:
        hosts = list(self._rig.hosts.values())
        host, other = hosts[fault.target % len(hosts)], hosts[(fault.target + 1) % len(hosts)]
        match fault.kind:
            case Kind.CUT_PAIR:
                host.lose(other.address)
                other.lose(host.address)
            case Kind.ONE_WAY:
                host.lose(other.address)
            case Kind.LOSE_SERVICE:
                host.lose(self._rig.service_address)
            case Kind.LOSE_QUEUE:
                host.lose(self._rig.queue_address)
            case Kind.SLOW_LINK:
                host.limit(fault.amount)
                return Done(host.name, host.unlimit)
            case Kind.FLAP:
                return Done(host.name, flapping(host))
            case Kind.VANISH:
                host.unplug()
                return Done(host.name, host.plug)

        def undo() -> None:
            host.reach(other.address, self._rig.service_address, self._rig.queue_address)
            other.reach(host.address)

        return Done(f"{host.name} and {other.name}", undo)

    def _jump(self, fault: Fault) -> Done:
        names = [*self._rig.names("api"), *self._rig.names("scheduler")]
        name = names[fault.target % len(names)]
        self._rig.clocks.set(name, fault.amount)
        return Done(name, lambda: self._rig.clocks.set(name, 0.0))


def missing(rig: Rig) -> list[Kind]:
    """Return the kinds of faults that are not possible on this machine."""
    kinds = [] if rig.clocks.available else [Kind.JUMP_CLOCK]
    kinds += [] if rig.shape.apart else sorted(HOST_KINDS)
    return kinds if rig.storage.how else [*kinds, Kind.FILL_STORAGE, Kind.FILL_AGENT]


def _choose(among: Sequence[T], target: int) -> T | None:
    return among[target % len(among)] if among else None


def _kill(whom: str, pid: int | None, number: signal.Signals) -> Done | None:
    try:
        if pid is None or not processes.of([pid]):
            return None
        os.kill(pid, number)
    except OSError:
        return None
    return Done(f"{whom} ({pid})")


def _dump(redis: Redis) -> dict[bytes, tuple[int, bytes]]:
    """Return the value of every key as Redis stores it, with the milliseconds until its end; 0 for none."""
    keys = list(redis.scan_iter())
    with redis.pipeline() as pipeline:
        for key in keys:
            pipeline.pttl(key)
            pipeline.dump(key)
        found = pipeline.execute()
    read = zip(keys, found[::2], found[1::2], strict=True)
    return {key: (max(ends_ms, 0), value) for key, ends_ms, value in read if value is not None}


def _restore(redis: Redis, dump: Mapping[bytes, tuple[int, bytes]]) -> None:
    """Replace all data of a Redis by that of a dump."""
    with redis.pipeline() as pipeline:
        pipeline.flushdb()
        for key, (ends_ms, value) in dump.items():
            pipeline.restore(key, ends_ms, value)
        pipeline.execute()


def _wake(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
