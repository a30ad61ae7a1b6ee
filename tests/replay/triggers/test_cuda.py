"""Stream writes and graph edits reach the CUDA driver as its header declares them."""

from __future__ import annotations

import pytest

from clockwright.data.errors import (
    DeviceError,
    MismatchError,
    NoDeviceError,
    NotSupportedError,
)
from clockwright.replay.plan import constant_plan, plan_segments
from clockwright.replay.triggers.cuda_driver import CudaDriver, NodeKind
from clockwright.replay.triggers.graph import (
    chain_of,
    insert_triggers,
    kernel_count,
    triggers_of,
)
from clockwright.replay.triggers.writers import StreamWriter
from clockwright.tracer.clocks import TriggerPage
from tests.replay.builders import A, B, C, segments

POINTER = 0x7000_0000
PROGRAMMATIC = 0x0001_0100


def test_a_stream_write_reaches_the_page_the_keeper_maps(fake_cuda):
    driver = CudaDriver(fake_cuda.library)
    with TriggerPage.create() as page:
        with StreamWriter(page, driver, stream=lambda: 0x57) as writer:
            writer.write(7)
            assert page.sequence == 7
            writer.write(2**32 - 1)
            assert page.sequence == 2**32 - 1
            assert fake_cuda.library.fakeLastStream() == 0x57
        assert not fake_cuda.registered
        writer.close()


def test_a_page_that_cannot_be_registered_is_named(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuMemHostRegister")
    with (
        TriggerPage.create() as page,
        pytest.raises(DeviceError, match=r"registering the shared page.*INVALID_VALUE"),
    ):
        StreamWriter(page, CudaDriver(fake_cuda.library))


def test_no_driver_is_told_in_one_line():
    with pytest.raises(NoDeviceError, match="libcuda-that-is-not-there"):
        CudaDriver.load("libcuda-that-is-not-there.so")


def test_a_driver_without_stream_writes_is_too_old():
    with pytest.raises(NotSupportedError, match="CUDA 12"):
        CudaDriver(object())


@pytest.mark.parametrize("data", [0, PROGRAMMATIC])
@pytest.mark.parametrize("placing", ["branch", "chain"])
def test_each_trigger_lies_just_before_its_kernel(fake_cuda, data, placing):
    driver = CudaDriver(fake_cuda.library)
    graph, _ = fake_cuda.chain([NodeKind.KERNEL] * 6, data)
    plan = plan_segments(segments((0, 2, A), (2, 5, B), (5, 6, C)), 6)
    assert insert_triggers(driver, graph, plan, POINTER, placing=placing) == 3
    assert triggers_of(driver, graph, POINTER) == [(0, 2), (2, 3), (5, 4)]


def test_triggers_within_the_chain_are_passed_on_the_way(fake_cuda):
    driver = CudaDriver(fake_cuda.library)
    graph, nodes = fake_cuda.chain([NodeKind.KERNEL] * 6, PROGRAMMATIC)
    plan = plan_segments(segments((0, 2, A), (2, 5, B), (5, 6, C)), 6)
    insert_triggers(driver, graph, plan, POINTER, placing="chain")
    chain = chain_of(driver, graph)
    assert [node for node in chain if node in nodes] == nodes
    assert len(chain) == 9


def test_no_kernel_waits_for_a_trigger_beside_the_chain(fake_cuda):
    driver = CudaDriver(fake_cuda.library)
    graph, nodes = fake_cuda.chain([NodeKind.KERNEL] * 6, PROGRAMMATIC)
    captured = driver.graph_edges(graph)
    plan = plan_segments(segments((0, 2, A), (2, 5, B), (5, 6, C)), 6)
    insert_triggers(driver, graph, plan, POINTER)
    edges = driver.graph_edges(graph)
    assert [edge for edge in edges if edge.target in nodes] == captured
    writes = [edge for edge in edges if edge.target not in nodes]
    assert [edge.source for edge in writes if edge.source in nodes] == [nodes[1], nodes[4]]
    assert len([edge for edge in writes if edge.source not in nodes]) == 2


def test_triggers_that_could_overtake_each_other_are_found(fake_cuda):
    driver = CudaDriver(fake_cuda.library)
    graph, nodes = fake_cuda.chain([NodeKind.KERNEL] * 4)
    context = driver.current_context()
    driver.add_write_node(graph, [nodes[0]], POINTER, 2, context)
    driver.add_write_node(graph, [nodes[1]], POINTER, 3, context)
    with pytest.raises(NotSupportedError, match="do not follow one another"):
        triggers_of(driver, graph, POINTER)


def test_copies_count_as_kernels_where_the_plan_counts_them(fake_cuda):
    driver = CudaDriver(fake_cuda.library)
    kinds = [NodeKind.MEMSET, NodeKind.KERNEL, NodeKind.MEMCPY, NodeKind.KERNEL]
    graph, _ = fake_cuda.chain(kinds)
    assert kernel_count(driver, graph) == 4
    assert kernel_count(driver, graph, with_copies=False) == 2
    insert_triggers(driver, graph, plan_segments(segments((0, 1, A), (1, 2, B)), 2), POINTER)
    assert triggers_of(driver, graph, POINTER, with_copies=False) == [(0, 2), (1, 3)]
    graph, _ = fake_cuda.chain(kinds)
    insert_triggers(driver, graph, plan_segments(segments((0, 3, A), (3, 4, B)), 4), POINTER)
    assert triggers_of(driver, graph, POINTER) == [(0, 2), (3, 3)]


def test_numbers_can_start_where_the_keepers_table_says(fake_cuda):
    driver = CudaDriver(fake_cuda.library)
    graph, _ = fake_cuda.chain([NodeKind.KERNEL] * 4)
    plan = plan_segments(segments((0, 2, A), (2, 4, B)), 4)
    insert_triggers(driver, graph, plan, POINTER, first_sequence=40)
    assert triggers_of(driver, graph, POINTER) == [(0, 40), (2, 41)]


def test_a_graph_of_another_length_is_refused(fake_cuda):
    driver = CudaDriver(fake_cuda.library)
    graph, _ = fake_cuda.chain([NodeKind.KERNEL] * 4)
    with pytest.raises(MismatchError, match="4 kernels"):
        insert_triggers(driver, graph, constant_plan(A, 5), POINTER)


def test_a_graph_of_several_streams_is_refused(fake_cuda):
    driver = CudaDriver(fake_cuda.library)
    graph, nodes = fake_cuda.chain([NodeKind.KERNEL] * 3)
    extra = int(fake_cuda.library.fakeNode(graph, NodeKind.KERNEL))
    fake_cuda.library.fakeEdge(graph, nodes[0], extra, 0)
    with pytest.raises(NotSupportedError, match="several streams"):
        chain_of(driver, graph)
    graph, nodes = fake_cuda.chain([NodeKind.KERNEL] * 3)
    fake_cuda.library.fakeNode(graph, NodeKind.KERNEL)
    with pytest.raises(NotSupportedError, match="2 nodes that wait for nothing"):
        chain_of(driver, graph)


def test_without_a_context_the_way_out_is_told(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuCtxGetCurrent")
    driver = CudaDriver(fake_cuda.library)
    graph, _ = fake_cuda.chain([NodeKind.KERNEL] * 2)
    with pytest.raises(DeviceError, match="use the GPU before"):
        insert_triggers(driver, graph, plan_segments(segments((0, 1, A), (1, 2, B)), 2), POINTER)
