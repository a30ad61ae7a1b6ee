"""The ``clockwright`` command; each subcommand has its module, loaded when it is called."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status.

    0 done (and, for ``replay``, within the budget); 2 bad input; 3 over the budget; 4 the GPU or
    the keeper refused; 5 the user's own step failed; 130 interrupted.
    """
    from ._app import run

    return run(sys.argv[1:] if argv is None else argv)
