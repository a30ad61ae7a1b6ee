"""Options of a workload: what may be set, in which range, and their defaults.

Values come as text from the command line or as numbers from Python; each option declares its type
and its range once, here, and a wrong value is one clear error. Torch is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...data.errors import InputError

__all__ = ["MODEL_OPTIONS", "Option", "OptionValue", "free_options", "resolve_options"]

OptionValue = str | int | float | bool


@dataclass(frozen=True)
class Option:
    """One option: a choice of words, or a number within a range.

    Attributes:
        help: what it sets, for messages and help.
        default: its value when not given.
        choices: the words allowed; empty for a number.
        least: least number allowed.
        most: greatest number allowed.
    """

    help: str
    default: OptionValue
    choices: tuple[str, ...] = ()
    least: float = 0
    most: float = 0

    def parse(self, name: str, value: OptionValue, workload: str) -> OptionValue:
        """The value in the option's type.

        Raises:
            InputError: not of the type, out of range, or not among the choices.
        """
        if self.choices:
            word = str(value).strip().lower()
            if word not in self.choices:
                raise InputError(
                    f"option {name} of workload {workload} must be one of "
                    f"{', '.join(self.choices)}; got {value!r}"
                )
            return word
        whole = isinstance(self.default, int)
        kind = "a whole number" if whole else "a number"
        try:
            number = int(str(value)) if whole else float(str(value))
        except ValueError:
            number = float("nan")
        if not self.least <= number <= self.most:
            raise InputError(
                f"option {name} of workload {workload} must be {kind} from {self.least:g} to "
                f"{self.most:g}; got {value!r}"
            )
        return number


MODEL_OPTIONS: dict[str, Option] = {
    "mode": Option("train (forward, backward, optimizer) or infer", "train", ("train", "infer")),
    "layers": Option("transformer layers", 12, least=1, most=1_000),
    "batch": Option("sequences in a micro-batch", 1, least=1, most=65_536),
    "sequence": Option("tokens in a sequence, at most the context", 1_024, least=1, most=1 << 20),
    "precision": Option("type of the matrix products", "bf16", ("bf16", "fp16", "fp32", "tf32")),
    "weights": Option(
        "type of the weights: fp32 (mixed precision, autocast), same (as the precision), or auto "
        "(fp32 to train, same to infer)",
        "auto",
        ("auto", "fp32", "same"),
    ),
    "optimizer": Option("update rule", "adamw", ("adamw", "adam", "sgd")),
    "implementation": Option(
        "how the optimizer runs: fused, foreach, or one kernel a tensor and operation",
        "fused",
        ("fused", "foreach", "loop"),
    ),
    "accumulate": Option("micro-batches in a step", 1, least=1, most=4_096),
    "clip": Option("greatest gradient norm; 0 does not clip", 0.0, least=0, most=1e6),
    "dropout": Option("dropout probability while training", 0.0, least=0, most=0.99),
    "width": Option("model width", 768, least=8, most=1 << 17),
    "heads": Option("attention heads; must divide the width", 12, least=1, most=4_096),
    "vocab": Option("vocabulary (not padded by default)", 50_257, least=2, most=1 << 24),
    "context": Option("positions the model has", 1_024, least=1, most=1 << 20),
}


def resolve_options(
    workload: str,
    declared: Mapping[str, Option],
    defaults: Mapping[str, OptionValue],
    given: Mapping[str, OptionValue],
) -> dict[str, OptionValue]:
    """All options of a workload, in declared order, given ones parsed and checked.

    Raises:
        InputError: an unknown option, or a value out of range.
    """
    unknown = sorted(set(given) - set(declared))
    if unknown:
        raise InputError(
            f"workload {workload} has no option {unknown[0]!r}; known: {', '.join(declared)}"
        )
    return {
        name: option.parse(name, given.get(name, defaults.get(name, option.default)), workload)
        for name, option in declared.items()
    }


def free_options(given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """Options of a user's own function: text that reads as a number becomes one."""
    parsed: dict[str, OptionValue] = {}
    for name, value in sorted(given.items()):
        parsed[name] = value
        if isinstance(value, str):
            for kind in (int, float):
                try:
                    parsed[name] = kind(value)
                except ValueError:
                    continue
                break
    return parsed
