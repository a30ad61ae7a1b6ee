"""Hypothesis strategies shared by the tests."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from clockwright.data.trace import Baseline, Trace
from clockwright.data.units import GOVERNOR, ClockPair

_TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12
)
POSITIVE = st.floats(1e-3, 1e9, allow_nan=False)


@st.composite
def traces(draw, max_signatures: int = 4, max_kernels: int = 8, max_pairs: int = 4) -> Trace:
    """A sound trace with a full profile, the governor first."""
    signatures = draw(st.integers(1, max_signatures))
    kernels = draw(st.integers(1, max_kernels))
    locked = draw(
        st.lists(
            st.tuples(st.integers(200, 2000), st.integers(400, 9000)),
            max_size=max_pairs - 1,
            unique=True,
        )
    )
    pairs = [GOVERNOR, *(ClockPair(*pair) for pair in locked)]
    cells = signatures * len(pairs)
    # No kernel of a real step takes under a nanosecond, the step of the timeline's times.
    time_ns = draw(st.lists(st.floats(1.0, 1e9), min_size=cells, max_size=cells))
    energy_mj = draw(st.lists(POSITIVE, min_size=cells, max_size=cells))
    rows = draw(st.lists(st.integers(0, signatures - 1), min_size=kernels, max_size=kernels))
    durations = [round(time_ns[row * len(pairs)]) for row in rows]
    return Trace(
        gpu={"name": draw(_TEXT), "simulated": draw(st.booleans())},
        workload={"name": draw(_TEXT)},
        provenance=draw(st.sampled_from(["measured", "simulated", "imported"])),
        timeline=pd.DataFrame(
            {
                "index": range(kernels),
                "stream": 7,
                "start_ns": np.concatenate([[0], np.cumsum(durations)[:-1]]).astype("int64"),
                "duration_ns": durations,
                "signature": rows,
                "launches": 1,
                "phase": "forward",
            }
        ),
        signatures=pd.DataFrame(
            {
                "signature": range(signatures),
                "name": draw(st.lists(_TEXT, min_size=signatures, max_size=signatures)),
            }
        ),
        pairs=pd.DataFrame(
            {
                "pair": range(len(pairs)),
                "core_mhz": pd.array([pair.core_mhz for pair in pairs], dtype="Int32"),
                "mem_mhz": pd.array([pair.mem_mhz for pair in pairs], dtype="Int32"),
                "provenance": "measured",
            }
        ),
        profile=pd.DataFrame(
            {
                "signature": np.repeat(range(signatures), len(pairs)),
                "pair": np.tile(range(len(pairs)), signatures),
                "duration_ns": time_ns,
                "energy_mj": energy_mj,
                "provenance": "measured",
            }
        ),
        baseline=Baseline(GOVERNOR, None, None),
    )
