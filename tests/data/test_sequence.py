"""The kernel sequence travels in a schedule and keeps its fingerprint."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from clockwright.data.errors import FormatError
from clockwright.data.sequence import pack, sequence_of, unpack
from tests.strategies import traces


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40, deadline=None)
@given(traces())
def test_a_sequence_has_the_fingerprint_of_its_tables_and_survives_packing(trace):
    whole = trace.checked()
    found = sequence_of(whole.timeline, whole.signatures)
    assert found.fingerprint == whole.fingerprint
    assert len(found) == len(whole.timeline)
    assert unpack(pack(found)) == found


def test_a_long_repeating_step_packs_small():
    from clockwright.data.sequence import KernelSequence

    names = tuple(f"0;1;kernel{number}|?|?|?|?|op|[[4096, 2048]]" for number in range(200))
    order = tuple(list(range(200)) * 25)
    assert len(pack(KernelSequence(names, order))["data"]) < 10_000


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"encoding": "pickle", "data": ""},
        {"encoding": "json+zlib+base64", "data": 3},
        {"encoding": "json+zlib+base64", "data": "@@@"},
        {"encoding": "json+zlib+base64", "data": "AAAA"},
    ],
)
def test_anything_else_is_refused(values):
    with pytest.raises(FormatError, match="somewhere"):
        unpack(values, "somewhere")


def test_a_cut_sequence_is_refused():
    import base64

    whole = pack(unpack(pack(_small())))
    cut = base64.b64encode(base64.b64decode(whole["data"])[:-6]).decode()
    with pytest.raises(FormatError, match="cut"):
        unpack({**whole, "data": cut})


def _small():
    from clockwright.data.sequence import KernelSequence

    return KernelSequence(("0;1;a|?|?|?|?|?|?",), (0, 0))
