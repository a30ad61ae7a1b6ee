"""Which GPU an index means, as CUDA reads the environment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clockwright.data.errors import InputError, NotSupportedError
from clockwright.tracer.gpu.visible import find_uuid, visible_uuids

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")
ALIKE = ("H200",) * 4
MIXED = ("H200", "T400", "H200", "T400")


@pytest.mark.parametrize(
    ("listed", "indexes"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("NoDevFiles", ()),
        ("2,1", (2, 1)),
        (" 3 , 0 ", (3, 0)),
        ("0,2,-1,1", (0, 2)),  # CUDA's own documentation's example
        ("1,9,2", (1,)),
        ("GPU-bb", (2,)),
        ("gpu-BB33,0", (2, 0)),
        ("GPU-aa,0", ()),  # begins two UUIDs: invalid
        ("GPU-zz", ()),
        ("1,GPU-aa22", ()),  # the same GPU twice
        ("0,0", ()),
        ("²", ()),  # isdigit, yet not a number
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    listed: str | None, indexes: tuple[int, ...]
) -> None:
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert visible_uuids(UUIDS, ALIKE, environment) == tuple(UUIDS[i] for i in indexes)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), unique_by=lambda entry: entry[0]))
def test_indexes_and_uuids_mix_in_any_order(entries: list[tuple[int, bool]]) -> None:
    listed = ",".join(UUIDS[i] if by_uuid else str(i) for i, by_uuid in entries)
    expected = tuple(UUIDS[i] for i, _ in entries)
    assert visible_uuids(UUIDS, ALIKE, {"CUDA_VISIBLE_DEVICES": listed}) == expected


@pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": "1"}])
@pytest.mark.parametrize("order", [{}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}])
def test_an_index_among_different_models_is_refused_without_an_order(
    environment: dict[str, str], order: dict[str, str]
) -> None:
    with pytest.raises(InputError, match=r"ambiguous.*CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible_uuids(UUIDS, MIXED, environment | order)


def test_different_models_are_told_apart_by_order_or_uuid() -> None:
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_uuids(UUIDS, MIXED, order) == UUIDS
    assert visible_uuids(UUIDS, MIXED, order | {"CUDA_VISIBLE_DEVICES": "3"}) == UUIDS[3:]
    assert visible_uuids(UUIDS, MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-cc"}) == UUIDS[3:]


def test_a_mig_instance_is_refused() -> None:
    with pytest.raises(NotSupportedError, match=r"MIG-1234.*whole GPU"):
        visible_uuids(UUIDS, ALIKE, {"CUDA_VISIBLE_DEVICES": "MIG-1234"})


def test_a_uuid_prefix_must_be_one_gpus() -> None:
    assert find_uuid("GPU-aa1", UUIDS) == "GPU-aa11"
    assert find_uuid("gpu-BB33", UUIDS) == "GPU-bb33"
    with pytest.raises(InputError, match="begins 2 GPUs' UUIDs: GPU-aa11, GPU-aa22"):
        find_uuid("GPU-aa", UUIDS)
    with pytest.raises(InputError, match="there are: GPU-aa11"):
        find_uuid("GPU-dd", UUIDS)
