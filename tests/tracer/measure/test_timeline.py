"""Marked steps of a profile: aligned, complete, alike; what differs is named."""

import pytest

from clockwright.data.errors import DeviceError, WorkloadError
from clockwright.tracer.measure.sensing import LONG_CYCLES, SHORT_CYCLES, clocks_at
from clockwright.tracer.measure.timeline import module_ranges, read_timeline
from tests.tracer.importers.kineto_files import event, kernel, launch, step, write


def one_step(number, names, *, lose=None, took="40.000"):
    """A marked step at number x 1000 us: a launch and a kernel for each name."""
    base = 1000 * number
    events = [step(number, f"{base}.000", "900.000")]
    for place, name in enumerate(names):
        key = 100 * number + place + 1
        events.append(launch(key, f"{base + 2 * place + 1}.000"))
        if place != lose:
            start = f"{base + 100 + 50 * place}.125"
            length = took if not name.startswith("spin") else spin_us(place)
            events.append(kernel(name, start, length, correlation=key))
    return events


CLOCK_MHZ, EXTRA = 1500, 150


def spin_us(place):
    cycles = LONG_CYCLES if place % 2 else SHORT_CYCLES
    return f"{(cycles + EXTRA) / CLOCK_MHZ:.3f}"


def profile(tmp_path, *steps):
    return write(tmp_path / "timeline.json", *[entry for found in steps for entry in found])


def test_alike_steps_are_aligned(tmp_path):
    found = read_timeline(profile(tmp_path, *[one_step(n, "aba") for n in range(1, 5)]))
    assert found.duration_ns.shape == (4, 3)
    assert (found.duration_ns == 40_000).all()
    assert found.start_ns[0, 0] == 1_100_125
    assert found.kernels["signature"].tolist() == [0, 1, 0]
    assert found.busy_ns.tolist() == [120_000] * 4
    assert found.span_ns.tolist() == [140_000] * 4
    assert found.odd == ()


def test_a_step_with_a_dropped_kernel_is_refused_and_told(tmp_path):
    steps = [one_step(1, "aba"), one_step(2, "aba", lose=1), one_step(3, "aba")]
    found = read_timeline(profile(tmp_path, *steps))
    assert len(found.duration_ns) == 2
    assert any("step 2 is incomplete: the profiler dropped 1" in text for text in found.odd)
    assert found.dropped["kernel that the profiler dropped"] == 1


def test_only_incomplete_steps_are_no_timeline(tmp_path):
    steps = [one_step(n, "aba", lose=0) for n in (1, 2)]
    with pytest.raises(WorkloadError, match="incomplete"):
        read_timeline(profile(tmp_path, *steps))


def test_a_step_that_differs_is_left_out_and_its_first_difference_named(tmp_path):
    steps = [one_step(1, "aba"), one_step(2, "aca"), one_step(3, "aba")]
    found = read_timeline(profile(tmp_path, *steps))
    assert len(found.duration_ns) == 2
    (text,) = found.odd
    assert "step 2" in text
    assert "kernel 1 is c" in text
    assert "has b" in text


def test_no_two_steps_alike_are_refused(tmp_path):
    with pytest.raises(WorkloadError, match="no two steps"):
        read_timeline(profile(tmp_path, one_step(1, "ab"), one_step(2, "ac")))


def test_a_profile_without_marks_is_refused(tmp_path):
    path = write(tmp_path / "t.json", kernel("a"), kernel("a", "30.000"))
    with pytest.raises(WorkloadError, match="no marked step"):
        read_timeline(path)


def test_probes_are_set_apart_and_tell_the_clock(tmp_path):
    names = ["spin_kernel", "a", "b", "spin_kernel", "a", "b"] * 3
    steps = [one_step(n, names) for n in (1, 2, 3)]
    found = read_timeline(profile(tmp_path, *steps))
    assert found.duration_ns.shape == (3, 12)
    assert len(found.probes.start_ns) == 18
    clocks = clocks_at(found)
    assert clocks.shape == (3, 12)
    assert clocks.mean() == pytest.approx(CLOCK_MHZ, rel=2e-3)


def test_a_timeline_without_probes_tells_no_clock(tmp_path):
    assert clocks_at(read_timeline(profile(tmp_path, one_step(1, "ab"), one_step(2, "ab")))) is None


def test_copies_are_counted_not_kept(tmp_path):
    copy = event("gpu_memcpy", "Memcpy", "1500.000", "3.000", device=0, stream=7)
    found = read_timeline(profile(tmp_path, one_step(1, "ab"), one_step(2, "ab"), [copy]))
    assert sum(found.dropped.values()) == 1


def test_module_ranges_leave_no_hook_behind():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with module_ranges(model):
        model(torch.ones(2, 4))
        assert model[0]._forward_pre_hooks
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    with pytest.raises(DeviceError), module_ranges(model):
        raise DeviceError("as a step might")
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    with module_ranges(None):
        pass
