import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.tracer.importers import import_file
from clockwright.tracer.importers.recording import Marks
from clockwright.tracer.importers.steps import find_repeats, find_steps
from tests.tracer.importers.kineto_files import event, kernel, launch, only, step, write

STEP = [0, 1, 2, 1, 2, 1, 2, 3, 4, 4, 4, 5]


def found(sequence):
    repeats = find_repeats(np.array(sequence))
    return None if repeats is None else (repeats[0].tolist(), repeats[1])


@pytest.mark.parametrize("count", [2, 3, 7])
def test_whole_steps_are_found_from_their_first_kernel(count):
    n = len(STEP)
    assert found(STEP * count) == ([n * i for i in range(count)], n * count)


@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=30).filter(lambda s: len(set(s)) > 1),
    st.integers(3, 6),
)
def test_a_step_with_a_kernel_of_its_own_is_found_whatever_else_it_holds(body, count):
    sequence = [9, *body] * count
    starts, end = found(sequence)
    assert end == len(sequence)
    # A body that itself repeats may be cut finer, never across a step.
    assert set(range(0, len(sequence), len(body) + 1)) <= set(starts)


@pytest.mark.parametrize("where", [0, 1, 2])
def test_one_extra_kernel_in_one_of_three_steps_leaves_three_steps(where):
    steps = [list(STEP) for _ in range(3)]
    steps[where].insert(5, 99)
    starts, end = found([kernel for one in steps for kernel in one])
    assert len(starts) == 3
    assert end == len(STEP) * 3 + 1


def test_a_recording_that_ends_within_a_step_leaves_the_rest_out():
    starts, end = found(STEP * 4 + STEP[:5])
    assert (len(starts), end) == (4, 4 * len(STEP))


def test_a_recording_that_begins_with_something_else_leaves_it_out():
    starts, end = found([20, 21, 22] + STEP * 6)
    assert (starts[0], len(starts), end) == (3, 6, 3 + 6 * len(STEP))


@pytest.mark.parametrize(
    "sequence",
    [
        [0],
        [0, 0, 0, 0],
        list(range(20)),
        [10, 11] + [0, 1, 2, 3] * 24 + [12, 13],  # layers within one pass, not steps
    ],
)
def test_what_does_not_repeat_as_steps_is_one_step(sequence):
    assert found(sequence) is None


def frame(starts, launches=None, streams=None):
    n = len(starts)
    return pd.DataFrame(
        {
            "start_ns": starts,
            "launch_ns": launches or [np.iinfo(np.int64).min] * n,
            "stream": streams or [7] * n,
            "node": [0] * n,
            "correlation": range(n),
        }
    )


def test_kernels_belong_to_the_step_that_launched_them():
    marks = Marks(host=np.array([[0, 100, 4], [100, 200, 5]]))
    kernels = frame([50, 150, 250], launches=[10, 90, 110])
    steps = find_steps(kernels, np.zeros(3, dtype=np.int64), marks)
    assert (steps.step.tolist(), steps.count, steps.how) == ([0, 0, 1], 2, "marks")


def test_a_kernel_without_a_launch_goes_with_the_one_before_it_on_its_stream():
    unknown = int(np.iinfo(np.int64).min)
    marks = Marks(host=np.array([[0, 100, 4], [100, 200, 5]]))
    kernels = frame([50, 150, 160, 250, 260], [10, 110, unknown, unknown, 120], [7, 7, 8, 7, 8])
    assert find_steps(kernels, np.zeros(5, dtype=np.int64), marks).step.tolist() == [0, 1, -1, 1, 1]


def test_the_gpus_own_windows_serve_where_no_launch_is_known():
    marks = Marks(gpu=np.array([[0, 100, 4], [100, 200, 5]]))
    steps = find_steps(frame([50, 150, 250]), np.zeros(3, dtype=np.int64), marks)
    assert steps.step.tolist() == [0, 1, -1]


def marked(tmp_path, names, *, durations=None):
    rows, at = [], 1000
    for number, kernels in enumerate(names):
        rows.append(step(number + 3, f"{at}.000", "500.000"))
        for place, name in enumerate(kernels):
            key = number * 100 + place
            dur = durations[number][place] if durations else 5
            rows.append(launch(key, f"{at + 1 + place}.000"))
            rows.append(kernel(name, f"{at + 20 + 20 * place}.000", f"{dur}.000", correlation=key))
        at += 1000
    return import_file(write(tmp_path / "t.json", *rows))


def test_one_extra_helper_kernel_in_one_of_three_marked_steps(tmp_path):
    result = marked(tmp_path, ["abc", "abxc", "abc"])
    trace = only(result)
    assert (result.kernels, result.steps, result.total_kernel_ns) == (10, 3, 50_000)
    assert trace.signatures["name"].tolist() == ["a", "b", "c"]
    assert result.dropped == {"kernel of a step with another sequence": 4}
    assert trace.profile["n"].tolist() == [2, 2, 2]


def test_another_kernel_chosen_at_another_clock_is_another_sequence(tmp_path):
    result = marked(tmp_path, ["abc", "aBc", "aBc"])
    trace = only(result)
    assert trace.signatures["name"].tolist() == ["a", "B", "c"]
    assert result.dropped == {"kernel of a step with another sequence": 3}
    assert result.kernels == 9


def test_the_profile_is_the_mean_over_alike_steps_and_the_timeline_one_of_them(tmp_path):
    durations = [[1, 2, 4], [2, 4, 6], [3, 6, 8]]
    trace = only(marked(tmp_path, ["aba"] * 3, durations=durations))
    assert trace.timeline["duration_ns"].tolist() == [2000, 4000, 6000]
    profile = trace.profile.set_index("signature")
    assert profile["duration_ns"].tolist() == [4000.0, 4000.0]
    assert profile["n"].tolist() == [6, 3]
    mean = (
        trace.timeline["time_scale"]
        * profile["duration_ns"].loc[trace.timeline["signature"]].to_numpy()
    )
    assert mean.tolist() == [2000.0, 4000.0, 6000.0]
    assert profile["duration_sd_ns"][1] == pytest.approx(2000 / 3**0.5)
    assert trace.baseline.time_ns == 1_000_000  # first kernel to the next step's first kernel
    assert trace.cyclic


def test_unmarked_repeats_are_steps_too(tmp_path):
    rows = [kernel(name, f"{10 * n}.000") for n, name in enumerate("abbc" * 3, 1)]
    result = import_file(write(tmp_path / "t.json", *rows))
    assert (result.steps, len(only(result).timeline), result.kernels) == (3, 4, 12)
    assert result.dropped == {}


def test_kernels_outside_the_marked_steps_are_counted(tmp_path):
    rows = [step(1, "100.000", "50.000"), launch(1, "110.000"), launch(2, "10.000")]
    rows += [kernel("in", "120.000", correlation=1), kernel("out", "20.000", correlation=2)]
    result = import_file(write(tmp_path / "t.json", *rows))
    assert result.dropped == {"kernel outside every step": 1}
    assert (result.kernels, len(only(result).timeline)) == (2, 1)
    assert not only(result).cyclic


def test_an_annotation_that_is_no_step_makes_none(tmp_path):
    rows = [event("user_annotation", "my region", "1.0", "90.0"), kernel("a"), kernel("b", "20.0")]
    assert import_file(write(tmp_path / "t.json", *rows)).steps == 1
