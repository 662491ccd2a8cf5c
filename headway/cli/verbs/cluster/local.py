"""The verbs `headway up` and `headway down`, which run all of Headway on this machine."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from headway.cli.context import Cli, of
from headway.client.target import home, save_target
from headway.contract.values.devices import parse_prices
from headway.errors import HeadwayError
from headway.local.guard import Guard
from headway.local.processes import end, last_lines, open_log, spawn
from headway.local.slurm import address_for_nodes
from headway.local.stack import (
    LocalStack,
    Reach,
    Rental,
    Stores,
    rental_of,
    running_url,
    stop_running,
    url_of,
)

_DETACH_TIMEOUT_S = 300.0
_UP = "Headway is up."

_Data = Annotated[Path | None, typer.Option(help="data folder; default: $HEADWAY_HOME or ~/.headway")]


def up(
    context: typer.Context,
    agents: Annotated[
        int | None, typer.Option(min=0, help="number of agents; default: 1, and 0 with --provider")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="slots of each agent; default: its share of this machine")
    ] = None,
    device_kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="kind of the slots: cpu, or a kind of GPU; default: GPUs if there are enough"
        ),
    ] = None,
    data: _Data = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port of the API")] = 8123,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=USD", help="price of a slot for an hour, e.g. a100=2.2; repeatable"),
    ] = None,
    rent: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="offers of machines to rent, played by this machine; see docs/renting.md"
        ),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="rent nodes of this machine's Slurm cluster: slurm; see docs/guides/slurm.md"
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="IP",
            help="address of this machine that rented nodes reach; default: the one on its route to them",
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="run in the background")] = False,
) -> None:
    """Run all of Headway on this machine: stores, API, scheduler and agents, until Ctrl-C.

    HEADWAY_DATABASE_URL, HEADWAY_REDIS_URL and HEADWAY_STORAGE_URL replace the embedded stores.
    """
    cli = of(context)
    reach = _reach(provider, address, rent)
    stack = LocalStack(
        data or home(os.environ),
        agents=(1 if reach is None else 0) if agents is None else agents,
        slots=slots,
        device_kind=device_kind,
        port=port,
        stores=Stores.configured(os.environ),
        prices=_parse_price_options(price),
        rent=rent,
        reach=reach,
    )
    if stack.share.note:
        cli.err.print(Text(stack.share.note, style="yellow"), soft_wrap=True)
    if detach:
        stop = "headway down" if data is None else f"headway down --data {quote(str(data))}"
        _detach(cli, stack, url_of(reach, port), stop)
        return
    _log_to(cli.err)
    _stop_on_signals()
    try:
        # The guard spares launchers of ranks, which lack its mark: the next `headway up` takes them over.
        with Guard() as guard, stack:
            guard.watch(stack.data / "redis")  # its environment cannot be read: it sets its title
            save_target(home(os.environ), stack.url, stack.token, stack.ca_file)
            _print_summary(cli, stack, stack.url, "Ctrl-C")
            if stack.token_is_new:
                _print_token(cli, stack)
            threading.Event().wait()
    except KeyboardInterrupt:
        cli.err.print(stopped_text(data), soft_wrap=True)


def _detach(cli: Cli, stack: LocalStack, url: str, stop: str) -> None:
    """Run the stack in the background, and print what to do next."""
    known = stack.token_file.exists()
    _run_in_background(cli, stack)
    _print_summary(cli, stack, url, stop)
    if not known:
        _print_token(cli, stack)


def _reach(provider: str | None, address: str | None, rent: Path | None) -> Reach | None:
    """Return how nodes are rented and reach this machine, or None without `--provider`."""
    if provider is None:
        if address is not None:
            raise typer.BadParameter("is for rented nodes: add --provider", param_hint="--address")
        return None
    if provider != "slurm":
        raise typer.BadParameter(f"{provider} cannot be used here; there is slurm", param_hint="--provider")
    if rent is not None:
        raise typer.BadParameter("goes without --provider", param_hint="--rent")
    try:
        return Reach(provider, str(ip_address(address)) if address else address_for_nodes())
    except ValueError as error:
        raise typer.BadParameter(f"{error}", param_hint="--address") from None


def _parse_price_options(prices: list[str] | None) -> str | None:
    try:
        parse_prices(",".join(prices or ()))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--price") from None
    return ",".join(prices) if prices else None


def down(context: typer.Context, data: _Data = None) -> None:
    """Stop the programs of `headway up`, and give rented nodes back; unfinished jobs continue at the next `headway up`."""
    cli = of(context)
    folder = data or home(os.environ)
    with cli.err.status(Text("stopping agents, service and stores")):
        stopped = stop_running(folder)
    rental = rental_of(folder)
    if rental is not None:
        _return_machines(cli, folder, rental)
        cli.out.print(Text(f"All nodes of {rental.reach.provider} were given back."), soft_wrap=True)
        stopped = True
    other = (
        "" if data else " If it was started with --data, give the same folder: headway down --data FOLDER."
    )
    message = stopped_text(data) if stopped else f"Headway is not running on {folder}.{other}"
    cli.out.print(Text(message), soft_wrap=True)


def _return_machines(cli: Cli, folder: Path, rental: Rental) -> None:
    """Return the machines that a killed `headway up` left running. Raises: HeadwayError: some may run on."""
    _log_to(cli.err)
    os.environ.update(rental.env)  # as `headway up` had it; this shell may know other settings
    stores = Stores.configured(os.environ)
    left = LocalStack(folder, agents=0, port=rental.port, stores=stores, reach=rental.reach)
    remedy = (
        "Run `headway down` again, or end them yourself: `squeue --me --format='%i %j'` lists them, with names that "
        "begin with `headway:`, and `scancel NUMBER` ends one."
    )
    try:
        with Guard() as guard:
            guard.watch(left.data / "redis")
            left.return_machines()
    except HeadwayError as error:
        raise HeadwayError(
            f"Rented nodes may still run, and cost money: {error.what}", f"{error.hint} {remedy}"
        ) from error
    if rental_of(folder) is not None:
        raise HeadwayError("Rented nodes may still run, and cost money: not all ends are known.", remedy)


def stopped_text(data: Path | None) -> str:
    """Return what became of the jobs, and the command that continues them. `data` is the folder that the user gave."""
    command = "headway up" if data is None else f"headway up --data {quote(str(data))}"
    return f"Stopped. Unfinished jobs continue at the next `{command}`, with the same options."


def _stop_on_signals() -> None:
    """Make the first Ctrl-C, SIGTERM or SIGHUP end the wait, and ignore later ones while everything stops."""
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def _run_in_background(cli: Cli, stack: LocalStack) -> None:
    """Run the same command without `--detach` in a session of its own, and return when everything is up.

    Raises:
        HeadwayError: the command ended, or took longer than `_DETACH_TIMEOUT_S`.
    """
    stack.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = stack.logs / "up.log"
    argv = [each for each in sys.argv[1:] if each not in {"--detach", "-d"}]
    os.close(open_log(path))  # a large log is renamed now
    start = path.stat().st_size
    process = spawn([sys.executable, "-m", "headway.cli", *argv], path, start_new_session=True)
    deadline = time.monotonic() + _DETACH_TIMEOUT_S
    said = _Progress(path, start)
    with cli.err.status(Text("starting")) as status:
        while running_url(stack.data, process.pid) is None:
            ended = process.poll() is not None
            for line in said.new_lines():
                status.update(Text(line))
                if not cli.err.is_terminal:
                    cli.err.print(Text(line), soft_wrap=True)
            if ended:
                what = "Headway did not start: see the lines above."
                if cli.err.is_terminal:  # the status line has overwritten them
                    what = last_lines(path, start=start)
                raise HeadwayError(what, f"The log is {path}.")
            if time.monotonic() > deadline:
                end(process.pid, (signal.SIGTERM, signal.SIGKILL), 60.0)
                raise HeadwayError(
                    f"Not up within {_DETACH_TIMEOUT_S:.0f} s; the last step was: {said.last or 'none'}.",
                    f"See the logs in {stack.logs}.",
                )
            time.sleep(0.1)


class _Progress:
    """Steps of a start in the background, as its log names them."""

    def __init__(self, log: Path, start: int) -> None:
        self.last = ""
        self._log = log
        self._at = start

    def new_lines(self) -> Iterator[str]:
        """Yield the whole lines since the last call. What follows the start is no step of it."""
        with self._log.open("rb") as log:
            log.seek(self._at)
            written = log.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            if line == _UP:
                return
            self.last = line
            yield line


def _print_summary(cli: Cli, stack: LocalStack, url: str, stop: str) -> None:
    trust = f"HEADWAY_CA_FILE={stack.data / 'tls' / 'trusted.pem'} " if url.startswith("https:") else ""
    rows = {
        "service": f"{url}  (its API: {url}/docs)",
        "data": str(stack.data),
        "logs": str(stack.logs),
        "submit": "headway submit JOB.yaml --wait",
        "watch": "headway ps --watch",
        "join": f'{trust}HEADWAY_JOIN_TOKEN="$(cat {stack.join_token_file})" headway agent --name NAME --url {url}',
        "stop": stop,
    }
    cli.out.print(Text(_UP, style="bold green"))
    _print_rows(cli, rows.items())


def _print_token(cli: Cli, stack: LocalStack) -> None:
    """Print the first admin's token once, and only to a terminal: piped output may end in a file or a log."""
    kept = f"kept in {stack.token_file} for this command line"
    rows = [("admin", f"owner, whose token is {kept}")]
    if cli.out.is_terminal:
        token = stack.token_file.read_text(encoding="utf-8").strip()
        rows = [("admin", f"owner, with the token {token}"), ("", f"It is shown this once, and {kept}.")]
    _print_rows(cli, rows)


def _print_rows(cli: Cli, rows: Iterable[tuple[str, str]]) -> None:
    for label, value in rows:
        cli.out.print(Text.assemble((f"  {label:<8} ", "dim"), value), soft_wrap=True)


def _log_to(console: Console) -> None:
    """Print the log records of the stack as they arrive."""

    class Printer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            style = "yellow" if record.levelno >= logging.WARNING else "dim"
            console.print(Text(record.getMessage(), style=style), soft_wrap=True)

    logger = logging.getLogger("headway.local")
    logger.setLevel(logging.INFO)
    logger.addHandler(Printer())
