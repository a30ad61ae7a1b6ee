"""Text to numbers: exact, and clear about what is wrong."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.data.errors import InputError
from clockwright.data.units import (
    GOVERNOR,
    ClockPair,
    counted,
    decimal_to_ns,
    parse_duration_ns,
    parse_fraction,
    parse_pair,
)


@given(st.integers(0, 2**62))
def test_microsecond_text_keeps_every_nanosecond(value_ns):
    text = f"{value_ns // 1000}.{value_ns % 1000:03d}"
    assert decimal_to_ns(text) == value_ns


def test_epoch_fractions_a_double_cannot_hold_keep_their_gap():
    end = decimal_to_ns("1712195495740538.801") + decimal_to_ns("0.640")
    assert decimal_to_ns("1712195495740539.701") - end == 260


@pytest.mark.parametrize("text", ["", "0.-660", "nan", "inf", "1e400", "12 34", "0x10"])
def test_malformed_decimals_are_refused(text):
    with pytest.raises(InputError):
        decimal_to_ns(text)


@pytest.mark.parametrize(
    ("text", "value_ns"),
    [("20us", 20_000), ("1.5 ms", 1_500_000), ("300ns", 300), ("2s", 2_000_000_000), ("0", 0)],
)
def test_durations_carry_their_unit(text, value_ns):
    assert parse_duration_ns(text) == value_ns


@pytest.mark.parametrize("text", ["20", "us", "-1ms", "1m", "1 hour", "nan us"])
def test_a_duration_without_unit_or_sense_is_refused(text):
    with pytest.raises(InputError):
        parse_duration_ns(text)


@given(
    st.builds(
        ClockPair,
        st.none() | st.integers(1, 5000),
        st.none() | st.integers(1, 20000),
    )
)
def test_pairs_survive_being_written_and_read(pair):
    assert parse_pair(str(pair)) == pair


@pytest.mark.parametrize("text", ["governor", "auto", "AUTO/auto", " default "])
def test_words_for_the_governor(text):
    assert parse_pair(text) is GOVERNOR


@pytest.mark.parametrize("text", ["1410", "0/800", "-5/800", "1410.5/800", "fast/800", "1/2/3", ""])
def test_a_pair_that_is_none_is_refused_with_what_came(text):
    with pytest.raises(InputError, match="got"):
        parse_pair(text)


@pytest.mark.parametrize(("text", "value"), [("0.6%", 0.006), ("0.006", 0.006), ("0", 0.0)])
def test_percentages_and_fractions(text, value):
    assert parse_fraction(text) == value


@pytest.mark.parametrize("text", ["-1%", "nan", "inf%", "", "%", "six"])
def test_a_budget_without_sense_is_refused(text):
    with pytest.raises(InputError):
        parse_fraction(text)


@given(st.decimals(0, 100, allow_nan=False, places=6))
def test_a_fraction_is_read_to_the_nearest_double(value):
    assert parse_fraction(str(value)) == float(Decimal(str(value)))


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (1, ("segment",), "1 segment"),
        (0, ("segment",), "0 segments"),
        (1, ("switch", "switches"), "1 switch"),
        (3, ("switch", "switches"), "3 switches"),
    ],
)
def test_a_number_stands_beside_its_noun(number, words, text):
    assert counted(number, *words) == text
