"""How the solver's loops are compiled: once a machine, to the disk cache, without the GIL.

``compiled`` marks what Python calls, ``inner`` what only other compiled code calls: no wrappers
are built for it, which shortens the first run. Division follows NumPy (no zero checks). ``fast``
adds what lets minima vectorise: values are finite and never NaN.
"""

from __future__ import annotations

from functools import partial

from numba import njit

__all__ = ["compiled", "fast", "inner"]

_COMMON = {"cache": True, "nogil": True, "error_model": "numpy"}
_NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

compiled = partial(njit, **_COMMON)
inner = partial(njit, **_COMMON, **_NO_WRAPPERS)
fast = partial(njit, **_COMMON, **_NO_WRAPPERS, fastmath={"nnan", "ninf", "nsz", "contract"})
