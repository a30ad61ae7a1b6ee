"""Puts triggers into a captured CUDA graph, each just before the kernel it belongs to.

A step captured on one stream is a chain of nodes. A trigger for kernel i is a node that writes its
number once node i-1 has ended, so the place is the kernel's own, whatever operator launched it, and
nothing in the model is touched. Two ways to put it there:

* ``"branch"``: beside the chain. The write waits for node i-1 and for the write before it, and no
  kernel waits for the write; the chain's own edges stay as captured.
* ``"chain"``: within the chain. Kernel i waits for the write instead of for node i-1.

`triggers_of` reads the edited graph back and says which trigger lies before which kernel, which is
how a caller checks it. The graph must be kept by PyTorch
(``torch.cuda.CUDAGraph(keep_graph=True)``) and is edited before it is instantiated.

The alternative, counting operators while the stream is captured and writing between them, needs to
know how many kernels each operator launches; it was not taken.

Left out: graphs that are no chain (several streams). There "before kernel i" has no single meaning;
they are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Literal

from ...data.errors import MismatchError, NotSupportedError
from ..plan import Plan
from .cuda_driver import CudaDriver, GraphEdge, NodeKind

__all__ = ["Placing", "chain_of", "insert_triggers", "kernel_count", "triggers_of"]

Placing = Literal["branch", "chain"]

_COUNTED = (NodeKind.KERNEL, NodeKind.MEMCPY, NodeKind.MEMSET)


def chain_of(driver: CudaDriver, graph: int, beside: Collection[int] = ()) -> list[int]:
    """Node handles of a graph, from first to last.

    Args:
        driver: the CUDA driver.
        graph: the ``cudaGraph_t``.
        beside: nodes that are left out, with their edges.

    Raises:
        NotSupportedError: the graph is no chain.
    """
    nodes = [node for node in driver.graph_nodes(graph) if node not in beside]
    after: dict[int, int] = {}
    sources: dict[int, int] = {}
    for source, target, _ in driver.graph_edges(graph):
        if source in beside or target in beside:
            continue
        if source in after or target in sources:
            raise NotSupportedError(
                "the captured step runs on several streams, so no trigger can be put before a "
                "kernel of it; capture it on one stream, or use eager triggers"
            )
        after[source], sources[target] = target, source
    first = [node for node in nodes if node not in sources]
    if len(first) != 1 and nodes:
        raise NotSupportedError(
            f"the captured step has {len(first)} nodes that wait for nothing; capture it on one "
            "stream, or use eager triggers"
        )
    chain = first[:1]
    while chain and chain[-1] in after:
        chain.append(after[chain[-1]])
    if len(chain) != len(nodes):
        raise NotSupportedError("the captured step's nodes are not one chain; use eager triggers")
    return chain


def _counted(driver: CudaDriver, chain: list[int], with_copies: bool) -> list[int]:
    kinds = _COUNTED if with_copies else _COUNTED[:1]
    return [node for node in chain if driver.node_kind(node) in kinds]


def kernel_count(driver: CudaDriver, graph: int, *, with_copies: bool = True) -> int:
    """Kernels of a graph, copies and fills counted with them or not."""
    return len(_counted(driver, chain_of(driver, graph), with_copies))


def insert_triggers(
    driver: CudaDriver,
    graph: int,
    plan: Plan,
    pointer: int,
    *,
    first_sequence: int | None = None,
    placing: Placing = "branch",
) -> int:
    """Insert a plan's triggers; the graph is to be instantiated afterwards.

    Args:
        driver: the CUDA driver.
        graph: the ``cudaGraph_t`` (`torch.cuda.CUDAGraph.raw_cuda_graph`).
        plan: whose kernel indexes count the graph's kernels.
        pointer: where the GPU writes the sequence number.
        first_sequence: number of the plan's first trigger in the keeper's table, if not its own.
        placing: beside the chain of kernels, or within it.

    Returns:
        How many were inserted.

    Raises:
        MismatchError: the graph has another number of kernels than the plan.
        NotSupportedError: the graph is no chain.
    """
    chain = chain_of(driver, graph)
    kernels = _counted(driver, chain, with_copies=True)
    if len(kernels) != plan.kernels:
        # Timelines may or may not count copies and fills; the plan's own number tells.
        bare = _counted(driver, chain, with_copies=False)
        if len(bare) != plan.kernels:
            raise MismatchError(
                f"the captured graph has {len(bare)} kernels ({len(kernels)} with copies and "
                f"fills), and the schedule is for {plan.kernels}; optimize this step's own trace"
            )
        kernels = bare
    edge_into = {edge.target: edge for edge in driver.graph_edges(graph)}
    context = driver.current_context()
    shift = 0
    if first_sequence is not None and plan.triggers:
        shift = first_sequence - plan.triggers[0].sequence
    previous: list[int] = []
    for trigger in plan.triggers:
        node = kernels[trigger.kernel]
        edge = edge_into.get(node)
        after = [] if edge is None else [edge.source]
        if placing == "branch":
            after += previous
        write = driver.add_write_node(graph, after, pointer, trigger.sequence + shift, context)
        previous = [write]
        if placing == "branch":
            continue
        if edge is not None:
            driver.remove_edge(graph, edge)
        driver.add_edge(graph, GraphEdge(write, node))
    return len(plan.triggers)


def triggers_of(
    driver: CudaDriver, graph: int, pointer: int, *, with_copies: bool = True
) -> list[tuple[int, int]]:
    """(kernel index, sequence number) of every trigger in a graph, in the order of their writes.

    Raises:
        NotSupportedError: the graph without its triggers is no chain, or triggers beside it do not
            wait for one another.
    """
    values = _writes(driver, graph, pointer)
    edges = driver.graph_edges(graph)
    before = {write: [edge.source for edge in edges if edge.target == write] for write in values}
    followed = {edge.source for edge in edges if edge.target not in values}
    beside = values.keys() - followed
    kinds = _COUNTED if with_copies else _COUNTED[:1]
    kernels, at = 0, {}
    for node in chain_of(driver, graph, beside):
        kernels += driver.node_kind(node) in kinds
        at[node] = kernels
    found = []
    for write in values:
        # A write within the chain has its own place; one beside it that of the node it waits for.
        places = [at[node] for node in (write, *before[write]) if node in at]
        found.append((max(places, default=0), values[write], write))
    found.sort()
    order = [write for _, _, write in found]
    for earlier, later in itertools.pairwise(order):
        if later in beside and earlier not in before[later]:
            raise NotSupportedError("triggers beside the step's kernels do not follow one another")
    return [(kernel, value) for kernel, value, _ in found]


def _writes(driver: CudaDriver, graph: int, pointer: int) -> dict[int, int]:
    """Nodes that write to ``pointer``, and what they write."""
    found = {}
    for node in driver.graph_nodes(graph):
        if driver.node_kind(node) == NodeKind.BATCH_MEM_OP:
            address, value = driver.write_node_value(node)
            if address == pointer:
                found[node] = value
    return found
