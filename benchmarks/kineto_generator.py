"""Write a Kineto trace of a stated size, shaped like torch.profiler's of a transformer's training.

Not a recording: names, shapes and times are made up, by seed; layout, fields, event order and the
share of each kind of event follow what torch.profiler 2.x writes with shapes, stacks and modules
on. `generate` also returns what is in the file, counted while it is written, so that a reader's
answer can be checked.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Written", "generate"]

_KERNELS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_tn_align8>"
    "(cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_tn_align8::Params)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl("
    "at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const, "
    "std::array<char*, 2ul> >(int, std::array<char*, 2ul>)",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>"
    "(int, float, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, "
    "false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int)",
)
_OPS = ("aten::addmm", "aten::gelu", "aten::native_layer_norm", "aten::_flash_attention_forward")
_HEADER = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150754820096,
      "computeMajor": 9, "computeMinor": 0, "numSms": 132
    }
  ],
  "record_shapes": 1, "with_stack": 1, "with_modules": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1712195000000000000,
  "traceEvents": [
"""
_OPS_A_LAYER = 12


@dataclass
class Written:
    """What a generated file holds."""

    kernels: int = 0
    steps: int = 0
    total_kernel_ns: int = 0
    size_bytes: int = 0


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


class _Step:
    """Writes the events of one training step after another, host times and GPU times running on."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.host_ns = 5_247_611_062_510_414
        self.gpu_ns = self.host_ns + 200_000
        self.external = 0
        self.correlation = 0
        self.python = 0

    def _complete(self, cat: str, name: str, where: tuple[int, int], ns: tuple[int, int]) -> str:
        return (
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {where[0]}, '
            f'"tid": {where[1]},\n    "ts": {_us(ns[0])}, "dur": {_us(ns[1])}'
        )

    def events(self, number: int, layers: int, written: Written) -> Iterator[str]:
        begin = self.host_ns
        for layer in range(layers):
            yield from self._layer(layer, written)
        step = self._complete(
            "user_annotation",
            f"ProfilerStep#{number}",
            (4242, 4242),
            (begin, self.host_ns - begin + 500),
        )
        yield (
            f'{step},\n    "args": {{\n      "External id": {self.external}, "Ev Idx": 0\n'
            "    }\n  }"
        )
        self.host_ns += 1_000

    def _layer(self, layer: int, written: Written) -> Iterator[str]:
        begin = self.host_ns
        for place in range(_OPS_A_LAYER):
            yield from self._op(layer, place, written)
        self.python += 1
        module = self._complete(
            "python_function",
            f"nn.Module: Block_{layer}",
            (4242, 4242),
            (begin, self.host_ns - begin),
        )
        yield (
            f'{module},\n    "args": {{\n      "Python id": {self.python}, '
            f'"Python parent id": 1, "Python module id": {layer}\n    }}\n  }}'
        )

    def _op(self, layer: int, place: int, written: Written) -> Iterator[str]:
        host, name = (4242, 4242), _OPS[place % len(_OPS)]
        self.external += 1
        self.correlation += 1
        begin = self.host_ns
        op = self._complete("cpu_op", name, host, (begin + 200, 14_321))
        yield (
            f'{op},\n    "args": {{\n      "External id": {self.external}, '
            f'"Sequence number": {self.external}, "Fwd thread id": 0, "Record function id": 0, '
            f'"Concrete Inputs": ["", "", "", "1", "1"], '
            f'"Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", ""], '
            f'"Input Strides": [[1], [2048, 1], [1, 2048], [], []], '
            f'"Input Dims": [[{2048 * (1 + place % 3)}], [8192, 2048], '
            f'[2048, {2048 * (1 + place % 3)}], [], []], "Ev Idx": {self.external}\n    }}\n  }}'
        )
        for depth in range(2):
            self.python += 1
            frame = self._complete(
                "python_function",
                f"torch/nn/modules/linear.py({117 + depth}): forward",
                host,
                (begin + depth * 10, 15_900 - depth * 20),
            )
            yield (
                f'{frame},\n    "args": {{\n      "Python parent id": {self.python - 1}, '
                f'"Python id": {self.python}, "Ev Idx": {self.python}\n    }}\n  }}'
            )
        launch = self._complete("cuda_runtime", "cudaLaunchKernel", host, (begin + 4_000, 4_512))
        yield (
            f'{launch},\n    "args": {{\n      "External id": {self.external}, "cbid": 211, '
            f'"correlation": {self.correlation}\n    }}\n  }}'
        )
        yield (
            f'  {{\n    "ph": "s", "id": {self.correlation}, "pid": 4242, "tid": 4242, '
            f'"ts": {_us(begin + 4_000)},\n    "cat": "ac2g", "name": "ac2g"\n  }}'
        )
        yield from self._kernel(layer, place, written)
        self.host_ns = begin + 16_000

    def _kernel(self, layer: int, place: int, written: Written) -> Iterator[str]:
        start = max(self.gpu_ns, self.host_ns + 7_000)
        duration = 1_000 + int(self.random.lognormvariate(9.5, 0.2)) * (1 + place % 5)
        self.gpu_ns = start + duration + self.random.randrange(600, 1_400)
        kernel = self._complete(
            "kernel", _KERNELS[place % len(_KERNELS)], (0, 7), (start, duration)
        )
        yield (
            f'{kernel},\n    "args": {{\n      "External id": {self.external}, "queued": 0, '
            f'"device": 0, "context": 1, "stream": 7, "correlation": {self.correlation}, '
            f'"registers per thread": {32 + 8 * (place % 4)}, "shared memory": {1024 * place}, '
            f'"blocks per SM": 7.757576, "warps per SM": 62.060608, '
            f'"grid": [{128 * (1 + place)}, 1, 1], "block": [{128 << place % 3}, 1, 1], '
            f'"est. achieved occupancy %": 94\n    }}\n  }}'
        )
        yield (
            f'  {{\n    "ph": "f", "id": {self.correlation}, "pid": 0, "tid": 7, '
            f'"ts": {_us(start)},\n    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }}'
        )
        written.kernels += 1
        written.total_kernel_ns += duration


def generate(path: Path, size_bytes: int, steps: int = 5, seed: int = 0) -> Written:
    """Write ``steps`` alike steps, of as many layers as make the file about ``size_bytes`` long.

    A larger recording is one of a larger model, not of more steps: profilers are told to record
    few.
    """
    written = Written(steps=steps)
    probe = sum(len(text) + 2 for text in _Step(seed).events(0, 4, Written()))
    layers = max(1, round(size_bytes * 4 / (steps * probe)))
    step = _Step(seed)
    with path.open("w", encoding="ascii") as file:
        file.write(_HEADER)
        file.write(
            '  {\n    "name": "process_name", "ph": "M", "ts": 5247611062510.414, "pid": 0, '
            '"tid": 0,\n    "args": {\n      "name": "python"\n    }\n  }'
        )
        for number in range(steps):
            for event in step.events(number, layers, written):
                file.write(",\n")
                file.write(event)
        file.write('\n  ],"traceName": "generated.json"\n}\n')
    written.size_bytes = path.stat().st_size
    return written


def main() -> None:
    """``python kineto_generator.py OUT MB``."""
    parser = argparse.ArgumentParser(description=generate.__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("megabytes", type=float)
    arguments = parser.parse_args()
    print(generate(arguments.out, int(arguments.megabytes * 1e6)))


if __name__ == "__main__":
    main()
