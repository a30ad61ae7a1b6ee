"""A schedule file as it was when it was read, and a way to see that it has changed since."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..data import schedule as schedule_file
from ..data.errors import InputError, MismatchError
from ..data.schedule import Schedule

__all__ = ["WatchedSchedule", "read_watched"]


@dataclass(frozen=True)
class WatchedSchedule:
    """A schedule and the file it came from.

    Attributes:
        schedule: what is played; a later change of the file does not reach it.
        path: the file.
        sha256: digest of its bytes when read, hexadecimal.
    """

    schedule: Schedule
    path: Path
    sha256: str

    def check(self) -> None:
        """Refuse to go on under a file that is no longer what is being played.

        Raises:
            MismatchError: the file has changed or is gone.
        """
        try:
            same = _digest(self.path) == self.sha256
        except InputError:
            raise MismatchError(
                f"{self.path} is gone since the replay began, so its result would belong to no "
                "file; the clocks are back at the baseline: start again"
            ) from None
        if not same:
            raise MismatchError(
                f"{self.path} has changed since the replay began, so its result would belong to "
                "neither version; the clocks are back at the baseline: start again"
            )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def read_watched(path: Path) -> WatchedSchedule:
    """Read a schedule and remember its digest.

    Raises:
        InputError, FormatError, VersionError: as `clockwright.data.schedule.read`.
        MismatchError: the file changed while it was read.
    """
    path = Path(path)
    schedule = schedule_file.read(path)
    watched = WatchedSchedule(schedule, path, _digest(path))
    if schedule_file.read(path).to_json() != schedule.to_json():
        raise MismatchError(f"{path} changed while it was read; start again")
    return watched
