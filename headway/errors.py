"""Base class of all errors that Headway raises for people to read, and errors of the public API."""

from __future__ import annotations


class HeadwayError(Exception):
    """An error that the user can act on.

    Args:
        what: what went wrong, as a sentence.
        hint: what to do next, as a sentence; empty if `what` says it already.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        self.what = what
        self.hint = hint
        super().__init__(f"{what} {hint}".strip())


class WaitTimeoutError(HeadwayError):
    """Error: a job had not ended when the time limit of a wait expired. The job continues."""


class JobFailedError(HeadwayError):
    """Error: a job that had to succeed has failed, or was cancelled."""


class BundleError(HeadwayError):
    """Error: the working folder cannot be uploaded."""


class LeftOutWarning(UserWarning):
    """Warning: `.gitignore` keeps files from the upload that the script probably reads."""
