"""Nsight Systems exports, built here with the tables and columns that nsys export writes."""

import sqlite3

import pytest

from clockwright.data.errors import FormatError, InputError
from clockwright.tracer.importers import import_file
from tests.tracer.importers.kineto_files import only

PID, TID = 5 << 24, (5 << 24) + 77
KERNEL = (
    "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, "
    "globalPid INT, demangledName INT, shortName INT, registersPerThread INT, gridX INT, "
    "gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT, staticSharedMemory INT, "
    "dynamicSharedMemory INT, graphNodeId INT"
)
RUNTIME = "start INT, end INT, globalTid INT, correlationId INT, nameId INT"
NVTX = "start INT, end INT, eventType INT, text TEXT, globalTid INT, textId INT"


class Export:
    def __init__(self, path, kernel=KERNEL):
        self.path = path
        self.database = sqlite3.connect(path)
        self.names = {}
        self.database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        for table, columns in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", kernel),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME),
            ("NVTX_EVENTS", NVTX),
            ("TARGET_INFO_GPU", "id INT, name TEXT"),
        ):
            if columns:
                self.database.execute(f"CREATE TABLE {table} ({columns})")

    def string(self, text):
        if text not in self.names:
            self.names[text] = len(self.names) + 1
            self.insert("StringIds", id=self.names[text], value=text)
        return self.names[text]

    def insert(self, table, **row):
        marks = ", ".join("?" * len(row))
        self.database.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values())
        )

    def kernel(self, name, start, duration, *, key=0, stream=7, pid=PID, device=0, **more):
        row = {f"{what}{axis}": 1 for what in ("grid", "block") for axis in "XYZ"}
        row |= {"registersPerThread": 32, "staticSharedMemory": 0, "dynamicSharedMemory": 1024}
        self.insert(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=start + duration,
            deviceId=device,
            streamId=stream,
            correlationId=key,
            globalPid=pid,
            demangledName=self.string(name),
            **(row | more),
        )

    def launch(self, key, start, tid=TID):
        self.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=start + 5,
            globalTid=tid,
            correlationId=key,
            nameId=self.string("cudaLaunchKernel"),
        )

    def range(self, text, start, end, tid=TID, by_id=False):
        self.insert(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=59,
            globalTid=tid,
            text=None if by_id else text,
            textId=self.string(text) if by_id else None,
        )

    def read(self, **options):
        self.database.commit()
        self.database.close()
        return import_file(self.path, **options)


@pytest.fixture
def export(tmp_path):
    return Export(tmp_path / "report.sqlite")


def test_kernels_keep_their_nanoseconds_and_launch_fields(export):
    export.kernel(
        "gemm", 1_000_000_000_000_000_001, 640, gridX=4, blockX=128, dynamicSharedMemory=7
    )
    export.kernel("add", 1_000_000_000_000_000_901, 33, stream=20)
    result = export.read()
    trace = only(result)
    assert result.format == "nsys"
    assert (result.kernels, result.streams, result.total_kernel_ns) == (2, 2, 673)
    assert trace.timeline["start_ns"].tolist() == [0, 900]
    row = trace.signatures.iloc[0]
    assert (row["name"], row["grid"], row["block"]) == ("gemm", "4,1,1", "128,1,1")
    assert (row["shared_bytes"], row["registers"]) == (7, 32)


@pytest.mark.parametrize("by_id", [False, True])
def test_steps_operators_and_shapes_come_from_nvtx(export, by_id):
    for number in range(3):
        at = 10_000 * (number + 1)
        export.range(f"iteration {number}", at, at + 5_000, by_id=by_id)
        export.range("aten::addmm, op_id = 3, sizes = [[8], [4, 8]]", at + 10, at + 90, by_id=by_id)
        export.launch(number, at + 50)
        export.kernel("gemm", at + 600, 100 + number, key=number)
    result = export.read()
    trace = only(result)
    assert (result.steps, len(trace.timeline)) == (3, 1)
    assert trace.timeline["op"].tolist() == ["aten::addmm"]
    assert trace.signatures["shapes"].tolist() == ["[[8], [4, 8]]"]
    assert trace.timeline["launch_ns"].tolist() == [-550]
    assert trace.profile["duration_ns"].tolist() == [101.0]


def test_two_processes_that_both_use_device_0_are_two_ranks(export):
    other = 6 << 24
    for key, (pid, tid) in enumerate(((PID, TID), (other, other + 1))):
        export.range("step 1", 1_000, 9_000, tid=tid)
        export.launch(1, 2_000 + key, tid=tid)
        export.kernel("a", 5_000 + key, 100, key=1, pid=pid)
    result = export.read()
    assert len(result.traces) == 2
    assert (result.kernels, result.streams, result.steps) == (2, 2, 1)
    assert [t.timeline["launch_ns"].tolist() for t in result.traces.values()] == [[-3000], [-3000]]


def test_graph_kernels_are_told_apart_by_node(export):
    for replay, order in enumerate(([1, 2, 3], [1, 3, 2], [1, 2, 3])):
        at = 10_000 * (replay + 1)
        export.range(f"step {replay}", at, at + 5_000)
        export.launch(replay, at + 10)
        for place, node in enumerate(order):
            export.kernel(f"n{node}", at + 100 * (place + 1), 50, key=replay, graphNodeId=node)
    result = export.read()
    assert result.dropped == {}
    assert len(only(result).timeline) == 3


def test_an_older_schema_without_optional_columns_is_read(tmp_path):
    export = Export(
        tmp_path / "old.sqlite", kernel="start INT, end INT, streamId INT, shortName INT"
    )
    export.insert(
        "CUPTI_ACTIVITY_KIND_KERNEL", start=5, end=9, streamId=7, shortName=export.string("k")
    )
    trace = only(export.read())
    assert trace.signatures["name"].tolist() == ["k"]
    assert trace.signatures[["grid", "block", "shared_bytes", "registers"]].isna().all(axis=None)


def test_what_is_no_kernel_is_counted(export):
    export.kernel("a", 5, 10)
    export.kernel("b", 50, -10)
    export.database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT)")
    export.insert("CUPTI_ACTIVITY_KIND_MEMCPY", start=1, end=2)
    assert export.read().dropped == {
        "memory copy (not a kernel)": 1,
        "kernel with a negative duration": 1,
    }


def test_whole_graph_records_are_counted_and_say_what_to_do(export):
    export.database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT)")
    export.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=1, end=2)
    with pytest.raises(FormatError, match="cuda-graph-trace=node"):
        export.read()


def test_an_export_without_kernels_says_so(export):
    export.range("step 1", 1, 2)
    with pytest.raises(FormatError, match="no GPU kernel"):
        export.read()


def test_a_schema_that_lacks_what_is_needed_is_refused(tmp_path):
    export = Export(tmp_path / "odd.sqlite", kernel="start INT, streamId INT")
    with pytest.raises(FormatError, match="no column end"):
        export.read()


def test_a_damaged_database_is_refused(export):
    export.kernel("a", 5, 10)
    export.database.commit()
    export.database.close()
    data = export.path.read_bytes()
    export.path.write_bytes(data[:1000])
    with pytest.raises(FormatError, match="SQLite"):
        import_file(export.path)


def test_reading_leaves_no_file_behind(export, tmp_path):
    export.kernel("a", 5, 10)
    export.read()
    assert [p.name for p in tmp_path.iterdir()] == ["report.sqlite"]


def test_a_report_that_is_not_exported_says_how(tmp_path):
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"\x00\x01binary")
    with pytest.raises(InputError, match="nsys export --type sqlite"):
        import_file(path)
