"""What the user says about switches, word by word, and what a measured table makes of it."""

import numpy as np
import pandas as pd
import pytest

from clockwright.data.errors import FormatError, InputError
from clockwright.data.tables import SWITCHES
from clockwright.data.units import ClockPair
from clockwright.optimizer.switch_model import ConstantStall, Free, Lag, MatrixStall, TwoPartStall
from clockwright.optimizer.switch_source import choose_switches, read_switch_table

PAIRS = [ClockPair(1800, 9000), ClockPair(1200, 9000), ClockPair(1800, 5000), ClockPair(1200, 5000)]


def table(rows):
    columns = ["from_core_mhz", "from_mem_mhz", "to_core_mhz", "to_mem_mhz", "latency_ns_p50",
               "stall_ns", "energy_mj"]  # fmt: skip
    frame = pd.DataFrame(rows, columns=columns)
    frame["provenance"] = "measured"
    return SWITCHES.frame(frame)


FULL = table(
    [
        (a.core_mhz, a.mem_mhz, b.core_mhz, b.mem_mhz,
         1e3 * (a.core_mhz != b.core_mhz) + 4e3 * (a.mem_mhz != b.mem_mhz),
         100.0 * (a.core_mhz != b.core_mhz) + 400.0 * (a.mem_mhz != b.mem_mhz), 0.0)
        for a in PAIRS for b in PAIRS if a != b
    ]
)  # fmt: skip


def test_words_and_durations():
    assert choose_switches("free", PAIRS).model == Free()
    assert choose_switches("0", PAIRS).model == Free()
    assert choose_switches("1ms", PAIRS).model == ConstantStall(1e6, 0.0)
    assert choose_switches("2us,5us", PAIRS).model == TwoPartStall(2e3, 5e3, 0.0, 0.0)


def test_a_stall_draws_the_idle_power():
    power = np.array([100.0, 80.0, 60.0, 40.0])
    model = choose_switches("1ms", PAIRS, idle_power_w=power).model
    assert model == ConstantStall(1e6, 1e6 * 70.0 * 1e-6)
    notes = choose_switches("1ms", PAIRS).notes
    assert any("not counted" in note for note in notes)


def test_lag_takes_the_longer_word_of_user_then_device():
    model = choose_switches("1ms", PAIRS, device_semantic="lag", device_min_dwell_ns=7).model
    assert isinstance(model, Lag)
    assert (model.latency_ns, model.min_dwell_ns) == (1e6, 7.0)
    model = choose_switches("1ms", PAIRS, device_semantic="lag", semantic="stall").model
    assert isinstance(model, ConstantStall)
    model = choose_switches("2us,5us", PAIRS, semantic="lag", min_dwell_ns=9).model
    assert model.latency_ns[0, 3] == 7e3
    assert model.min_dwell_ns == 9.0


def test_auto_is_measured_where_there_is_a_table_and_says_so_where_not():
    found = choose_switches("auto", PAIRS, table=FULL)
    assert found.described["source"] == "measured"
    found = choose_switches("auto", PAIRS)
    assert found.model == Free()
    assert any("upper limit" in note for note in found.notes)


def test_a_table_that_is_two_parts_is_named_so():
    found = choose_switches("measured", PAIRS, table=FULL)
    assert found.model == TwoPartStall(100.0, 400.0, 0.0, 0.0)
    lag = choose_switches("measured", PAIRS, table=FULL, semantic="lag").model
    assert lag.latency_ns[1, 2] == 5e3


def test_a_device_that_lags_stalls_for_its_latency_when_told_to_stall():
    found = choose_switches("measured", PAIRS, table=FULL, semantic="stall", device_semantic="lag")
    assert found.model == TwoPartStall(1e3, 4e3, 0.0, 0.0)


def test_transitions_that_were_not_measured_take_the_nearest():
    some = table(
        [
            (1800, 9000, 1200, 9000, 10.0, None, 0.1),
            (1200, 9000, 1800, 9000, 20.0, None, 0.2),
            (1800, 9000, 1800, 5000, 300.0, None, 0.3),
            (1800, 5000, 1800, 9000, 400.0, None, 0.4),
        ]
    )
    found = choose_switches("measured", PAIRS, table=some)
    assert isinstance(found.model, MatrixStall)
    assert found.model.time_ns[0, 1] == 10.0
    assert found.model.time_ns[2, 3] == 10.0  # as 1800 to 1200 at the other memory clock
    assert found.model.time_ns[0, 3] == 310.0  # core's part and memory's part
    assert found.model.energy_mj[3, 0] == pytest.approx(0.6)
    assert any("33% of the transitions" in note for note in found.notes)


def test_a_table_without_memory_transitions_cannot_serve_pairs_that_vary_it():
    some = table([(1800, 9000, 1200, 9000, 10.0, None, 0.1)])
    with pytest.raises(InputError, match="no transition of the memory clock"):
        choose_switches("measured", PAIRS, table=some)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("measured", "has no switch table"),
        ("soon", "switches must be measured, free, a duration"),
        ("1us,2us,3us", "one duration, or a core and a memory part"),
        ("-1ms", "cannot be negative"),
        ("nowhere.csv", "no such file"),
    ],
)
def test_nonsense_gets_clear_words(source, says):
    with pytest.raises(InputError, match=says):
        choose_switches(source, PAIRS)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_a_table_is_read_from_a_file(tmp_path, suffix):
    path = tmp_path / f"switches.{suffix}"
    frame = FULL.copy()
    {"csv": lambda: frame.to_csv(path, index=False), "parquet": lambda: frame.to_parquet(path),
     "json": lambda: frame.to_json(path, orient="records")}[suffix]()  # fmt: skip
    assert choose_switches(str(path), PAIRS).model == TwoPartStall(100.0, 400.0, 0.0, 0.0)


def test_a_file_that_is_no_switch_table_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match="from_core_mhz, to_core_mhz, latency_ns_p50 is missing"):
        read_switch_table(path)


def test_the_measured_v100_table_loads(datasets):
    path = next(datasets.glob("thynics*")) / "derived_est_latency_by_transition.csv"
    frame = read_switch_table(path)
    assert len(frame) == 10
    assert frame["latency_ns_p50"].iloc[0] == pytest.approx(4.68e6)
    pairs = [ClockPair(core, 877) for core in (1530, 1252, 975, 690)]
    found = choose_switches(str(path), pairs)
    assert isinstance(found.model, MatrixStall)
    row = frame[(frame["from_core_mhz"] == 1530) & (frame["to_core_mhz"] == 1252)]
    assert found.model.time_ns[0, 1] == pytest.approx(float(row["latency_ns_p50"].iloc[0]))


def test_rows_of_clocks_the_trace_does_not_have_are_told():
    other = table(
        [
            (1800, 9000, 1200, 9000, 10.0, None, 0.1),
            (1800, 9000, 990, 9000, 9.0, None, 0.1),
            (1800, 9000, 1800, 5000, 300.0, None, 0.3),
        ]
    )
    notes = choose_switches("measured", PAIRS, table=other).notes
    assert any("1 of 3 rows" in note and "no pair of the trace has" in note for note in notes)
