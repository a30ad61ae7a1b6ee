"""Operator, shape, module and phase links, in a profile that torch itself wrote.

No GPU is needed: torch records the host side of a small model on the CPU, and the test puts a
launch and a kernel beside each matrix operator, as the GPU's recorder would.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from clockwright.data.errors import FormatError
from clockwright.tracer.importers import import_file
from clockwright.tracer.importers.links import innermost
from tests.tracer.importers.kineto_files import event, kernel, launch, only, write

# In a process of its own: torch's stack recorder and pytest's tracing do not go together.
RECORD = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.linear(x))

model = torch.nn.Sequential(Block(), Block(), Block())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
with profile(
    activities=[ProfilerActivity.CPU],
    record_shapes=True,
    with_stack=True,
    with_modules=True,
    schedule=schedule(wait=0, warmup=1, active=3),
    on_trace_ready=lambda p: p.export_chrome_trace(sys.argv[1]),
) as profiler:
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        profiler.step()
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "cpu.json"
    subprocess.run([sys.executable, "-c", RECORD, str(path)], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def trace(profile, tmp_path_factory):
    document = json.loads(profile.read_text())
    rows = document["traceEvents"]
    at = max(row["ts"] for row in rows) + 1000
    added, key = [], 10**6
    for row in sorted((r for r in rows if r.get("cat") == "cpu_op"), key=lambda r: r["ts"]):
        if row["name"] not in {"aten::addmm", "aten::mm", "aten::_foreach_add_"}:
            continue
        key, external = key + 1, row["args"]["External id"]
        middle = row["ts"] + row["dur"] / 2
        added.append(launch(key, f"{middle:.3f}", external=external, tid=row["tid"]))
        added.append(
            kernel(f"k {row['name']}", f"{at:.3f}", correlation=key, **{"External id": external})
        )
        at += 10
    assert added
    document["traceEvents"] = [*rows, *map(json.loads, added)]
    path = tmp_path_factory.mktemp("linked") / "gpu.json"
    path.write_text(json.dumps(document))
    return import_file(path)


def test_a_cpu_only_profile_of_torch_says_so(profile):
    with pytest.raises(FormatError, match=r"no GPU kernel.*cpu_op.*ProfilerActivity\.CUDA"):
        import_file(profile)


def test_steps_come_from_torchs_annotations(trace):
    assert trace.steps == 3


def test_kernels_name_their_operator_shapes_and_type(trace):
    signatures = only(trace).signatures
    forward = signatures[signatures["op"] == "aten::addmm"].iloc[0]
    assert forward["shapes"] == "[[8], [4, 8], [8, 8], [], []]"
    assert forward["dtype"] == "float32"


def test_kernels_name_their_phase(trace):
    timeline = only(trace).timeline
    assert set(timeline.loc[timeline["op"] == "aten::addmm", "phase"]) == {"forward"}
    assert set(timeline.loc[timeline["op"] == "aten::mm", "phase"]) == {"backward"}
    foreach = timeline[timeline["op"] == "aten::_foreach_add_"]
    assert set(foreach["phase"]) <= {"optimizer"}


def test_forward_kernels_name_their_module_and_layer(trace):
    timeline = only(trace).timeline
    forward = timeline[timeline["phase"] == "forward"]
    assert [path.split(".")[1] for path in forward["module"]] == ["Block_0", "Block_1", "Block_2"]
    assert all("Linear_" in path for path in forward["module"])
    assert forward["layer"].tolist() == [0, 1, 2]


def test_backward_kernels_name_the_module_they_go_back_to(trace):
    timeline = only(trace).timeline
    backward = timeline[timeline["phase"] == "backward"]
    layers = backward["layer"].tolist()
    # The last block comes first; each has a product for its weight, and most for their input.
    assert layers == sorted(layers, reverse=True)
    assert set(layers) == {0, 1, 2}


def test_external_ids_of_old_files_link_too(tmp_path):
    path = write(
        tmp_path / "t.json",
        event("Operator", "aten::mm", "1.0", "5.0", **{"external id": 4, "Input dims": [[2, 3]]}),
        kernel("a", "10.0", cat="Kernel", **{"external id": 4}),
    )
    trace = only(import_file(path))
    assert trace.timeline["op"].tolist() == ["aten::mm"]
    assert trace.signatures["shapes"].tolist() == ["[[2, 3]]"]


def test_a_kernel_without_an_external_id_takes_its_launchs(tmp_path):
    path = write(
        tmp_path / "t.json",
        event("cpu_op", "aten::mm", "1.0", "5.0", **{"External id": 4}),
        launch(9, "2.0", external=4),
        kernel("a", "10.0", correlation=9),
    )
    assert only(import_file(path)).timeline["op"].tolist() == ["aten::mm"]


def test_the_operator_is_part_of_a_kernels_identity(tmp_path):
    path = write(
        tmp_path / "t.json",
        event("cpu_op", "aten::mm", "1.0", "5.0", **{"External id": 1, "Input Dims": [[2]]}),
        event("cpu_op", "aten::mm", "7.0", "5.0", **{"External id": 2, "Input Dims": [[4]]}),
        kernel("gemm", "10.0", **{"External id": 1}),
        kernel("gemm", "20.0", **{"External id": 2}),
    )
    assert only(import_file(path)).timeline["signature"].tolist() == [0, 1]


def test_an_operators_flops_are_not_given_to_several_kernels(tmp_path):
    op = event("cpu_op", "aten::mm", "1.0", "5.0", **{"External id": 1, "flops": 100})
    both = [kernel(name, f"{at}.0", **{"External id": 1}) for name, at in (("a", 10), ("b", 20))]
    alone = only(import_file(write(tmp_path / "one.json", op, both[0]))).signatures
    shared = only(import_file(write(tmp_path / "two.json", op, *both))).signatures
    assert alone["flops"].tolist() == [100]
    assert shared["flops"].isna().all()


def test_innermost_agrees_with_a_plain_search():
    rng = np.random.default_rng(3)
    scopes = []
    for thread in range(3):
        stack = [(0, 1000)]
        while len(stack) < 40:
            begin, end = stack[rng.integers(len(stack))]
            if end - begin > 4:
                a, b = sorted(rng.integers(begin, end + 1, 2).tolist())
                # Nested or apart, as calls on one thread are.
                if a < b and all(
                    b <= c or a >= d or (c <= a and b <= d) or (a <= c and d <= b) for c, d in stack
                ):
                    stack.append((a, b))
        scopes += [(thread, a, b) for a, b in set(stack)]
    table = np.array(scopes)
    threads, times = rng.integers(0, 4, 500), rng.integers(-5, 1005, 500)
    found, _ = innermost(table, threads, times)
    for row, thread, time in zip(found.tolist(), threads.tolist(), times.tolist(), strict=True):
        around = [(b - a, i) for i, (t, a, b) in enumerate(scopes) if t == thread and a <= time < b]
        if not around:
            assert row == -1
        else:
            assert scopes[row][2] - scopes[row][1] == min(around)[0]
