"""Checks of a job at its submit that are not part of the spec, so that jobs that were stored before stay readable."""

from __future__ import annotations

from collections.abc import Iterator

from headway.contract.spec import JobSpec
from headway.contract.values.targets import target_problem
from headway.layout import MAX_NAME_BYTES, MAX_PATH_BYTES

MOST_SIZE_BYTES = 2**60
"""Bound of a size: 1 EiB. A larger one is a mistake of its unit."""


def submit_problem(spec: JobSpec) -> tuple[str, str] | None:
    """Return the field and the problem for which a job is refused at its submit; None if there is none."""
    return next(_problems(spec), None)


def _problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    paths = {
        "workdir": spec.workdir,
        "output.dir": spec.output.dir,
        "python.requirements": spec.python.requirements,
        "python.lock": spec.python.lock,
    }
    for field, path in paths.items():
        if path is not None and (problem := _path_problem(path, of_user=field == "workdir")):
            yield field, problem
    sizes = {
        "resources.memory_per_slot": spec.resources.memory_per_slot,
        "output.max_size": spec.output.max_size,
    }
    for field, size in sizes.items():
        if size is not None and size > MOST_SIZE_BYTES:
            yield (
                field,
                f"{float(size):.3g} bytes are more than any machine has; write a size such as 16GiB",
            )
    if spec.goal.target is not None and (problem := target_problem(spec.goal.target)):
        yield "goal.target", problem


def _path_problem(path: str, *, of_user: bool) -> str:
    """Return why no file system or no other program could take the path; empty if they can.

    A folder `of_user` is there already, under a name that only its own machine has to take.
    """
    odd = next((one for one in path if ord(one) < 32 or 127 <= ord(one) < 160), None)
    if odd is not None and not of_user:
        return f"holds the control character U+{ord(odd):04X}; give a path without it"
    longest = max(path.split("/"), key=lambda name: len(name.encode()))
    if (size := len(longest.encode())) > MAX_NAME_BYTES:
        return f"has a name of {size:,} bytes, and Linux takes {MAX_NAME_BYTES}; give a shorter one"
    if (size := len(path.encode())) > MAX_PATH_BYTES and not of_user:
        return f"has {size:,} bytes, and a path here may have {MAX_PATH_BYTES:,}; give a shorter one"
    return ""
