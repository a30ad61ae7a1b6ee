"""The workloads known by name, and how each is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...data.errors import InputError
from .options import MODEL_OPTIONS, OptionValue, resolve_options

if TYPE_CHECKING:
    from .step import Step

__all__ = ["BUILTIN", "Builtin"]


@dataclass(frozen=True)
class Builtin:
    """A workload of our own.

    Attributes:
        name: how users call it.
        family: which of our models it is.
        defaults: option defaults that differ from `MODEL_OPTIONS`.
    """

    name: str
    family: Literal["gpt", "bert"]
    defaults: Mapping[str, OptionValue]

    def resolve(self, given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
        """All options, checked one by one and against each other.

        Raises:
            InputError: an option is unknown, out of range, or does not go with another.
        """
        options = resolve_options(self.name, MODEL_OPTIONS, self.defaults, given)
        if int(options["width"]) % int(options["heads"]):
            raise InputError(
                f"option heads of workload {self.name} must divide the width "
                f"{options['width']}; got {options['heads']}"
            )
        if int(options["sequence"]) > int(options["context"]):
            raise InputError(
                f"option sequence of workload {self.name} must be at most the context "
                f"{options['context']}; got {options['sequence']} (set context too, or shorten it)"
            )
        return options

    def build(self, options: Mapping[str, OptionValue], device: str) -> Step:
        """Build it on ``device`` from resolved options. Loads torch."""
        from .models.bert import Bert
        from .models.gpt import Gpt
        from .training import build_language_step

        model_class = Gpt if self.family == "gpt" else Bert
        return build_language_step(
            lambda: model_class(
                layers=int(options["layers"]),
                width=int(options["width"]),
                heads=int(options["heads"]),
                vocab=int(options["vocab"]),
                context=int(options["context"]),
                dropout=float(options["dropout"]),
            ),
            lambda model, tokens, targets: model(tokens, targets),
            options,
            int(options["vocab"]),
            device,
        )


BUILTIN: dict[str, Builtin] = {
    w.name: w
    for w in (
        # Brown et al. 2020, table 2.1; the head count is explained in models/gpt.py.
        Builtin(
            "gpt3-xl",
            "gpt",
            {"layers": 24, "width": 2_048, "heads": 16, "sequence": 2_048, "context": 2_048},
        ),
        # Radford et al. 2019, the 124 million parameter model.
        Builtin("gpt2", "gpt", {}),
        # Devlin et al. 2018, base, uncased vocabulary.
        Builtin(
            "bert-base",
            "bert",
            {"batch": 8, "sequence": 512, "context": 512, "vocab": 30_522, "dropout": 0.1},
        ),
    )
}
