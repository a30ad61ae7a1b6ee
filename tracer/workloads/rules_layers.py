"""Operators of layers and losses that CUDA does in kernels of their own, or in several.

Counts an element follow the conventions of rules_pointwise. Sources: PyTorch's
``ATen/native/cuda``: layer_norm_kernel.cu, Embedding.cu, EmbeddingBackwardKernel.cu, SoftMax.cu,
Loss.cu / NLLLoss2d.cu, Indexing.cu, AmpKernels.cu, read at version 2.13 or near it.
"""

from __future__ import annotations

from math import ceil, log2, prod

from .kernel_call import Kernel, OpCall, tensor_bytes
from .multi_tensor import split_launches

__all__ = [
    "concatenate", "dropout", "dropout_backward", "embedding", "embedding_backward", "gather",
    "index_put", "layer_norm", "layer_norm_backward", "nll_loss", "nll_loss_backward",
    "padded_copy", "scan", "softmax", "softmax_backward", "unscale", "update_scale",
]  # fmt: skip

_FEATURE_KERNEL_MOST_INDICES = 3_072
_RADIX_BITS = 8


def layer_norm(call: OpCall) -> list[Kernel]:
    """One kernel reads the row, its mean and variance, and writes it normalised."""
    return [Kernel("vectorized_layer_norm_kernel", 8 * call.out.numel())]


def layer_norm_backward(call: OpCall) -> list[Kernel]:
    """Two kernels: the input's gradient, and gamma's and beta's (a reduction over rows)."""
    grad, data = call.inputs[:2]
    mask = call.arg("output_mask", [True, True, True])
    params = call.outputs[1:]
    both = tensor_bytes(grad) + tensor_bytes(data)
    rows_bytes = call.bytes_read - both - sum(tensor_bytes(t) for t in params)
    kernels = []
    if mask[0]:
        kernels.append(
            Kernel(
                "layer_norm_grad_input_kernel_vectorized",
                12 * data.numel(),
                call.bytes_read,
                tensor_bytes(data),
                elements=data.numel(),
            )
        )
    if mask[1] or mask[2]:
        kernels.append(
            Kernel(
                "GammaBetaBackwardCUDAKernelTemplate",
                4 * data.numel(),
                both + max(rows_bytes, 0),
                sum(tensor_bytes(t) for t in params),
                elements=sum(t.numel() for t in params),
            )
        )
    return kernels


def softmax(call: OpCall) -> list[Kernel]:
    """One kernel: maximum, exponentials and sum, result."""
    name = "softmax_warp_forward" if call.out.shape[-1] <= 1_024 else "cunn_SoftMaxForward"
    return [Kernel(f"{name}<{call.name.strip('_')}>", 20 * call.out.numel())]


def softmax_backward(call: OpCall) -> list[Kernel]:
    """One kernel over gradient and output."""
    name = "softmax_warp_backward" if call.out.shape[-1] <= 1_024 else "cunn_SoftMaxBackward"
    per_element = 12 if "log" in call.name else 4
    return [Kernel(f"{name}<{call.name.strip('_')}>", per_element * call.out.numel())]


def nll_loss(call: OpCall) -> list[Kernel]:
    """One kernel gathers the target's log probability of each row and averages."""
    target = call.inputs[1]
    gathered = target.numel() * call.inputs[0].element_size()
    return [
        Kernel(
            "nll_loss_forward_reduce_cuda_kernel_2d",
            2 * target.numel(),
            tensor_bytes(target) + gathered,
            elements=target.numel(),
        )
    ]


def nll_loss_backward(call: OpCall) -> list[Kernel]:
    """The gradient is filled with zeros, then one element a row is scattered into it."""
    target = call.inputs[2]
    scattered = target.numel() * call.out.element_size()
    return [
        Kernel("vectorized_elementwise_kernel<fill>", 0, 0),
        Kernel(
            "nll_loss_backward_reduce_cuda_kernel_2d",
            target.numel(),
            tensor_bytes(target),
            scattered,
            elements=target.numel(),
        ),
    ]


def embedding(call: OpCall) -> list[Kernel]:
    """One gather: the rows looked up are read, not the table."""
    indices = call.inputs[1]
    return [Kernel("vectorized_gather_kernel", 0, tensor_bytes(indices) + tensor_bytes(call.out))]


