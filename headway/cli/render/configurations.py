"""The table of a job's configurations, with fewer columns where the screen is narrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headway.cli.render.jobs import columns, ranges, rate, usd
from headway.contract.values.quantities import duration
from headway.contract.views.forecasts import ConfigurationForecast
from headway.contract.views.jobs import SizeOption

_SHORT_NOTE = 10  # "until then"
"""Largest number of characters of a note within a table."""
_NOTE = "NOTE"
_UNBOUNDED = 10_000
"""Width in characters at which no table is squeezed."""


@dataclass(frozen=True, slots=True)
class Configurations:
    """The configurations that a job could have, as a table in which no column is cut.

    Where the screen has no room for all columns, notes stand below the table, and then the columns of
    `_LEFT_OUT` are left out, the first of them first. A line names them.
    """

    rows: Sequence[ConfigurationForecast]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left_out: tuple[str, ...] = ()
        for left_out in _narrower():
            table = _table(self.rows, without=left_out)
            if _whole_width(console, options, table) <= options.max_width:
                break
        yield table
        if _NOTE in left_out:
            yield from note_lines(((one.slots, one.device_kind, _note(one)) for one in self.rows), short=True)
        gone = [name for name in left_out if name in _CELLS and (self._priced or name not in _MONEY)]
        if gone:
            yield Text(f"no room for {', '.join(gone)}: see -o json", style="dim")

    @property
    def _priced(self) -> bool:
        return _priced(self.rows)


def configuration_lines(configurations: Sequence[ConfigurationForecast]) -> Iterator[RenderableType]:
    """Yield the table of configurations, and the lines below it."""
    yield Configurations(configurations)
    yield from speedup_lines(configurations)
    yield from note_lines((one.slots, one.device_kind, one.why_not_now) for one in configurations)


def _batch(one: ConfigurationForecast) -> str:
    return f"{one.global_batch:,}" if one.goodput is not None and one.global_batch else "-"


def _interval(one: ConfigurationForecast) -> str:
    return "-" if one.goodput is None else f"{rate(one.goodput_low)}-{rate(one.goodput_high)}"


def _note(one: ConfigurationForecast) -> str:
    return "; ".join(
        [*map(str, one.marks), *filter(None, [short_note(one.why_not_now), depth_text(one.depth)])]
    )


_CELLS: Mapping[str, Callable[[ConfigurationForecast], str]] = {
    "SIZE": lambda one: str(one.slots),
    "KIND": lambda one: one.device_kind,
    "NODES": lambda one: str(one.nodes),
    "BATCH": _batch,
    "GOODPUT/S": lambda one: rate(one.goodput),
    "80 % IN": _interval,
    "SPEEDUP": lambda one: speedup(one),  # noqa: PLW0108 - it is defined below
    "TIME": lambda one: _duration(one.time_s),
    "TIME P90": lambda one: _duration(one.time_p90_s),
    "COST": lambda one: usd(one.cost_usd),
    "COST P90": lambda one: usd(one.cost_p90_usd),
    "SURE": lambda one: str(one.confidence),
}
"""Cells of a row by the names of their columns."""
_TEXTS = frozenset({"KIND", "SURE"})
_MONEY = frozenset({"COST", "COST P90"})
_LEFT_OUT = ("80 % IN", "NODES", "BATCH", "SPEEDUP", "COST P90", "SURE")
"""Columns in the order in which a narrow screen loses them."""


def _narrower() -> Iterator[tuple[str, ...]]:
    """Yield what the table leaves out, from nothing to all that it can do without."""
    yield ()
    for count in range(len(_LEFT_OUT) + 1):
        yield (_NOTE, *_LEFT_OUT[:count])


def _whole_width(console: Console, options: ConsoleOptions, table: Table) -> int:
    """Return the width at which no cell of the table is cut or wrapped."""
    return Measurement.get(console, options.update(max_width=_UNBOUNDED), table).maximum


def _priced(rows: Sequence[ConfigurationForecast]) -> bool:
    return any(one.usd_per_h for one in rows)


def _table(rows: Sequence[ConfigurationForecast], *, without: Sequence[str]) -> Table:
    """Return a table with a row for each configuration, and cost columns if any of them has a price."""
    hidden = {*without, *(() if _priced(rows) else _MONEY)}
    names = [name for name in _CELLS if name not in hidden]
    fold = [] if _NOTE in without else [_NOTE]
    table = columns(*(name if name in _TEXTS else f">{name}" for name in names), fold=fold)
    kind = table.columns[names.index("KIND")]
    kind.no_wrap, kind.overflow, kind.min_width = False, "fold", 6
    for one in rows:
        table.add_row(*(_CELLS[name](one) for name in names), *([_note(one)] if fold else []))
    return table


def short_note(note: str) -> str:
    """Return a note that fits into a table; "" for a sentence, which stands below the table."""
    return note if len(note) <= _SHORT_NOTE else ""


def note_lines(notes: Iterable[tuple[int, str, str]], *, short: bool = False) -> Iterator[Text]:
    """Yield the notes of sizes, given as slots, pool and note, that would squeeze the columns of a table.

    These are the long ones, or with `short` all of them.
    """
    sizes: dict[str, dict[str, list[int]]] = {}
    for slots, pool, note in notes:
        if note and (short or len(note) > _SHORT_NOTE):
            sizes.setdefault(note, {}).setdefault(pool, []).append(slots)
    for note, pools in sizes.items():
        yield Text(f"{', '.join(f'{ranges(slots)} {pool}' for pool, slots in pools.items())}: {note}")


def speedup(one: SizeOption | ConfigurationForecast) -> str:
    """Return the speedup over one slot, or a dash if it is not known."""
    return f"{one.speedup:.2f}" if one.one_slot_measured else "-"


def speedup_lines(sizes: Sequence[SizeOption | ConfigurationForecast]) -> Iterator[Text]:
    """Yield what is missing where speedups are unknown."""
    if any(not one.one_slot_measured for one in sizes):
        yield Text("speedup: not known, because nothing was measured on one slot yet", style="dim")


def depth_text(depth: float | None) -> str:
    """Return the mean depth of the ranks' back-propagation as text; "" where all gradients are whole."""
    return "" if depth is None else f"mean depth {depth:.0%}"


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
