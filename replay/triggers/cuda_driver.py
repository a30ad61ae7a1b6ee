"""The few CUDA driver calls that triggers need, through ctypes, behind one class.

Host memory is registered with CUDA and written by a stream (``cuStreamWriteValue32``), or by a node
of a graph (``cuGraphAddBatchMemOpNode``); a captured graph's nodes and edges are read and changed.
PyTorch's own context and streams are used: this class makes neither.

Left out: everything else; in particular no kernel is launched and nothing is allocated here.

Source: CUDA driver API reference, "Memory Management", "Stream Memory Operations", "Graph
Management"; structures from ``cuda.h`` (CUDA 12 and 13, 64-bit Linux).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, Union, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, NamedTuple, Self

from ...data.errors import DeviceError, NoDeviceError, NotSupportedError

__all__ = ["CudaDriver", "GraphEdge", "NodeKind"]

_PORTABLE_AND_MAPPED = 0x01 | 0x02
_ALREADY_REGISTERED = 712
_WRITE_VALUE_32 = 2


class NodeKind:
    """``CUgraphNodeType``, the kinds that matter here."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    BATCH_MEM_OP = 12


class _WriteValue(Structure):
    _fields_ = (
        ("operation", c_uint),
        ("address", c_uint64),
        ("value", c_uint64),
        ("flags", c_uint),
        ("alias", c_uint64),
    )


class _MemOp(Union):
    _fields_ = (("operation", c_uint), ("write", _WriteValue), ("pad", c_uint64 * 6))


class _BatchMemOpNodeParams(Structure):
    _fields_ = (
        ("ctx", c_void_p),
        ("count", c_uint),
        ("ops", POINTER(_MemOp)),
        ("flags", c_uint),
    )


class GraphEdge(NamedTuple):
    """One dependency; ``data`` is its ``CUgraphEdgeData`` as a number, 0 for a plain one."""

    source: int
    target: int
    data: int = 0


class _EdgeCall(NamedTuple):
    call: Any
    with_data: bool

    def __call__(self, *args: Any) -> int:
        return int(self.call(*args))