def embedding_backward(call: OpCall) -> list[Kernel]:
    """To 3,072 indices: zeros and one kernel. Beyond: a radix sort and sums over segments."""
    grad, indices = call.inputs[:2]
    out = call.out
    count, width = indices.numel(), out.shape[-1]
    index_bytes, grad_bytes = tensor_bytes(indices), tensor_bytes(grad)
    zeros = Kernel("vectorized_elementwise_kernel<fill>", 0, 0, shapes=str([list(out.shape)]))
    if count <= _FEATURE_KERNEL_MOST_INDICES and not call.arg("scale_grad_by_freq", False):
        touched = min(grad_bytes, tensor_bytes(out))
        scatter = Kernel(
            "embedding_backward_feature_kernel",
            grad.numel(),
            index_bytes + grad_bytes + touched,
            touched,
            elements=grad.numel(),
        )
        return [zeros, scatter]

    def on_indices(name: str, reads: int = 1, writes: int = 1) -> Kernel:
        return Kernel(name, count, reads * index_bytes, writes * index_bytes, "int", "int64", count)

    passes = ceil(ceil(log2(max(out.shape[0], 2))) / _RADIX_BITS)
    partial_bytes = count * width * 4
    return [
        on_indices("elementwise_kernel_with_index<arange>", reads=0),
        on_indices("DeviceRadixSortHistogramKernel", writes=0),
        Kernel("DeviceRadixSortExclusiveSumKernel", 256, 2_048 * passes, 2_048 * passes, "int",
               "int64", 256 * passes),
        *[on_indices("DeviceRadixSortOnesweepKernel", 2, 2) for _ in range(passes)],
        zeros,
        Kernel("DeviceCompactInitKernel", 0, 0, 1_024, "none", "int64", 128),
        on_indices("DeviceSelectUniqueByKeySweepKernel", 2),
        on_indices("krn_partials_per_segment"),
        Kernel("DeviceScanInitKernel", 0, 0, 1_024, "none", "int64", 128),
        on_indices("DeviceScanKernel"),
        Kernel("compute_num_of_partial_segments", 1, 24, 8, "int", "int64", 1),
        on_indices("krn_partial_segment_offset", 3),
        Kernel("compute_grad_weight", grad.numel(), 2 * index_bytes + grad_bytes, partial_bytes,
               "fp32", elements=grad.numel()),
        Kernel("sum_and_scatter", grad.numel(), 3 * index_bytes + partial_bytes, grad_bytes,
               "fp32", elements=grad.numel()),
    ]  # fmt: skip


def gather(call: OpCall) -> list[Kernel]:
    """Indexing: what is read is as large as what is written, and the indices."""
    indices = sum(tensor_bytes(t) for t in call.inputs[1:])
    return [Kernel(f"index_kernel<{call.name}>", 0, indices + tensor_bytes(call.out))]


def index_put(call: OpCall) -> list[Kernel]:
    """A scatter: accumulating ones sort their indices first (two passes of a radix sort)."""
    values = call.inputs[-1]
    moved = tensor_bytes(values)
    indices = sum(tensor_bytes(t) for t in call.inputs[1:-1])
    accumulates = bool(call.arg("accumulate", False))
    scatter = Kernel(
        f"index_put_kernel<{call.name.rstrip('_')}>",
        values.numel() if accumulates else 0,
        indices + moved * (2 if accumulates else 1),
        moved,
        elements=values.numel(),
    )
    clone = [] if call.name.endswith("_") else [Kernel("vectorized_elementwise_kernel<copy>")]
    sort = Kernel("DeviceRadixSortOnesweepKernel", 0, 2 * indices, 2 * indices, "int", "int64",
                  prod(call.inputs[1].shape))  # fmt: skip
    return [*clone, *([sort, sort] if accumulates else []), scatter]


def concatenate(call: OpCall) -> list[Kernel]:
    """One batched copy."""
    return [Kernel("CatArrayBatchedCopy", 0)]


def padded_copy(call: OpCall) -> list[Kernel]:
    """A constant fills the result, then the input is copied into its place."""
    moved = tensor_bytes(call.inputs[0])
    return [
        Kernel("vectorized_elementwise_kernel<fill>", 0, 0),
        Kernel("elementwise_kernel<copy>", 0, moved, moved, elements=call.inputs[0].numel()),
    ]


def scan(call: OpCall) -> list[Kernel]:
    """A running sum or product along a dimension, one kernel for short rows."""
    return [Kernel(f"tensor_kernel_scan_innermost_dim<{call.name}>", call.out.numel())]


def update_scale(call: OpCall) -> list[Kernel]:
    """The loss scaler's next scale: one kernel of one thread."""
    return [Kernel("amp_update_scale_cuda_kernel", 2)]


def dropout(call: OpCall) -> list[Kernel]:
    """One fused kernel: random numbers (Philox, about 10 operations each), mask and scaling."""
    return [Kernel("fused_dropout_kernel_vec", 12 * call.out.numel())]


def dropout_backward(call: OpCall) -> list[Kernel]:
    """One masked scaling."""
    return [Kernel("vectorized_elementwise_kernel<masked_scale>", 2 * call.out.numel())]


def unscale(call: OpCall) -> list[Kernel]:
    """The loss scaler's check and unscaling of all gradients, chunked."""
    grads = call.inputs[:-2]  # the last two are the flag and the scale
    size = grads[0].element_size() if grads else 0
    return [
        Kernel(
            "multi_tensor_apply_kernel<non_finite_check_and_unscale>",
            2 * launch.elements,
            size * launch.elements,
            size * launch.elements,
            "fp32",
            elements=launch.elements,
            shapes=f"[1 lists, {launch.tensors} tensors, {launch.elements} elements]",
        )
        for launch in split_launches([g.numel() for g in grads], 1)
    ]
