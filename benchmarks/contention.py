"""Measure whether competing jobs starve, are stopped too early, are changed too often, or take too long.

    python -m benchmarks.contention --json
    python -m benchmarks.contention --streams four,pinned
    python -m benchmarks.contention --quick
    python -m benchmarks.contention --seeds 1-30

With `--seeds`, random small clusters are played in virtual time instead, by the rounds of the service: jobs with priorities,
minimums of several slots, and starts of 5 to 300 s. The same seed is always the same cluster, and a busy machine changes
nothing. Counts are sums of all seeds; `completion_s` is the mean. `broken_promises` counts slots that were promised to a
waiting job and taken back, although no higher priority came.

Streams of jobs run on a local cluster (PostgreSQL, Redis, service and an agent of four slots, as `headway up` starts them) with
default settings. The jobs train with the library on one to four slots. The duration of a step is a known function of the number
of slots times a random factor of mean 1, by a timer, so two processor cores are enough. All measures are computed from the job
events that the service recorded.

`starved_s`: longest continuous time for which a job waited although the minimums of all admitted jobs fitted into the slots. A
job is admitted from its submit to its end, unless it is paused. It waits until a round grants it slots: from its submit, or from
the order to stop if it has to wait again afterwards. The start time of ranks is not included (`start_s`). The minimum of a job
with a pinned size is that size.

`early_vacates`: number of times that ranks were stopped for the gain of another job within `min_run_s` of the grant of their
slots. `min_run_s` is the larger of 60 s and twenty times the cost of a stop and a start (`start_s` + `stop_s`, medians of the
stream). Stops for users' commands, drains, failures, budgets, quotas and deadlines do not count, nor do stops for a higher
priority that was submitted since the grant. A stop is for the gain of others unless it gives the job more slots.

`self_evictions`: number of times that a job was stopped for others and got back a slot within a minute, before another job had
any of its slots. A job whose successor has ended is right to start again: its slots are free.

`order_violations`: number of pairs of jobs in which the one of higher priority ran less than the other one ran in its place. A
job runs in the place of a job that waits if its slots, those of other lower priorities, and the free ones suffice for the minimum
of the waiting job. Not counted: a turn within the minimum run time of its own job that began after the waiting job's submit, and what a change costs.

`pinned_vacates`: number of times that slots or ranks of a job with a pinned size were taken for the gain of another job.

`changes_per_job_hour`: changes that no user requested (live growth, shrinking and moves, and stops) per hour for which a job held
slots. First starts, starts after a wait, and abandoned changes are not counted.

`forced_per_job_hour`: those of them that stop a job for a higher priority which was submitted after the job's turn had begun.
A stream that demands more of these than the goal of all changes is not judged by that goal.

`time_ratio`: mean time from submit to end over that of the ideal. In the ideal, all present jobs always have equal fractional
shares of the slots within their minimums and maximums, and changes and starts cost nothing. Between two sizes the speed is
interpolated. Where the minimums do not fit, jobs take turns at no cost. The submit times are the real ones. The ideal knows no
priorities, so streams with several of them have no ratio.

`unfinished`: jobs that were cancelled because they took too long. Their times until then are part of the other measures.

The keys at the top are the worst values of all streams, or the sums for counts. `streams` has the values of each stream, and:

`surplus_wait_s`: longest wait of a job whose minimum fitted beside the minimums of the jobs that held slots.
`longest_wait_s`: longest wait of all jobs. `shortest_run_s`: shortest run that was stopped for others.
`changes_cost`: share of its time on slots that a job lost by changes (pauses, stops and starts); that of the job that lost most.
`wall_s`: duration of the stream.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.arguments import benchmark_parser, run_benchmark, temporary_folder
from benchmarks.contending.live import PlayedStream, play
from benchmarks.contending.measures import measures, worst_of
from benchmarks.contending.picture import job_table, picture, story, summary
from benchmarks.contending.seeds import measure_seeds, seeds_table, totals_of
from benchmarks.contending.streams import QUICK, STREAMS, Stream

AT_ONCE = 3
"""Streams that run at the same time, each on its own cluster; their jobs wait for timers most of the time."""


def measure(streams: Sequence[Stream]) -> dict[str, dict[str, float]]:
    """Run the streams, print their course to standard error, and return all measures by stream."""
    halt = threading.Event()

    def one(stream: Stream) -> dict[str, float]:
        began_s = time.monotonic()
        print(
            f"{stream.name}: {len(stream.jobs)} jobs on {stream.slots} slots …", file=sys.stderr, flush=True
        )
        with temporary_folder() as folder:
            played = play(stream, folder, halt)
            _print_course(played)  # before the folder is removed, which can take long on a busy disk
        found = measures(played.pasts, stream.slots, played.ideal_s, played.held)
        found["wall_s"] = time.monotonic() - began_s
        return {name: round(value, 4) for name, value in found.items()}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {stream.name: pool.submit(one, stream) for stream in streams}
        try:
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            halt.set()  # otherwise the other clusters would continue to the ends of their streams
            pool.shutdown(cancel_futures=True)
            raise


def _print_course(played: PlayedStream) -> None:
    """Print the course of a stream while the benchmark runs."""
    text = "\n".join([picture(played), job_table(played), story(played)])
    print(text, file=sys.stderr, flush=True)


def chosen(names: str) -> list[Stream]:
    """Return the streams of a list of names, separated by commas.

    Raises:
        argparse.ArgumentTypeError: a stream does not exist.
    """
    listed = [name.strip() for name in names.split(",")]
    unknown = [name for name in listed if name not in STREAMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no stream is named {unknown[0]!r}; there is: {', '.join(STREAMS)}")
    return [STREAMS[name] for name in listed]


def seed_range(text: str) -> range:
    """Return the seeds of `A-B`, both included, or of one number.

    Raises:
        argparse.ArgumentTypeError: the text is no such range.
    """
    first, dash, last = text.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of seeds; write for example 1-30")
    return range(int(first), int(last) + 1)


def main() -> None:
    parser = benchmark_parser(__doc__, quick="three jobs of seconds")
    parser.add_argument(
        "--streams",
        type=chosen,
        default=list(STREAMS.values()),
        metavar="NAME,...",
        help=f"some of: {', '.join(STREAMS)}; default: all",
    )
    parser.add_argument(
        "--seeds", type=seed_range, metavar="A-B", help="play random clusters in virtual time instead"
    )
    arguments = parser.parse_args()
    if arguments.seeds is not None:
        seeds = measure_seeds(arguments.seeds)
        totals = totals_of(seeds)
        print(json.dumps({**totals, "seeds": seeds}) if arguments.json else seeds_table(seeds, totals))
        return
    streams = measure([QUICK] if arguments.quick else arguments.streams)
    worst = worst_of(streams)
    print(json.dumps({**worst, "streams": streams}) if arguments.json else summary(streams, worst))


if __name__ == "__main__":
    run_benchmark(main)
