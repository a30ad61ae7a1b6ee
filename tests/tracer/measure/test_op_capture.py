"""Operators of a step with arguments of their own, so that each can run again alone."""

import torch

from clockwright.tracer.measure.op_capture import (
    OpCapture,
    clone_arguments,
    make_capture_mode,
    tensor_bytes,
)


def captured():
    model = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    capture = OpCapture()
    with make_capture_mode(capture, "cpu"):
        for _ in range(3):
            y = model(x).relu()
        y.sum().backward()
    return capture, model, x


def test_kinds_are_counted_and_views_left_out():
    capture, _, _ = captured()
    names = {str(op.function): op.count for op in capture.ops}
    assert names["aten.addmm.default"] == 3
    assert names["aten.relu.default"] == 3
    assert not any("aten.t." in name or "detach" in name for name in names)
    assert capture.missed == {}


def test_arguments_are_copies_with_the_steps_values():
    capture, model, x = captured()
    op = next(op for op in capture.ops if "addmm" in str(op.function))
    before = op.args[1].clone()
    x.zero_()
    torch.testing.assert_close(op.args[1], before)
    with torch.no_grad():
        model.weight.zero_()
    assert op.args[2].abs().sum() > 0
    assert op.run().shape == (2, 4)


def test_copies_keep_strides_and_bytes():
    wide = torch.randn(3, 1).expand(3, 5)
    made = clone_arguments([{"a": wide}, (torch.ones(2, 2).t(), 7)])
    assert made[0]["a"].stride() == wide.stride()
    assert made[1][1] == 7
    assert made[1][0].data_ptr() != 0
    assert tensor_bytes(made) == 4 * (15 + 4)