class CudaDriver:
    """The CUDA driver library. Make it with `load`.

    Args:
        library: the loaded ``libcuda``, or something that stands for it.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._write = self._find("cuStreamWriteValue32_v2", "cuStreamWriteValue32")
        self._write.argtypes = [c_void_p, c_uint64, c_uint, c_uint]
        self._write.restype = c_int

    @classmethod
    def load(cls, name: str = "libcuda.so.1") -> Self:
        """Open the driver's library.

        Raises:
            NoDeviceError: there is none.
            NotSupportedError: it is too old to write values from a stream.
        """
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            raise NoDeviceError(f"the CUDA driver ({name}) cannot be loaded: {error}") from error
        return cls(library)

    def register_host_memory(self, address: int, size_bytes: int) -> bool:
        """Make host memory writable by the GPU; False if it was already.

        Raises:
            DeviceError: the driver refused.
        """
        call = self._find("cuMemHostRegister_v2", "cuMemHostRegister")
        code = call(c_void_p(address), c_size_t(size_bytes), c_uint(_PORTABLE_AND_MAPPED))
        if code == _ALREADY_REGISTERED:
            return False
        self._check(code, "registering the shared page with CUDA")
        return True

    def unregister_host_memory(self, address: int) -> None:
        """Undo `register_host_memory`."""
        call = self._find("cuMemHostUnregister")
        self._check(call(c_void_p(address)), "taking the shared page back from CUDA")

    def device_pointer(self, address: int) -> int:
        """The address under which the GPU sees registered host memory."""
        pointer = c_uint64()
        call = self._find("cuMemHostGetDevicePointer_v2", "cuMemHostGetDevicePointer")
        self._check(
            call(byref(pointer), c_void_p(address), c_uint(0)), "mapping the shared page on the GPU"
        )
        return int(pointer.value)

    def stream_write_value(self, stream: int, pointer: int, value: int) -> None:
        """Enqueue the write of a uint32; a node instead, if the stream is being captured.

        Raises:
            DeviceError: the driver refused.
        """
        code = self._write(stream, pointer, value, 0)
        if code:
            self._check(code, "writing a trigger into the stream")

    def graph_nodes(self, graph: int) -> list[int]:
        """Handles of a graph's nodes, in no particular order."""
        call = self._find("cuGraphGetNodes")
        count = c_size_t(0)
        self._check(call(c_void_p(graph), None, byref(count)), "counting a graph's nodes")
        nodes = (c_void_p * count.value)()
        if count.value:
            self._check(call(c_void_p(graph), nodes, byref(count)), "reading a graph's nodes")
        return [int(node) for node in nodes if node]

    def graph_edges(self, graph: int) -> list[GraphEdge]:
        """Every edge, with the data that tells programmatic from plain dependencies."""
        call = self._library_edges("cuGraphGetEdges")
        count = c_size_t(0)
        doing = "reading a graph's edges"
        if call.with_data:
            self._check(call(c_void_p(graph), None, None, None, byref(count)), doing)
        else:
            self._check(call(c_void_p(graph), None, None, byref(count)), doing)
        sources, targets = (c_void_p * count.value)(), (c_void_p * count.value)()
        data = (c_uint64 * count.value)()
        if count.value and call.with_data:
            self._check(call(c_void_p(graph), sources, targets, data, byref(count)), doing)
        elif count.value:
            self._check(call(c_void_p(graph), sources, targets, byref(count)), doing)
        return [
            GraphEdge(int(source or 0), int(target or 0), int(kind))
            for source, target, kind in zip(sources, targets, data, strict=True)
        ]

    def node_kind(self, node: int) -> int:
        """The kind of a node; see `NodeKind`."""
        kind = c_int()
        call = self._find("cuGraphNodeGetType")
        self._check(call(c_void_p(node), byref(kind)), "reading a node's kind")
        return int(kind.value)

    def add_write_node(
        self, graph: int, after: Sequence[int], pointer: int, value: int, context: int
    ) -> int:
        """Add a node that writes a uint32 once the nodes ``after`` have ended; its handle."""
        operation = _MemOp()
        operation.write = _WriteValue(_WRITE_VALUE_32, pointer, value, 0, 0)
        params = _BatchMemOpNodeParams(c_void_p(context), 1, ctypes.pointer(operation), 0)
        handles = (c_void_p * max(len(after), 1))(*after)
        node = c_void_p()
        call = self._find("cuGraphAddBatchMemOpNode")
        code = call(byref(node), c_void_p(graph), handles, c_size_t(len(after)), byref(params))
        self._check(code, "adding a trigger to a graph")
        return int(node.value or 0)

    def write_node_value(self, node: int) -> tuple[int, int]:
        """(pointer, value) of a node that `add_write_node` made."""
        params = _BatchMemOpNodeParams()
        call = self._find("cuGraphBatchMemOpNodeGetParams")
        self._check(call(c_void_p(node), byref(params)), "reading a trigger of a graph")
        write = params.ops[0].write
        return int(write.address), int(write.value) & 0xFFFFFFFF

    def add_edge(self, graph: int, edge: GraphEdge) -> None:
        """Have the edge's target wait for its source."""
        self._edge("cuGraphAddDependencies", graph, edge)

    def remove_edge(self, graph: int, edge: GraphEdge) -> None:
        """Have the edge's target no longer wait for its source."""
        self._edge("cuGraphRemoveDependencies", graph, edge)

    def synchronize(self) -> None:
        """Wait for everything enqueued in the calling thread's context."""
        self._check(self._find("cuCtxSynchronize")(), "waiting for the GPU")

    def current_context(self) -> int:
        """The context of the calling thread, which PyTorch has made.

        Raises:
            DeviceError: there is none yet: use the GPU first.
        """
        context = c_void_p()
        self._check(self._find("cuCtxGetCurrent")(byref(context)), "reading the CUDA context")
        if not context.value:
            raise DeviceError("no CUDA context in this thread yet: use the GPU before replaying")
        return int(context.value)

    def _edge(self, name: str, graph: int, edge: GraphEdge) -> None:
        call = self._library_edges(name)
        sources, targets = (c_void_p * 1)(edge.source), (c_void_p * 1)(edge.target)
        data = [(c_uint64 * 1)(edge.data)] if call.with_data else []
        code = call(c_void_p(graph), sources, targets, *data, c_size_t(1))
        self._check(code, "rewiring a graph around a trigger")

    def _library_edges(self, name: str) -> _EdgeCall:
        # Since CUDA 12.3 an edge has data, and the calls with it a name of their own; the older
        # calls refuse graphs in which any edge has some, as cuBLAS's kernels make on Hopper.
        newer = getattr(self._library, f"{name}_v2", None)
        return _EdgeCall(newer, True) if newer is not None else _EdgeCall(self._find(name), False)

    def _find(self, *names: str) -> Any:
        for name in names:
            found = getattr(self._library, name, None)
            if found is not None:
                return found
        raise NotSupportedError(
            f"the CUDA driver has no {names[0]}; triggers need a driver of CUDA 12 or newer"
        )

    def _check(self, code: int, doing: str) -> None:
        if code:
            name = ctypes.c_char_p()
            describe = getattr(self._library, "cuGetErrorName", None)
            if describe is not None:
                describe(c_int(code), byref(name))
            text = name.value.decode() if name.value else f"CUDA error {code}"
            raise DeviceError(f"{doing} failed: {text}")
