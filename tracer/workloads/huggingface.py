"""Hugging Face models by type, from their default configuration: nothing is downloaded.

``hf:llama`` is the configuration class registered for the type ``llama``, with ``layers`` set if
given, and its causal-language-model class, or else its masked one. Weights are random. The
optional dependency is ``transformers``.

Left out: sequence-to-sequence, vision and audio models, whose steps take other inputs; write a
function for those.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...data.errors import InputError
from .options import MODEL_OPTIONS, Option, OptionValue, resolve_options

if TYPE_CHECKING:
    from .step import Step

__all__ = ["build", "resolve"]

_NAMES = (
    "mode", "layers", "batch", "sequence", "precision", "weights", "optimizer", "implementation",
    "accumulate", "clip",
)  # fmt: skip
_OPTIONS: dict[str, Option] = {
    **{name: MODEL_OPTIONS[name] for name in _NAMES},
    "layers": Option("transformer layers; 0 is the configuration's own", 0, least=0, most=1_000),
}
_LAYER_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def _module(name: str) -> Any:
    """Optional at run time and untyped, so it is imported by name."""
    return importlib.import_module(name)


def resolve(name: str, given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """Check that transformers is here and knows the type, and the options.

    Raises:
        InputError: transformers is not installed, the type is unknown, or an option is wrong.
    """
    if importlib.util.find_spec("transformers") is None:
        raise InputError(
            f"workload hf:{name} needs the transformers package, which is not installed; "
            "pip install transformers"
        )
    types = list(_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES)
    if name not in types:
        near = difflib.get_close_matches(name, types, n=5)
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise InputError(
            f"workload hf:{name}: transformers has no model type {name!r}{hint} "
            "(a type such as llama, not a checkpoint's name)"
        )
    return resolve_options(f"hf:{name}", _OPTIONS, {}, given)


def _configure(name: str, options: Mapping[str, OptionValue]) -> Any:
    config = _module("transformers").AutoConfig.for_model(name)
    layers = int(options["layers"])
    if layers:
        field = next((f for f in _LAYER_FIELDS if hasattr(config, f)), None)
        if field is None:
            raise InputError(f"workload hf:{name} has no count of layers to set; leave layers out")
        setattr(config, field, layers)
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", 0)
    if longest and int(options["sequence"]) > longest:
        raise InputError(
            f"option sequence of workload hf:{name} must be at most its {longest} positions; "
            f"got {options['sequence']}"
        )
    config.use_cache = False
    return config


def build(name: str, options: Mapping[str, OptionValue], device: str) -> Step:
    """Build the model's step on ``device``.

    Raises:
        InputError: the type has no language-model class here, or an option does not fit it.
    """
    from .training import build_language_step

    config = _configure(name, options)
    library = _module("transformers")
    factories = (library.AutoModelForCausalLM, library.AutoModelForMaskedLM)
    factory = next((f for f in factories if type(config) in f._model_mapping), None)
    if factory is None:
        raise InputError(f"workload hf:{name} is no language model; write a function for it")
    return build_language_step(
        lambda: factory.from_config(config, attn_implementation="sdpa"),
        # Labels are shifted by the model itself; given as they are, the kernels are the same.
        lambda model, tokens, _targets: model(input_ids=tokens, labels=tokens).loss,
        options,
        int(config.vocab_size),
        device,
    )
