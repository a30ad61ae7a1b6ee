"""A language model, its options and a device made into a `Step`: training or inference.

Mixed precision is what users run: weights and optimizer state in float32, matrix products in
bfloat16 or float16 under autocast, a loss scaler for float16. ``weights=same`` keeps everything
in the low precision instead (no loss scaler, since PyTorch refuses to unscale float16 gradients).
TF32 is set around the step and put back after it, as it is a setting of the process.

Left out: data loading, learning-rate schedules and several GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from .options import OptionValue
from .step import Step

__all__ = ["build_language_step"]

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_RATE = 3e-4


def _weight_type(options: Mapping[str, OptionValue]) -> torch.dtype:
    weights = options["weights"]
    if weights == "auto":
        weights = "fp32" if options["mode"] == "train" else "same"
    return (
        torch.float32 if weights == "fp32" else _TYPES.get(str(options["precision"]), torch.float32)
    )


@contextmanager
def _product_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _make_optimizer(model: nn.Module, options: Mapping[str, OptionValue]) -> torch.optim.Optimizer:
    implementation = options["implementation"]
    form = {"fused": implementation == "fused", "foreach": implementation == "foreach"}
    parameters = model.parameters()
    if options["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, lr=_RATE, momentum=0.9, **form)
    kind = torch.optim.AdamW if options["optimizer"] == "adamw" else torch.optim.Adam
    return kind(parameters, lr=_RATE, betas=(0.9, 0.95), weight_decay=0.1, **form)


def build_language_step(
    make_model: Callable[[], nn.Module],
    loss_of: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor],
    options: Mapping[str, OptionValue],
    vocab: int,
    device: str,
) -> Step:
    """Build model, batch and optimizer on ``device`` and the function that runs one step.

    Args:
        make_model: makes the model on the current default device.
        loss_of: mean loss of tokens and targets, each (B, T) int64.
        options: resolved options (see options.MODEL_OPTIONS).
        vocab: tokens are drawn below it, the same ones in every run.
        device: where to build.
    """
    kind = torch.device(device).type
    precision = str(options["precision"])
    weight_type = _weight_type(options)
    with torch.device(device):
        model = make_model().to(weight_type)
    batch, length = int(options["batch"]), int(options["sequence"])
    drawn = torch.randint(
        vocab, (batch, length + 1), generator=torch.Generator().manual_seed(0), device="cpu"
    ).to(device)
    tokens, targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
    mixed = weight_type == torch.float32 and precision in {"bf16", "fp16"}

    def low_precision() -> AbstractContextManager[Any]:
        return torch.autocast(kind, dtype=_TYPES[precision]) if mixed else nullcontext()

    if options["mode"] == "infer":
        model.eval()

        def infer() -> None:
            with _product_precision(precision), torch.inference_mode(), low_precision():
                model(tokens)

        return Step(infer, model, None, device, batch * length)
    model.train()
    optimizer = _make_optimizer(model, options)
    scaler = torch.amp.GradScaler(kind, enabled=mixed and precision == "fp16")
    accumulate, clip = int(options["accumulate"]), float(options["clip"])

    def train() -> None:
        with _product_precision(precision):
            for _ in range(accumulate):
                with low_precision():
                    loss = loss_of(model, tokens, targets)
                loss = scaler.scale(loss / accumulate if accumulate > 1 else loss)
                loss.backward()  # type: ignore[no-untyped-call]
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)

    return Step(train, model, optimizer, device, batch * length * accumulate)
