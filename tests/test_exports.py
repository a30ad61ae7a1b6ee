"""Public names are those in ``__all__``: each exists, has a docstring, and none hides outside."""

import importlib
import inspect
import pkgutil

import pytest

import clockwright

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(clockwright.__path__, "clockwright.")
    if "__main__" not in module.name
)
OPTIONAL = ("lightning", "transformers", "distributed")


def load(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in OPTIONAL:
            pytest.skip(f"needs the optional package {error.name}")
        raise


@pytest.mark.parametrize("name", MODULES)
def test_every_name_in_all_exists_and_is_documented(name):
    module = load(name)
    assert module.__doc__, f"{name} has no docstring"
    for public in getattr(module, "__all__", ()):
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name}.{public} has no docstring"


@pytest.mark.parametrize("folder", ["data", "tracer", "optimizer", "replay"])
def test_a_folder_shows_few_names(folder):
    module = load(f"clockwright.{folder}")
    assert 0 < len(module.__all__) <= 24
    public = {
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(thing) and name != "annotations"
    }
    hidden = public - set(module.__all__) - {"TYPE_CHECKING", "Any"}
    assert not hidden, f"public but not in __all__: {sorted(hidden)}"
