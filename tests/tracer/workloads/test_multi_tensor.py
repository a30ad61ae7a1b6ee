"""Chunked launches of multi-tensor kernels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clockwright.tracer.workloads.multi_tensor import CHUNK_ELEMENTS, split_launches

NUMELS = st.lists(st.integers(0, 400 * CHUNK_ELEMENTS), max_size=60)


@given(NUMELS, st.integers(1, 5), st.booleans())
def test_every_element_is_in_one_launch(numels: list[int], depth: int, scalars: bool) -> None:
    launches = split_launches(numels, depth, scalar_list=scalars)
    assert sum(x.elements for x in launches) == sum(numels)
    assert sum(x.blocks for x in launches) == sum(-(-n // CHUNK_ELEMENTS) for n in numels)


@given(NUMELS, st.integers(1, 5))
def test_no_launch_exceeds_its_tables_and_only_the_last_may_be_short(
    numels: list[int], depth: int
) -> None:
    most = {1: 770, 2: 448, 3: 336, 4: 252, 5: 210}[depth]
    launches = split_launches(numels, depth)
    assert all(0 < x.blocks <= 2_240 and 0 < x.tensors <= most for x in launches)
    assert all(x.blocks == 2_240 or x.tensors == most for x in launches[:-1])


def test_a_table_of_tensors_fills_before_the_blocks() -> None:
    launches = split_launches([1] * 600, 4)
    assert [x.tensors for x in launches] == [252, 252, 96]


def test_a_tensor_cut_in_two_counts_in_both_launches() -> None:
    launches = split_launches([2_241 * CHUNK_ELEMENTS, 5], 4)
    assert [(x.tensors, x.blocks) for x in launches] == [(1, 2_240), (2, 2)]
    assert launches[1].elements == CHUNK_ELEMENTS + 5


def test_a_scalar_a_tensor_leaves_room_for_fewer() -> None:
    assert len(split_launches([1] * 700, 1)) == 1
    assert len(split_launches([1] * 700, 1, scalar_list=True)) == 2


def test_empty_tensors_launch_nothing() -> None:
    assert split_launches([0, 0], 2) == []
