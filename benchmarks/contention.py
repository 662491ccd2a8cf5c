"""Measure whether competing jobs starve, are stopped too early, are changed too often, or take too long.

    python -m benchmarks.contention --json
    python -m benchmarks.contention --streams four,pinned
    python -m benchmarks.contention --quick

Streams of jobs are played on a local cluster (PostgreSQL, Redis, service and an agent of four slots, as `headway up` starts them)
with all settings at their defaults. The jobs train with the library, from one slot to four; a step takes as long as a known law of
the number of slots says, times a random factor of mean 1, by a timer: two processor cores are enough. Every measure is computed
from what the service recorded: the events of the jobs.

`starved_s`: the longest continuous time for which a job waited although the minimums of all admitted jobs fitted into the slots.
A job is admitted from its submit to its end, unless it is paused. It waits until a round grants it slots: from its submit, or
from the order to stop if it is to wait again afterwards. The time that ranks take to start is not part of it (`start_s`). The
minimum of a job whose user has fixed its size is that size.

`early_vacates`: how often ranks were stopped for the gain of another job within `min_run_s` of the grant of their slots.
`min_run_s` is the larger of 60 s and twenty times the cost of a stop and a start (`start_s` + `stop_s`, medians of the stream).
Commands of users, drains, failures, budgets, quotas and deadlines do not count; all jobs have the same priority. A stop is for
the gain of others unless the job gets more slots by it.

`pinned_vacates`: how often slots or ranks of a job were taken for the gain of another one while its size was fixed by its user.

`changes_per_job_hour`: changes that nobody asked for (growth, shrinking and moves in place, and stops), for each hour for which a
job held slots. First starts, starts after a wait, and changes that were given up while training went on are not counted.

`time_ratio`: the mean time from submit to end over that of the ideal, in which all jobs that are there always have equal shares
of the slots, in fractions, within their minimums and maximums, and changes and starts cost nothing. Between two sizes the speed is
interpolated; where the minimums do not fit, jobs take turns without a cost. The submits are those that really took place.

`unfinished`: jobs that were cancelled because they took too long. Their times up to then are in the other measures.

Keys at the top are the worst of all streams, for counts the sum; `streams` has those of each, and what explains them:
`surplus_wait_s`: the longest wait of a job whose minimum fitted beside the minimums of the jobs that held slots.
`longest_wait_s`: the longest wait of all. `shortest_run_s`: the shortest run that was stopped for others. `changes_cost`: the share
of the time on slots that changes took from the job that lost most by them: pauses, stops and starts. `wall_s`: of the stream.
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
from benchmarks.contending.streams import QUICK, STREAMS, Stream

AT_ONCE = 3
"""Streams that are played at the same time, each on a cluster of its own: their jobs wait for timers most of the time."""


def measure(streams: Sequence[Stream]) -> dict[str, dict[str, float]]:
    """All measures by stream, with what happened for whoever waits."""
    halt = threading.Event()

    def one(stream: Stream) -> dict[str, float]:
        began_s = time.monotonic()
        print(
            f"{stream.name}: {len(stream.jobs)} jobs on {stream.slots} slots …", file=sys.stderr, flush=True
        )
        with temporary_folder() as folder:
            played = play(stream, folder, halt)
            _tell(played)  # removing the folder can take long on a busy disk
        found = measures(played.pasts, stream.slots, played.ideal_s)
        found["wall_s"] = time.monotonic() - began_s
        return {name: round(value, 4) for name, value in found.items()}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {stream.name: pool.submit(one, stream) for stream in streams}
        try:
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            halt.set()  # else the clusters of the others would go on to their ends
            pool.shutdown(cancel_futures=True)
            raise


def _tell(played: PlayedStream) -> None:
    """Print the course of a stream while the benchmark runs."""
    text = "\n".join([picture(played), job_table(played), story(played)])
    print(text, file=sys.stderr, flush=True)


def chosen(names: str) -> list[Stream]:
    """The streams of a list of names, separated by commas.

    Raises:
        argparse.ArgumentTypeError: there is no stream of such a name.
    """
    listed = [name.strip() for name in names.split(",")]
    unknown = [name for name in listed if name not in STREAMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no stream is named {unknown[0]!r}; there is: {', '.join(STREAMS)}")
    return [STREAMS[name] for name in listed]


def main() -> None:
    parser = benchmark_parser(__doc__, quick="three jobs of seconds")
    parser.add_argument(
        "--streams",
        type=chosen,
        default=list(STREAMS.values()),
        metavar="NAME,...",
        help=f"some of: {', '.join(STREAMS)}; default: all",
    )
    arguments = parser.parse_args()
    streams = measure([QUICK] if arguments.quick else arguments.streams)
    worst = worst_of(streams)
    print(json.dumps({**worst, "streams": streams}) if arguments.json else summary(streams, worst))


if __name__ == "__main__":
    run_benchmark(main)
