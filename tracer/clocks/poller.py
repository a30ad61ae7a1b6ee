"""Looks at a shared page and issues what the training stream asks for.

One thread a page, in the keeper's process, so nothing here holds the trainer's interpreter. Only
the newest number is seen: while a driver call blocks (3 to 6 ms on a V100), numbers written
meanwhile are overtaken. Between looks the thread sleeps, or only yields where the operator chose to
spin: spinning sees a write some tens of microseconds sooner and costs one CPU core.

Source of the timer slack, which otherwise adds 50 us to each sleep: prctl(2), PR_SET_TIMERSLACK.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time

from ...data.errors import ClockwrightError, KeeperError
from .lease import Lease
from .page import TriggerPage

__all__ = ["PageFollower", "Poller"]

_log = logging.getLogger("clockwright.clocks")
_PR_SET_TIMERSLACK = 29
_LOOKS_STEP = 1024
_STOPPED_SLEEP_S = 0.001


class PageFollower:
    """What one look at a page leads to; `Poller` looks again and again.

    Args:
        lease: where requests go.
        page: the page.
    """

    def __init__(self, lease: Lease, page: TriggerPage) -> None:
        self._lease, self._page = lease, page
        self._last = self._events = 0
        self._stopped = False

    def look(self) -> bool:
        """Look once, and set what is asked for; True if the page asks for the baseline.

        Raises:
            ClockwrightError: the request cannot be met, or the lease has a fault.
        """
        page, lease = self._page, self._lease
        if lease.fault is not None:
            raise lease.fault
        if page.stopped:
            if not self._stopped:
                self._stopped = True
                lease.release()
            return True
        if self._stopped:
            self._stopped, self._last = False, 0  # `resume` cleared what was written before
        sequence = page.sequence
        if sequence != self._last:
            self._last = sequence
            if sequence:
                event = lease.follow(sequence, page.step, lease.gpu.now_ns())
                page.write_event(event, self._events)
                self._events += 1
        return False


class Poller:
    """Follows one page for one lease until `close`, a fault, or the lease's end.

    Args:
        lease: where requests go.
        page: the page; the poller closes it.
        sleep_s: time between looks; 0 spins.
    """

    def __init__(self, lease: Lease, page: TriggerPage, sleep_s: float) -> None:
        self._lease, self._page, self._sleep_s = lease, page, sleep_s
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="clockwright-poller", daemon=True)

    def start(self) -> None:
        """Begin to look. The page says `armed` once it returns."""
        self._page.fault = False
        self._page.armed = True
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop looking.

        A thread that is stuck in the driver is left behind: its lease, once ended, lets it set
        nothing.
        """
        self._ending = True
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("a driver call has not returned for %g s", timeout_s)
            return
        self._page.close()

    def _run(self) -> None:
        _reduce_timer_slack()
        try:
            self._follow()
        except ClockwrightError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001  a dead poller must not leave a clock locked
            self._give_up(KeeperError(f"following the page failed: {error!r}"))
        self._page.armed = False

    def _give_up(self, error: ClockwrightError) -> None:
        self._lease.fail(error)
        self._page.fault = True

    def _follow(self) -> None:
        follower, looks = PageFollower(self._lease, self._page), 0
        while not self._ending:
            looks += 1
            if looks % _LOOKS_STEP == 0:
                self._page.looks = looks
            stopped = follower.look()
            time.sleep(_STOPPED_SLEEP_S if stopped else self._sleep_s)


def _reduce_timer_slack() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(
        _PR_SET_TIMERSLACK, 1, 0, 0, 0
    )  # refused only by odd kernels; then sleeps are longer
