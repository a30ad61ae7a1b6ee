"""Every error clockwright raises, in one tree.

::

    ClockwrightError
    ├── InputError (ValueError)              exit 2: something the user gave is wrong
    │   ├── FormatError                      a file is not what its format says
    │   │   └── VersionError                 written by a version we do not read
    │   ├── MismatchError                    two inputs do not belong together
    │   └── InfeasibleError                  no schedule meets the budget
    ├── DeviceError (RuntimeError)           exit 4: the GPU or its driver refused
    │   ├── NoDeviceError (LookupError)      no such GPU here
    │   ├── NotSupportedError (NotImplementedError)  this GPU cannot do it
    │   ├── RightsError (PermissionError)    it can, but this user may not
    │   ├── ReadOnlyError (PermissionError)  clockwright was told not to set anything
    │   ├── LockNotHeldError                 a lock returned success and does not hold
    │   └── DeviceBusyError                  another process or owner uses the GPU
    ├── KeeperError (RuntimeError)           exit 4: the clock keeper refused or is gone
    └── WorkloadError (RuntimeError)         exit 5: the user's own step failed

A message says what was expected, what came, where, and how to mend it, in one line.
"""

from __future__ import annotations

__all__ = [
    "ClockwrightError",
    "DeviceBusyError",
    "DeviceError",
    "FormatError",
    "InfeasibleError",
    "InputError",
    "KeeperError",
    "LockNotHeldError",
    "MismatchError",
    "NoDeviceError",
    "NotSupportedError",
    "ReadOnlyError",
    "RightsError",
    "VersionError",
    "WorkloadError",
]


class ClockwrightError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is the command's status."""

    exit_code: int = 1


class InputError(ClockwrightError, ValueError):
    """Something the user gave is wrong: an option, a file, a table, a budget."""

    exit_code = 2


class FormatError(InputError):
    """A file does not hold what its format promises."""


class VersionError(FormatError):
    """A file was written in a format version this release does not read."""


class MismatchError(InputError):
    """Two inputs do not belong together, such as a schedule and another model's trace."""


class InfeasibleError(InputError):
    """No schedule meets the budget.

    Attributes:
        least_slowdown: the smallest slowdown that would be feasible, as a fraction, if known.
    """

    def __init__(self, message: str, least_slowdown: float | None = None) -> None:
        super().__init__(message)
        self.least_slowdown = least_slowdown


class DeviceError(ClockwrightError, RuntimeError):
    """The GPU, or its driver, refused or failed."""

    exit_code = 4


class NoDeviceError(DeviceError, LookupError):
    """There is no such GPU on this machine."""


class NotSupportedError(DeviceError, NotImplementedError):
    """This GPU or driver cannot do what was asked."""


class RightsError(DeviceError, PermissionError):
    """The GPU can do it, but this user may not; the message names the missing right."""


class ReadOnlyError(DeviceError, PermissionError):
    """A setter was called where clockwright was told to set nothing."""


class LockNotHeldError(DeviceError):
    """A clock lock returned success, yet the clock read back or sensed is another."""


class DeviceBusyError(DeviceError):
    """Another process or another owner uses the GPU."""


class KeeperError(ClockwrightError, RuntimeError):
    """The clock keeper refused a request, or cannot be reached."""

    exit_code = 4


class WorkloadError(ClockwrightError, RuntimeError):
    """The user's own model or script failed while it was being measured."""

    exit_code = 5
