import pandas as pd
import pytest

from clockwright.data.errors import FormatError, InputError
from clockwright.data.sweep_csv import read_sweep
from clockwright.tracer.importers import import_file
from tests.tracer.importers.kineto_files import DATASETS, only

PROFILES = {
    "gpt3-175b+a100_sxm_bf16": "gpt3-175b_a100_sxm_perseus_stages",
    "gpt3-175b+a40_bf16": "gpt3-175b_a40_perseus_stages",
    "bloom+a100_sxm_bf16": "bloom_a100_sxm_perseus_stages",
    "bloom+a40_bf16": "bloom_a40_perseus_stages",
}
ROWS = [
    "stage,instruction,frequency,time,energy",
    "0,forward,1400,0.5,100",
    "0,backward,1400,1.0,210",
    "1,forward,1400,0.25,50",
    "1,backward,1400,0.75,150",
    "0,forward,1200,0.6,90",
    "0,backward,1200,1.2,180",
    "1,forward,1200,0.3,45",
    "1,backward,1200,0.9,120",
]


def write(path, rows):
    path.write_text("\n".join(rows) + "\n")
    return path


def test_one_micro_batch_goes_forward_through_the_stages_and_back(tmp_path):
    result = import_file(write(tmp_path / "p.csv", ROWS))
    trace = only(result)
    assert result.format == "perseus"
    assert trace.signatures["name"].tolist() == [
        "stage0_forward",
        "stage1_forward",
        "stage1_backward",
        "stage0_backward",
    ]
    assert trace.timeline["duration_ns"].tolist() == [
        500_000_000,
        250_000_000,
        750_000_000,
        1_000_000_000,
    ]
    assert trace.timeline["phase"].tolist() == ["forward"] * 2 + ["backward"] * 2
    assert str(trace.baseline.pair) == "1400/fixed"
    assert (trace.baseline.time_ns, trace.baseline.energy_mj) == (2.5e9, 510_000.0)
    assert result.total_kernel_ns == 2_500_000_000


@pytest.mark.parametrize("name", PROFILES)
def test_published_profiles_import_with_every_value(name):
    raw = DATASETS / "ml-energy-zeus" / f"sosp24_emulation_stage_profile_{name}.csv"
    other = DATASETS / "unified" / f"{PROFILES[name]}.csv"
    if not raw.exists():
        pytest.skip(f"the data set is not here: {raw}")
    trace = only(import_file(raw)).checked()
    table = pd.read_csv(raw)
    assert len(trace.profile) == len(table)
    assert trace.profile["energy_mj"].sum() == pytest.approx(table["energy"].sum() * 1e3, rel=1e-12)
    assert trace.profile["duration_ns"].sum() == pytest.approx(table["time"].sum() * 1e9, rel=1e-12)
    sweep = read_sweep(other)
    assert trace.baseline.pair == sweep.baseline.pair
    # The other table was derived from the same profile, rounded to six digits.
    assert trace.baseline.time_ns == pytest.approx(sweep.baseline.time_ns, rel=1e-5)
    assert trace.baseline.energy_mj == pytest.approx(sweep.baseline.energy_mj, rel=1e-5)


def test_repeated_rows_are_measurements_of_one_cell(tmp_path):
    trace = only(import_file(write(tmp_path / "p.csv", [*ROWS, "0,forward,1400,0.7,120"])))
    cell = trace.profile[(trace.profile["signature"] == 0) & (trace.profile["pair"] == 0)].iloc[0]
    assert cell["n"] == 2
    assert cell["duration_ns"] == pytest.approx(6e8)
    assert cell["duration_sd_ns"] == pytest.approx(1e8)
    assert trace.profile["duration_sd_ns"].isna().sum() == 7


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["stage,instruction,frequency,time", "0,forward,1,1"], "column energy is missing"),
        ([*ROWS, "0,forward,1000,nan,1"], r"line 10, column time.*'nan'"),
        ([*ROWS, "0,forward,1000,-1,1"], r"line 10, column time"),
        ([*ROWS, "0,forward,12.5,1,1"], r"line 10, column frequency.*whole"),
        ([*ROWS, "0,,1000,1,1"], r"line 10, column instruction"),
        (ROWS[:-1], r"stage1_backward has no row at 1200 MHz"),
        (ROWS[:1], "no rows"),
    ],
)
def test_bad_tables_are_refused_with_their_place(tmp_path, rows, message):
    with pytest.raises(FormatError, match=message):
        import_file(write(tmp_path / "p.csv", rows))


def test_incomplete_frequencies_can_be_dropped(tmp_path):
    result = import_file(write(tmp_path / "p.csv", ROWS[:-1]), drop_incomplete_pairs=True)
    assert result.dropped == {"row at a pair where some kernel is missing": 3}
    assert only(result).pairs["core_mhz"].tolist() == [1400]


def test_a_baseline_can_be_named(tmp_path):
    path = write(tmp_path / "p.csv", ROWS)
    trace = only(import_file(path, baseline="1200/fixed"))
    assert trace.baseline.time_ns == pytest.approx(3.0e9)
    with pytest.raises(InputError, match=r"1000/fixed is not in the table"):
        import_file(path, baseline="1000/fixed")
    with pytest.raises(InputError, match="not in the table"):
        import_file(path, baseline="1200/5000")


@pytest.mark.parametrize(
    "header",
    [
        "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power",
        "start_time,window_name,elapsed_time,gpu0_energy",
    ],
)
def test_measurements_at_power_limits_are_refused_by_what_they_are(tmp_path, header):
    path = write(tmp_path / "p.csv", [header, "1,2,3,4,5,6,7"])
    with pytest.raises(InputError, match="power limits, not at clocks"):
        import_file(path)
