"""Entry point of the launcher: `python -m worker_agent.launcher STATE_FOLDER`. The agent starts it, not a user."""

from __future__ import annotations

import fcntl
import logging
import os
import selectors
import signal
import socket
import struct
import sys
import time
from pathlib import Path

from worker_agent.host.folders import StateFolder, boot_s
from worker_agent.launcher.keeper import CannotStart, Keeper
from worker_agent.launcher.preload import code_version, preload
from worker_agent.launcher.processes import adopt_orphans, descends, set_dumpable
from worker_agent.launcher.program import flush_and_exit
from worker_agent.launcher.protocol import (
    Changed,
    EndCommand,
    Execute,
    Hello,
    Inbox,
    Kill,
    Lease,
    Message,
    Shutdown,
    Start,
    Terminate,
    Welcome,
    encode,
    socket_address,
)
from worker_agent.launcher.sessions import Streams

_log = logging.getLogger("worker_agent.launcher")

ALONE_S = 30.0
"""Seconds that a launcher without runs waits for an agent before it exits."""
_LOCK_WAIT_S = 10.0
_ERROR_PAUSE_S = 0.1
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group id of a peer, as the kernel returns them."""


class Server:
    """Event loop of the launcher: one listening socket, its clients, and the end of child processes."""

    def __init__(self, state: StateFolder, listener: socket.socket, lock: int) -> None:
        self._lock = lock
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._clients: dict[socket.socket, Inbox] = {}
        self._woken, self._waker = socket.socketpair()
        for end in (self._listener, self._woken, self._waker):
            end.setblocking(False)  # noqa: FBT003
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it makes the kernel wake the loop
        signal.signal(
            signal.SIGTERM, lambda *_: None
        )  # a batch system sends it to all processes, and ranks die with this one
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._version = code_version()
        preloaded = preload()
        self._has_torch = preloaded.has_torch
        _log.info("ready; forks ranks: %s", preloaded.no_fork or "yes")
        self._keeper = Keeper(state, preloaded, self._changed, self._release)
        self._keeper.sweep()
        self._alone_since_s = boot_s()
        self._leaving = False

    def serve(self) -> None:
        """Run until there are no runs left and no agent is connected."""
        while not self._leaving:
            try:
                self.run_once()
            except Exception:  # noqa: BLE001  # all ranks die with this process, so no error may end it
                _log.exception("continuing after an error")
                time.sleep(_ERROR_PAUSE_S)
        _log.info("no run and no agent left: exiting")

    def run_once(self) -> None:
        """Wait for an event, at most until the next deadline, and handle it."""
        for key, _ in self._selector.select(self._wait_s()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                self._woken.recv(4096)
            elif isinstance(key.fileobj, socket.socket):
                self._read(key.fileobj)
        self._keeper.reap()
        self._keeper.tick()
        if self._keeper.names() or self._clients:
            self._alone_since_s = boot_s()
        elif boot_s() - self._alone_since_s > ALONE_S:
            self._leaving = True

    def _wait_s(self) -> float | None:
        until_tick_s = self._keeper.next_tick_s()
        if until_tick_s is None and not self._clients:
            return 1.0
        return until_tick_s

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        # A rank with the agent's own user can connect to the socket, which Landlock does not prevent. Its
        # orders are refused.
        if descends(_peer(client), os.getpid()):
            _log.warning("refused a connection from process %d, which belongs to a job", _peer(client))
            client.close()
            return
        client.settimeout(0.5)  # an agent that does not read is hung, but the lease must still be enforced
        self._clients[client] = Inbox()
        self._selector.register(client, selectors.EVENT_READ)

    def _read(self, client: socket.socket) -> None:
        try:
            received = self._clients[client].receive(client)
        except (OSError, ValueError) as error:
            _log.warning("closing the connection to an agent: %s", error)
            received = None
        if received is None:
            self._drop(client)
        for message, descriptors in received or ():
            try:
                self._handle(client, message, descriptors)
            except Exception:  # noqa: BLE001  # the next orders are to be carried out, and descriptors closed
                _log.exception("an order failed: %s", type(message).__name__)
            for descriptor in descriptors:
                os.close(descriptor)

    def _handle(self, client: socket.socket, message: Message, descriptors: list[int]) -> None:
        """Carry out an order. It removes the descriptors that it takes over from the list."""
        match message:
            case Hello():
                self._send(client, Welcome(self._version, self._has_torch, self._keeper.names()))
            case Lease(deadline_s):
                self._keeper.renew(deadline_s)
            case Start(run, secrets):
                memory = descriptors[0] if secrets and descriptors else None
                self._send(client, self._keeper.start(run, memory))
            case Terminate(run):
                self._keeper.terminate(run)
            case Kill(run):
                self._keeper.kill(run)
            case Execute() if len(descriptors) == 4 + message.secrets:
                self._execute(client, message, descriptors)
            case EndCommand(command):
                self._keeper.end_command(command)
            case Shutdown() if not self._keeper.names():
                self._leaving = True
            case _:
                _log.warning("ignored: %s", type(message).__name__)  # its arguments may have secrets

    def _execute(self, client: socket.socket, order: Execute, descriptors: list[int]) -> None:
        streams = Streams(**dict(zip(("stdin", "stdout", "stderr", "status"), descriptors, strict=False)))
        del descriptors[:4]  # the keeper closes them
        secrets = descriptors[0] if descriptors else None
        try:
            self._keeper.execute(
                order.run, order.rank, order.argv, streams, secrets,
                command=order.command, term=order.term, owner=client,
            )  # fmt: skip
        except (CannotStart, OSError) as error:
            _log.warning("refused a command beside %s: %s", order.run, error)

    def _send(self, client: socket.socket, message: Message) -> None:
        try:
            client.sendall(encode(message))
        except OSError as error:
            _log.warning("closing the connection to an agent: %s", error)
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        if (inbox := self._clients.pop(client, None)) is not None:
            inbox.close()
            self._selector.unregister(client)
            client.close()
            self._keeper.end_commands(client)

    def _changed(self, run: str) -> None:
        for client in list(self._clients):
            self._send(client, Changed(run))

    def _release(self) -> None:
        """Close, in a child process, what must end with the launcher, above all the lock."""
        os.close(self._lock)
        self._selector.close()
        for end in (self._listener, self._woken, self._waker, *self._clients):
            end.close()


def _peer(client: socket.socket) -> int:
    """Return the id of the process at the other end of the connection."""
    pid: int = _CREDENTIALS.unpack(
        client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )[0]
    return pid


def _acquire_lock(path: Path) -> int:
    """Acquire the lock of the launcher, and wait a few seconds for an earlier launcher to exit."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                _log.warning("another launcher uses this folder")
                sys.exit(1)
            time.sleep(0.05)
        else:
            return lock


def _listen(state: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    with socket_address(state) as address:
        Path(address).unlink(missing_ok=True)
        listener.bind(address)
    listener.listen()
    return listener


def _log_to_stderr() -> None:
    """Log to standard error through a logger of the package: a forked script must find the root logger unchanged."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("worker_agent")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def main() -> None:
    """Serve until no run and no agent is left."""
    _log_to_stderr()
    state = StateFolder(Path(sys.argv[1]).resolve())
    lock = _acquire_lock(state.launcher_lock)
    adopt_orphans()
    set_dumpable(yes=False)
    server = Server(state, _listen(state.path), lock)
    os.chdir("/")
    server.serve()
    flush_and_exit(0)


if __name__ == "__main__":
    main()
