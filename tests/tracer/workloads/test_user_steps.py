"""The user's own scripts and modules: run untouched, kept apart, failures in one line."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
import torch

from clockwright.data.errors import InputError, WorkloadError
from clockwright.tracer import workloads

MODEL = "torch.nn.Linear(8, 4)"


def script(folder: Path, text: str, name: str = "train.py") -> str:
    path = folder / name
    path.write_text("import torch\n" + textwrap.dedent(text), encoding="utf-8")
    return f"{path}:step"


def ops(spec: str, **options: str | int) -> list[str]:
    step = workloads.load(spec, options).capture()
    return [step.works[i.work].op for i in step.items]


@pytest.mark.parametrize(
    "returned",
    [
        "lambda: model(x)",
        "(model, None, lambda: model(x))",
        "workloads.Step(run=lambda: model(x), model=model)",
    ],
)
def test_a_function_may_return_a_callable_a_triple_or_a_step(tmp_path: Path, returned: str) -> None:
    spec = script(
        tmp_path,
        f"""
        from clockwright.tracer import workloads
        def step(device):
            model = {MODEL}.to(device)
            x = torch.randn(2, 8, device=device)
            return {returned}
        """,
    )
    assert ops(spec) == ["aten::addmm"]
    workloads.load(spec).build("cpu").run()


def test_a_function_that_returns_no_step_is_itself_the_step(tmp_path: Path) -> None:
    spec = script(
        tmp_path,
        f"""
        model = {MODEL}
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        def step():
            loss = model(torch.ones(2, 8)).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss.item()
        """,
    )
    assert "aten::addmm" in ops(spec)
    # The module's weights were fake in the capture; a real build has real ones of its own.
    real = workloads.load(spec).build("cpu")
    real.run()
    weight = next(
        m for n, m in sys.modules.items() if n.startswith("_clockwright_script")
    ).model.weight
    assert type(weight.data) is torch.Tensor


def test_a_script_imports_its_own_data_and_optimizer(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("ROWS = 3\n", encoding="utf-8")
    (tmp_path / "optimizer.py").write_text(
        "import torch\ndef make(p): return torch.optim.SGD(p, lr=0.1)\n", encoding="utf-8"
    )
    spec = script(
        tmp_path,
        f"""
        import sys
        import data, optimizer
        assert sys.argv == [__file__], sys.argv
        model = {MODEL}
        opt = optimizer.make(model.parameters())
        def step():
            import data.late
            model(torch.ones(data.ROWS, 8)).sum().backward()
            opt.step()
        """,
    )
    (tmp_path / "data" / "late.py").write_text("", encoding="utf-8")
    path, argv = list(sys.path), list(sys.argv)
    step = workloads.load(spec).capture()
    assert any(w.shapes.startswith("[[4], [3, 8]") for w in step.works)
    assert (sys.path, sys.argv) == (path, argv)


def test_two_scripts_with_a_helper_of_one_name_see_their_own(tmp_path: Path) -> None:
    specs = []
    for rows in (3, 5):
        folder = tmp_path / str(rows)
        folder.mkdir()
        (folder / "helper_of_mine.py").write_text(f"ROWS = {rows}\n", encoding="utf-8")
        specs.append(
            script(
                folder,
                """
                import helper_of_mine
                def step():
                    return torch.ones(helper_of_mine.ROWS) * 2
                """,
            )
        )
    for spec, rows in zip(specs, (3, 5), strict=True):
        shapes = [w.shapes for w in workloads.load(spec).capture().works]
        assert f"[[{rows}]]" in shapes


def test_options_are_passed_by_name_as_numbers(tmp_path: Path) -> None:
    spec = script(tmp_path, "def step(rows, scale=1.0): return lambda: torch.ones(rows) * scale\n")
    step = workloads.load(spec, {"rows": "7", "scale": "0.5"}).capture()
    assert step.options == {"rows": 7, "scale": 0.5}
    assert "[[7]]" in [w.shapes for w in step.works]
    with pytest.raises(InputError, match="no option 'columns'; it takes: rows, scale"):
        workloads.load(spec, {"columns": 7}).capture()


def test_editing_the_script_changes_its_fingerprint(tmp_path: Path) -> None:
    first = workloads.load(script(tmp_path, "def step(): return torch.ones(3) + 1\n")).fingerprint
    again = workloads.load(script(tmp_path, "def step(): return torch.ones(3) + 1\n")).fingerprint
    other = workloads.load(script(tmp_path, "def step(): return torch.ones(4) + 1\n")).fingerprint
    assert first == again != other


def test_a_module_is_found_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "my_workloads"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    script(package, "def step(): return torch.ones(3) + 1\n", "small.py")
    monkeypatch.chdir(tmp_path)
    assert "aten::add" in ops("my_workloads.small:step")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def step(): raise ValueError('no luck')", r"ValueError: no luck \(train.py, line 2\)"),
        ("raise OSError('at import')", r"OSError: at import \(train.py, line 2\)"),
        ("import sys\ndef step(): sys.exit(3)", r"sys.exit\(3\)"),
        ("def step(:", "SyntaxError"),
        (f"def step(): return {MODEL}", "returned a model alone"),
        ("def step(): return (1, 2, lambda: 3)", "the first is a int"),
        ("def step(): return None", "launched no kernel"),
        ("def step():\n    x = torch.ones(4)\n    return x[x > 0]", "depends on data"),
        (
            "n = 0\ndef step():\n    global n\n    n += 1\n    return torch.ones(n) * 2",
            "other kernels from step to step .*then",
        ),
    ],
)  # fmt: skip
def test_a_failing_step_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    spec = script(tmp_path, text)
    path = list(sys.path)
    with pytest.raises(WorkloadError, match=message) as caught:
        workloads.load(spec).capture()
    assert "\n" not in str(caught.value)
    assert sys.path == path


def test_a_missing_function_lists_those_there_are(tmp_path: Path) -> None:
    spec = script(tmp_path, "def one(): pass\ndef two(): pass\n")
    with pytest.raises(InputError, match="no function 'step'; its functions: one, two"):
        workloads.load(spec).capture()


def test_a_real_run_that_raises_is_one_line_too(tmp_path: Path) -> None:
    spec = script(
        tmp_path,
        """
        def step():
            def run():
                raise ValueError("later")
            return run
        """,
    )
    step = workloads.load(spec).build("cpu")
    with pytest.raises(WorkloadError, match=r"ValueError: later \(train.py, line 5\)"):
        step.run()


def test_code_written_for_cuda_is_captured_as_cuda_would_run_it(tmp_path: Path) -> None:
    spec = script(
        tmp_path,
        """
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)).to("cuda")
        opt = torch.optim.AdamW(model.parameters())
        rows = TensorDataset(torch.randn(64, 8), torch.zeros(64, dtype=torch.long))
        batches = iter(DataLoader(rows, batch_size=4, shuffle=True))
        def step():
            x, y = next(batches)
            x, y = x.cuda(), y.to("cuda:0", non_blocking=True)
            opt.zero_grad()
            with torch.autocast("cuda"):
                loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            return loss.item()
        """,
    )
    step = workloads.load(spec).capture()
    found = [step.works[i.work] for i in step.items]
    # CUDA's autocast type is float16, and its softmax is in float32.
    assert {w.dtype for w in found if w.name.startswith("gemm_")} == {"float16"}
    assert {w.dtype for w in found if w.op == "aten::_log_softmax"} == {"float32"}
    # The default optimizer on CUDA is the multi-tensor one, whose step counts stay on the host.
    optimizer = [step.works[i.work].name for i in step.items if i.phase == "optimizer"]
    assert len(optimizer) == 8
    assert all(n.startswith("multi_tensor_apply_kernel") for n in optimizer)
    # The loader's own work (shuffling, collating) is the host's.
    assert found[0].op == "aten::_to_copy"


def test_capturing_leaves_torch_as_it_was(tmp_path: Path) -> None:
    before = (
        torch.amp.autocast_mode.autocast.__init__,
        torch.utils.swap_tensors,
        torch.utils._foreach_utils._get_foreach_kernels_supported_devices(),
        list(torch.utils._foreach_utils._foreach_supported_types),
    )
    with pytest.raises(WorkloadError):
        workloads.load(script(tmp_path, "def step(): raise ValueError")).capture()
    after = (
        torch.amp.autocast_mode.autocast.__init__,
        torch.utils.swap_tensors,
        torch.utils._foreach_utils._get_foreach_kernels_supported_devices(),
        list(torch.utils._foreach_utils._foreach_supported_types),
    )
    assert before == after
    assert type(torch.ones(1)) is torch.Tensor


def test_recomputed_activations_belong_to_the_backward_pass(tmp_path: Path) -> None:
    spec = script(
        tmp_path,
        """
        from torch.utils.checkpoint import checkpoint
        def step():
            pair = lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
            model = torch.nn.ModuleList(pair() for _ in range(2))
            x = torch.ones(2, 8, requires_grad=True)
            def run():
                y = x
                for layer in model:
                    y = checkpoint(layer, y, use_reentrant=False)
                y.sum().backward()
            return model, None, run
        """,
    )
    step = workloads.load(spec).capture()
    forward_again = [
        i for i in step.items if i.phase == "backward" and step.works[i.work].op == "aten::addmm"
    ]
    assert [i.module for i in forward_again] == ["1.0", "0.0"]
    assert [i.layer for i in forward_again] == [1, 0]
