"""Module paths and phases of a step's kernels, in a profile that torch itself wrote on the CPU.

The test puts a launch and a kernel beside each matrix operator, as the GPU's recorder would.
"""

import json
import subprocess
import sys

import pytest

from clockwright.tracer.measure.timeline import module_ranges, read_timeline
from tests.tracer.importers.kineto_files import kernel, launch

# In a process of its own: torch's profiler leaves its state behind.
RECORD = """
import sys
import torch
from clockwright.tracer.measure.timeline import marked_step, module_ranges, profile_to

class Block(torch.nn.Module):
    def __init__(self, refuses=False):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.refuses = refuses

    def forward(self, x):
        if self.refuses:
            raise ValueError("this block takes nothing")
        return torch.relu(self.linear(x))

model = torch.nn.Module()
model.blocks = torch.nn.ModuleList([Block(), Block()])
model.odd = Block(refuses=True)
model.head = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

def step(odd):
    x = torch.randn(4, 8)
    for block in model.blocks:
        x = block(x)
    if odd:
        try:
            model.odd(x)
        except ValueError:
            pass
    model.head(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def body():
    step(False)
    for number in range(3):
        with marked_step(number):
            step(number == 1)

with module_ranges(model):
    profile_to(sys.argv[1], body)
"""
MATRIX = {"aten::addmm", "aten::mm", "aten::_foreach_add_"}


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranges") / "cpu.json"
    subprocess.run([sys.executable, "-c", RECORD, str(path)], check=True, capture_output=True)
    document = json.loads(path.read_text())
    rows = document["traceEvents"]
    at, key = max(row["ts"] for row in rows if "dur" in row) + 1000, 10**6
    added = []
    for row in sorted((r for r in rows if r.get("cat") == "cpu_op"), key=lambda r: r["ts"]):
        if row["name"] in MATRIX:
            key, external = key + 1, row["args"]["External id"]
            middle = row["ts"] + row["dur"] / 2
            added.append(launch(key, f"{middle:.3f}", external=external, tid=row["tid"]))
            added.append(kernel(row["name"], f"{at + 20 * (key % 1000):.3f}", correlation=key,
                                External_id=external))  # fmt: skip
    document["traceEvents"] = rows + [json.loads(text) for text in added]
    path.write_text(json.dumps(document))
    return path, rows


@pytest.fixture(scope="module")
def kernels(profile):
    return read_timeline(profile[0])


def test_forward_kernels_bear_their_modules_path(kernels):
    forward = kernels.kernels[kernels.kernels["op"] == "aten::addmm"]
    assert forward["module"].tolist() == ["blocks.0.linear", "blocks.1.linear", "head"]
    assert forward["layer"].tolist()[:2] == [0, 1]
    assert forward["layer"].isna().tolist() == [False, False, True]
    assert set(forward["phase"]) == {"forward"}


def test_backward_kernels_bear_that_of_the_forward_operator(kernels):
    backward = kernels.kernels[kernels.kernels["op"] == "aten::mm"]
    assert set(backward["phase"]) == {"backward"}
    assert backward["module"].tolist()[0] == "head"
    assert set(backward["module"]) == {"head", "blocks.1.linear", "blocks.0.linear"}


def test_the_optimizers_kernels_are_its_own(kernels):
    found = kernels.kernels[kernels.kernels["op"] == "aten::_foreach_add_"]
    assert len(found) == 1
    assert set(found["phase"]) == {"optimizer"}


def test_a_module_that_raises_closes_its_range(profile, kernels):
    # The step in which one raised has the same kernels with the same modules as the others.
    assert kernels.duration_ns.shape[0] == 3
    assert kernels.odd == ()
    _, rows = profile
    odd = [row for row in rows if row.get("name") == "nn.Module: odd"]
    heads = [row for row in rows if row.get("name") == "nn.Module: head"]
    assert odd and heads
    end = {row["ts"] + row["dur"] for row in odd if row["cat"] == "user_annotation"}
    assert all(min(row["ts"] for row in heads) <= at for at in end)
    assert max(end) < max(row["ts"] for row in heads)


def test_hooks_are_gone_when_a_forward_raised():
    import torch

    class Refusing(torch.nn.Module):
        def forward(self, x):
            raise ValueError("takes nothing")

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Refusing())
    with pytest.raises(ValueError, match="takes nothing"), module_ranges(model):
        model(torch.ones(1, 2))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
