"""The keeper's interface over a simulated GPU, on virtual time."""

from __future__ import annotations

import pytest

from clockwright.data.errors import (
    DeviceBusyError,
    InputError,
    KeeperError,
    LockNotHeldError,
)
from clockwright.data.units import ClockPair
from clockwright.tracer.clocks import (
    ClockKeeper,
    KeeperClient,
    Limits,
    LocalKeeper,
    Outcome,
    TriggerPage,
    numbered,
    open_keeper,
)
from clockwright.tracer.gpu.nvml import NvmlGpu
from clockwright.tracer.gpu.select import open_gpu
from clockwright.tracer.gpu.simulated import SimulatedGpu
from tests.fake_nvml.driver import FakeGpu


@pytest.fixture
def simulated() -> SimulatedGpu:
    gpu = open_gpu("sim:rtx3080ti")
    assert isinstance(gpu, SimulatedGpu)
    return gpu


@pytest.fixture
def pairs(simulated: SimulatedGpu) -> tuple[ClockPair, ClockPair]:
    listed = simulated.pairs()
    return listed[3], listed[10]


def test_pairs_are_set_on_the_simulated_gpu_and_given_back(
    simulated: SimulatedGpu, pairs: tuple[ClockPair, ClockPair]
) -> None:
    with open_keeper(simulated) as keeper:
        assert isinstance(keeper, LocalKeeper)
        keeper.acquire(simulated.info.uuid, numbered(pairs))
        event = keeper.lock(pairs[0])
        assert (event.pair, event.outcome, simulated.locked()) == (pairs[0], Outcome.SET, pairs[0])
        assert event.seen_ns <= event.done_ns <= simulated.now_ns()
        keeper.set_power_limit_w(200.0)
        assert keeper.events()[-1].power_limit_w == 200.0
        keeper.release()
        assert simulated.locked() is None
        keeper.lock(pairs[1])
    assert simulated.locked() is None
    simulated.read()


def test_a_page_is_followed_whenever_the_simulation_looks(
    simulated: SimulatedGpu, pairs: tuple[ClockPair, ClockPair]
) -> None:
    with LocalKeeper(simulated) as keeper, TriggerPage.create() as page:
        keeper.acquire(simulated.info.uuid, {1: pairs[0], 2: pairs[1]})
        keeper.arm(page)
        assert page.armed
        page.sequence = 2
        assert simulated.locked() is None
        keeper.poll()
        keeper.poll()
        assert simulated.locked() == pairs[1]
        assert [event.sequence for event in page.events()] == [2]
        page.stop()
        keeper.poll()
        assert simulated.locked() is None
        page.resume()
        page.sequence = 2
        keeper.poll()
        assert simulated.locked() == pairs[1]
        page.sequence = 3
        keeper.poll()
        assert (simulated.locked(), page.fault, page.armed) == (None, True, False)
        with pytest.raises(InputError, match="sequence number 3"):
            keeper.check()


def test_a_lock_is_read_back_on_virtual_time(
    simulated: SimulatedGpu, pairs: tuple[ClockPair, ClockPair]
) -> None:
    with LocalKeeper(simulated) as keeper:
        keeper.acquire(simulated.info.uuid, numbered(pairs))
        keeper.lock(pairs[0])
        before_ns = simulated.now_ns()
        assert keeper.confirm() in {"held", "idle"}
        assert 300e6 <= simulated.now_ns() - before_ns < 1e9


def test_a_lock_the_simulation_does_not_hold_is_found(
    simulated: SimulatedGpu,
    pairs: tuple[ClockPair, ClockPair],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LocalKeeper(simulated) as keeper:
        keeper.acquire(simulated.info.uuid, numbered(pairs))
        monkeypatch.setattr(simulated, "lock", lambda pair: None)
        read = simulated.read
        off = pairs[0].core_mhz

        def busy(*, energy: bool = True) -> object:
            found = read(energy=energy)
            return type(found)(
                **{**vars(found), "core_mhz": (off or 0) + 60, "throttle_reasons": 0}
            )

        monkeypatch.setattr(simulated, "read", busy)
        keeper.lock(pairs[0])
        with pytest.raises(LockNotHeldError):
            keeper.confirm()


def test_the_rate_of_switches_counts_virtual_time(
    simulated: SimulatedGpu, pairs: tuple[ClockPair, ClockPair]
) -> None:
    with LocalKeeper(simulated, limits=Limits(max_switches_per_s=4)) as keeper:
        keeper.acquire(simulated.info.uuid, numbered(pairs))
        for turn in range(4):
            keeper.lock(pairs[turn % 2])
        with pytest.raises(KeeperError, match="more than 4"):
            keeper.lock(pairs[0])
        simulated.sleep_ns(1_000_000_000)
        keeper.lock(pairs[0])


def test_dry_mode_leaves_the_simulated_gpu_alone(
    simulated: SimulatedGpu, pairs: tuple[ClockPair, ClockPair]
) -> None:
    with LocalKeeper(simulated, dry=True) as keeper:
        keeper.acquire(simulated.info.uuid, numbered(pairs))
        assert keeper.lock(pairs[0]).outcome is Outcome.DRY
        assert keeper.confirm() is None
        assert simulated.locked() is None


def test_what_cannot_be_is_refused(
    simulated: SimulatedGpu, pairs: tuple[ClockPair, ClockPair]
) -> None:
    keeper = LocalKeeper(simulated)
    with pytest.raises(KeeperError, match="no lease"):
        keeper.lock(pairs[0])
    with pytest.raises(InputError, match="not SIM-other"):
        keeper.acquire("SIM-other", numbered(pairs))
    with pytest.raises(InputError, match="does not list"):
        keeper.acquire(simulated.info.uuid, {1: ClockPair(1, 1)})
    keeper.acquire(simulated.info.uuid, numbered(pairs))
    with pytest.raises(DeviceBusyError):
        keeper.acquire(simulated.info.uuid, numbered(pairs))
    keeper.close()
    keeper.close()


def test_a_real_gpu_gets_the_process_and_never_a_local_keeper(gpu: FakeGpu) -> None:
    with NvmlGpu(gpu.uuid) as real:
        with pytest.raises(InputError, match="only the keeper process"):
            LocalKeeper(real)
        with open_keeper(real, dry=True) as keeper:
            assert isinstance(keeper, KeeperClient)


def test_both_keepers_have_the_whole_interface() -> None:
    names = {name for name in vars(ClockKeeper) if not name.startswith("_")}
    assert len(names) > 10
    for made in (KeeperClient, LocalKeeper):
        missing = {name for name in names if not hasattr(made, name)}
        assert not missing
