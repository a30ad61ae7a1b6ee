"""The sweep CSV: any tool's table comes in whole, or is refused with line and column."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from clockwright.data.errors import FormatError, InputError
from clockwright.data.sweep_csv import read_sweep, write_sweep
from clockwright.data.units import GOVERNOR, ClockPair
from tests.strategies import traces

HEADER = "kernel,core_mhz,mem_mhz,time_ms,energy_mj\n"
GOOD = HEADER + "a,auto,auto,1.5,10\nb,auto,auto,2,20\na,1000,fixed,1.6,9\nb,1000,fixed,2.5,18\n"


@pytest.fixture
def sweep(tmp_path):
    def write(text):
        path = tmp_path / "sweep.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_first_appearance_gives_the_order_and_auto_is_the_governor(sweep):
    trace = read_sweep(sweep(GOOD))
    assert trace.signatures["name"].tolist() == ["a", "b"]
    assert trace.clock_pairs() == (GOVERNOR, ClockPair(1000, None))
    assert trace.baseline.pair == GOVERNOR
    assert trace.baseline.time_ns == 3_500_000
    assert trace.baseline.energy_mj == 30
    assert trace.timeline["duration_ns"].tolist() == [1_500_000, 2_000_000]
    assert trace.provenance == "imported"
    assert not trace.simulated


def test_column_names_match_without_regard_to_case(sweep):
    assert read_sweep(sweep(GOOD.replace("energy_mj", " Energy_mJ").replace("kernel", "Kernel")))


def test_power_stands_in_for_energy(sweep):
    trace = read_sweep(sweep("kernel,core_mhz,mem_mhz,time_ms,power_w\na,1000,800,2,150\n"))
    assert trace.baseline.energy_mj == 300


def test_index_and_count_give_place_and_launches(sweep):
    text = "kernel,core_mhz,mem_mhz,time_ms,energy_mj,index,count\n"
    text += "b,1000,800,2,20,5,3\na,1000,800,1,10,2,1\nb,1000,800,4,40,9,1\n"
    trace = read_sweep(sweep(text))
    assert trace.signatures["name"].tolist() == ["a", "b", "b"]
    assert trace.timeline["launches"].tolist() == [1, 3, 1]
    assert trace.baseline.time_ns == (1 + 3 * 2 + 4) * 1e6


def test_the_baseline_is_the_marked_pair_else_the_highest(sweep):
    rows = "a,1000,800,1,10,{}\na,900,800,1,10,{}\n"
    head = HEADER.strip() + ",is_default\n"
    assert read_sweep(sweep(head + rows.format(0, 1))).baseline.pair == ClockPair(900, 800)
    assert read_sweep(sweep(head + rows.format(0, 0))).baseline.pair == ClockPair(1000, 800)
    with pytest.raises(InputError, match="several pairs"):
        read_sweep(sweep(head + rows.format(1, 1)))


def test_a_named_baseline_must_be_in_the_table(sweep):
    path = sweep(GOOD)
    assert read_sweep(path, baseline="1000/fixed").baseline.pair == ClockPair(1000, None)
    with pytest.raises(InputError, match="1234/800 is not in the table"):
        read_sweep(path, baseline="1234/800")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a CSV table"),
        (HEADER, "no rows"),
        ("kernel,core_mhz,mem_mhz,time_ms\na,1,1,1\n", "energy_mj"),
        ("kernel,mem_mhz,time_ms,energy_mj\na,1,1,1\n", "core_mhz"),
        (GOOD.replace("1.5,10", "nan,10"), "line 2, column time_ms"),
        (GOOD.replace("1.5,10", "-1,10"), "line 2, column time_ms"),
        (GOOD.replace("1.5,10", "0,10"), "positive"),
        (GOOD.replace("1.5,10", "1e-9,10"), "kernel 'a' takes less than a nanosecond"),
        (GOOD.replace("1.5,10", "1.5,0"), "line 2, column energy_mj: expected a positive"),
        (GOOD.replace("1.5,10", "1e999,10"), "line 2, column time_ms"),
        (GOOD.replace("1.5,10", "1.5,"), "line 2, column energy_mj"),
        (GOOD.replace("2.5,18", "2.5,-18"), "line 5, column energy_mj"),
        (GOOD.replace("b,1000,fixed,2.5,18\n", ""), "kernel 'b' has no row at 1000/fixed"),
        (GOOD + "a,1000,fixed,1.6,9\n", "line 6 repeats"),
        (GOOD.replace("a,1000", "a,fast"), "line 4"),
        (GOOD.replace("\nb,auto", "\n,auto"), "line 3, column kernel"),
        ("kernel,kernel,core_mhz,mem_mhz,time_ms,energy_mj\na,a,1,1,1,1\n", "twice"),
    ],
)
def test_a_bad_table_is_refused_with_its_place(sweep, text, message):
    with pytest.raises(FormatError, match=message):
        read_sweep(sweep(text))


def test_incomplete_pairs_can_be_dropped_and_are_counted(sweep):
    trace = read_sweep(sweep(GOOD + "a,900,fixed,1.7,8\n"), drop_incomplete_pairs=True)
    assert len(trace.pairs) == 2
    assert sum(trace.dropped.values()) == 1


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(traces())
def test_a_written_sweep_reads_back_with_the_same_cells(tmp_path, trace):
    whole = trace.checked()
    write_sweep(whole, tmp_path / "out.csv")
    back = read_sweep(tmp_path / "out.csv")
    rows = whole.timeline["signature"].to_numpy(dtype=int)
    np.testing.assert_allclose(
        back.grid("duration_ns"), whole.grid("duration_ns")[rows], rtol=1e-15
    )
    np.testing.assert_array_equal(back.grid("energy_mj"), whole.grid("energy_mj")[rows])
    assert back.clock_pairs() == whole.clock_pairs()
    assert back.simulated == whole.simulated


def test_every_public_table_imports_with_its_own_sums(datasets):
    tables = sorted((datasets / "unified").glob("*.csv"))
    assert tables
    for path in tables:
        trace = read_sweep(path)
        raw = pd.read_csv(path)
        default = raw[raw["is_default"] == 1]
        assert trace.baseline.energy_mj == pytest.approx(default["energy_mJ"].sum(), rel=1e-12)
        assert len(trace.profile) == len(raw)
