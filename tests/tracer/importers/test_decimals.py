from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.data.errors import InputError
from clockwright.tracer.importers.decimals import (
    MALFORMED,
    MISSING,
    WIDE,
    us_text_to_ns,
    us_texts_to_ns,
)

times = st.one_of(
    st.integers(-(2**62), 2**62).map(
        lambda ns: f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"
    ),
    st.decimals(-(10**12), 10**12, places=7).map(str),
    st.integers(-(10**15), 10**15).map(str),
    st.floats(-1e9, 1e9).map(repr),
)


def exact_ns(text):
    return int((Decimal(text) * 1000).to_integral_value(rounding=ROUND_HALF_EVEN))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"1712195495740538.801", 1712195495740538801),
        (b"0.640", 640),
        (b"-0.660", -660),
        (b"-12.005", -12005),
        (b"5", 5000),
        (b"0.5", 500),
        (b"1.5e3", 1_500_000),
        (b"12.3456789", 12346),
        (b"0.0005", 0),
        (b"0.0015", 2),
        (b'"7.250"', 7250),
    ],
)
def test_text_becomes_exact_nanoseconds(text, ns):
    assert us_text_to_ns(text) == ns


@pytest.mark.parametrize("text", [b"abc", b"1.2.3", b"--1.000", b"nan", b"1_0.000", b"1e40"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(InputError):
        us_text_to_ns(text)


@given(st.lists(times, max_size=600))
def test_a_column_is_what_each_text_is(texts):
    column = us_texts_to_ns([text.encode() for text in texts])
    assert column.tolist() == [exact_ns(text) for text in texts]


def test_odd_cells_are_marked_and_leave_their_neighbours_alone():
    texts = [b"1.000"] * 700 + [b"", b"null", b"x", b"18446744073709551615.000"] + [b"2.000"] * 700
    column = us_texts_to_ns(texts).tolist()
    assert column[700:704] == [MISSING, MISSING, MALFORMED, WIDE]
    assert column[:700] == [1000] * 700
    assert column[704:] == [2000] * 700
