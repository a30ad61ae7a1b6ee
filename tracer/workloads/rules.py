"""The declared table: which kernels CUDA launches for one operator call.

An operator makes none (a view, an allocation), one, or several kernels. Operators seen on a CPU
build under another name stand beside their CUDA kernels. What the table does not know falls back
in order: tagged pointwise by torch, tagged a reduction, in torch's FLOP table, else one kernel
named ``unmapped`` whose bytes are right and whose arithmetic is one operation an element.

- views, ``detach``, ``empty``, ``lift_fresh``: none; no arithmetic. ``_local_scalar_dense``
  (``item()``): none; a copy to the host runs on the copy engine.
- ``addmm``, ``mm``, ``bmm``: one; a bias vector is the GEMM's epilogue.
- ``_scaled_dot_product_flash_attention_for_cpu``: one, CUDA's fused attention. Its backward:
  three (flash attention's own, or row sums in two and one for memory-efficient attention).
- ``native_layer_norm_backward``: two; the input's gradient, and gamma's and beta's.
- ``nll_loss_backward``: two; zeros, scatter.
- ``embedding_dense_backward``: two (zeros, one kernel) up to 3,072 indices; beyond, a radix sort
  and sums over segments.
- ``_fused_adamw_`` and the like, ``_foreach_*``: multi-tensor launches in chunks (multi_tensor).
- elementwise operators, reductions, copies, fills: one each (TensorIterator).
"""

from __future__ import annotations

from collections.abc import Callable

from . import rules_layers, rules_lists, rules_matrix, rules_pointwise
from .kernel_call import Kernel, OpCall

__all__ = ["NO_KERNEL", "kernels_of"]

Rule = Callable[[OpCall], list[Kernel]]

NO_KERNEL = frozenset(
    {
        "detach", "alias", "_unsafe_view", "view", "_reshape_alias", "lift_fresh", "lift",
        "lift_fresh_copy", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
        "resize_", "set_", "_local_scalar_dense", "is_same_size", "sym_size", "sym_stride",
        "sym_numel", "record_stream", "is_pinned", "_pin_memory",
    }
)  # fmt: skip

_ATTENTIONS = (
    "flash_attention_for_cpu",
    "flash_attention",
    "efficient_attention",
    "cudnn_attention",
)

_TABLE: dict[str, Rule] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm"), rules_matrix.gemm),
    "convolution": rules_matrix.convolution,
    "convolution_backward": rules_matrix.convolution_backward,
    **{f"_scaled_dot_product_{a}": rules_matrix.attention_forward for a in _ATTENTIONS},
    **{f"_scaled_dot_product_{a}_backward": rules_matrix.attention_backward for a in _ATTENTIONS},
    "native_layer_norm": rules_layers.layer_norm,
    "_fused_rms_norm": rules_layers.layer_norm,
    "native_layer_norm_backward": rules_layers.layer_norm_backward,
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), rules_layers.softmax),
    **dict.fromkeys(
        ("_softmax_backward_data", "_log_softmax_backward_data"), rules_layers.softmax_backward
    ),
    "nll_loss_forward": rules_layers.nll_loss,
    "nll_loss_backward": rules_layers.nll_loss_backward,
    "embedding": rules_layers.embedding,
    "embedding_dense_backward": rules_layers.embedding_backward,
    **dict.fromkeys(("index", "index_select", "gather", "take"), rules_layers.gather),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), rules_layers.index_put),
    **dict.fromkeys(("cat", "stack"), rules_layers.concatenate),
    "native_dropout": rules_layers.dropout,
    "native_dropout_backward": rules_layers.dropout_backward,
    **dict.fromkeys(
        ("constant_pad_nd", "slice_backward", "select_backward"), rules_layers.padded_copy
    ),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), rules_layers.scan),
    "_amp_update_scale_": rules_layers.update_scale,
    "_amp_foreach_non_finite_check_and_unscale_": rules_layers.unscale,
    **dict.fromkeys(("copy_", "_to_copy", "clone", "contiguous", "repeat"), rules_pointwise.copy),
    **dict.fromkeys(rules_pointwise.FILLS, rules_pointwise.fill),
    **dict.fromkeys(rules_pointwise.REDUCTIONS, rules_pointwise.reduction),
    **dict.fromkeys(rules_lists.FUSED_OPTIMIZERS, rules_lists.fused_optimizer),
}


def _unmapped(call: OpCall) -> list[Kernel]:
    if not call.outputs or call.out.numel() == 0:
        return []
    unit = call.matrix_unit(call.out.dtype) if call.flops else None
    return [Kernel(f"unmapped<{call.op}>", call.flops or call.out.numel(), math=unit)]


def kernels_of(call: OpCall) -> list[Kernel]:
    """The kernels of one call, in launch order; empty where CUDA launches none."""
    rule = _TABLE.get(call.name)
    if rule is not None:
        return rule(call)
    if call.name.startswith("_foreach_"):
        return rules_lists.foreach(call)
    if call.pointwise:
        return rules_pointwise.pointwise(call)
    if call.reduction:
        return rules_pointwise.reduction(call)
    return _unmapped(call)
