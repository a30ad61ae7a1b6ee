"""The user's own step: a function in a script or in a module.

A script runs as ``python script.py`` would run it: its folder comes first on ``sys.path`` and
``sys.argv`` names it alone, while it is loaded, built, and stepped, and neither stays behind. Its
``import data`` finds its own ``data``; ours is ``clockwright.data`` and cannot be in the way. It
is loaded under a name of its own, so a ``__main__`` guard does not run. Each load is fresh: what
an earlier load brought into ``sys.modules`` from the user's folder or package is forgotten first,
so a model made on fake tensors at module level never leaks into a real run.

Left out: libraries that a script loads for the first time during a capture stay loaded; one that
makes tensors while it is imported would keep fake ones.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ...data.errors import ClockwrightError, InputError, WorkloadError
from .failures import describe
from .options import OptionValue, free_options
from .step import Step, as_step

__all__ = ["UserFunction"]

# Names our loads brought into sys.modules from the user's own code.
_loaded: set[str] = set()


def _is_users(module: ModuleType, folder: Path, package: str) -> bool:
    name = getattr(module, "__name__", "")
    if name.partition(".")[0] == "clockwright":
        return False
    if package and name.partition(".")[0] == package:
        return True
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    if not isinstance(file, str) or "site-packages" in file or "dist-packages" in file:
        return False
    return Path(file).resolve().is_relative_to(folder)


@dataclass(frozen=True)
class UserFunction:
    """A function the user named, not yet loaded.

    Attributes:
        place: a script's path or a dotted module, as written.
        name: the function.
        folder: what comes first on ``sys.path``.
        script: the script's path, or None for a module.
        source_hash: SHA-256 of the file, so that an edited step has another fingerprint.
    """

    place: str
    name: str
    folder: Path
    script: Path | None
    source_hash: str

    @classmethod
    def find(cls, place: str, name: str) -> UserFunction:
        """Find the file, without running it.

        Raises:
            InputError: no such script or module, or ``name`` is no identifier.
        """
        if not name.isidentifier():
            raise InputError(f"expected a function's name after the colon, got {name!r}")
        if place.endswith(".py") or "/" in place:
            script = Path(place).resolve()
            if not script.is_file():
                raise InputError(f"no script at {place} (looked for {script})")
            digest = hashlib.sha256(script.read_bytes()).hexdigest()
            return cls(place, name, script.parent, script, digest)
        folder = Path.cwd()
        parts = place.split(".")
        if not all(part.isidentifier() for part in parts):
            raise InputError(f"expected package.module:function or script.py:function, got {place}")
        with _path_first(folder):
            # Only the top level: looking for a submodule would already run its package.
            top = importlib.util.find_spec(parts[0])
        if top is None:
            raise InputError(
                f"no module named {parts[0]!r} here or installed; workloads are a known name, "
                "hf:NAME, train.py:step or package.module:step"
            )
        digest = ""
        if len(parts) == 1 and top.origin and Path(top.origin).is_file():
            digest = hashlib.sha256(Path(top.origin).read_bytes()).hexdigest()
        return cls(place, name, folder, None, digest)

    @property
    def spec(self) -> str:
        """As the user wrote it."""
        return f"{self.place}:{self.name}"

    def options(self, given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
        """Options passed by name to the function; numbers in text become numbers.

        Raises:
            InputError: ``device`` is given, which is not an option.
        """
        if "device" in given:
            raise InputError(
                f"workload {self.spec}: device is chosen by the command, not an option"
            )
        return free_options(given)

    def build(self, options: Mapping[str, OptionValue], device: str) -> Step:
        """Load the file and call the function on ``device``.

        Raises:
            InputError: the function is not there, or takes no such option.
            WorkloadError: the user's code raised, or returned no step.
        """
        with self._as_script():
            try:
                function = self._load()
                arguments = self._arguments(function, options, device)
                returned = function(**arguments)
                step = as_step(returned, device, self.spec)
            except ClockwrightError:
                raise
            except SystemExit as error:
                raise WorkloadError(
                    f"workload {self.spec} called sys.exit({error.code!r}) while it was loaded; "
                    'keep what runs the whole script under if __name__ == "__main__"'
                ) from error
            except Exception as error:
                if _needs_data(error):
                    raise
                raise WorkloadError(f"workload {self.spec} failed: {describe(error)}") from error
        if step is None:
            step = Step(run=lambda: function(**arguments), device=device)
        return dataclasses.replace(step, run=self._run_as_script(step.run))

    def _run_as_script(self, run: Callable[[], object]) -> Callable[[], object]:
        def run_as_script() -> object:
            with self._as_script():
                return run()

        return run_as_script

    @contextmanager
    def _as_script(self) -> Iterator[None]:
        argv = sys.argv
        with _path_first(self.folder):
            if self.script is not None:
                sys.argv = [self.place]
            try:
                yield
            finally:
                sys.argv = argv

    def _load(self) -> Callable[..., Any]:
        for name in _loaded:
            sys.modules.pop(name, None)
        _loaded.clear()
        importlib.invalidate_caches()
        before = set(sys.modules)
        package = "" if self.script is not None else self.place.partition(".")[0]
        try:
            module = self._import()
        finally:
            for name in set(sys.modules) - before:
                if _is_users(sys.modules[name], self.folder, package):
                    _loaded.add(name)
        function = getattr(module, self.name, None)
        if not callable(function):
            names = [n for n, v in vars(module).items() if inspect.isfunction(v)]
            raise InputError(
                f"{self.place} has no function {self.name!r}; its functions: "
                f"{', '.join(sorted(names)) or 'none'}"
            )
        return function  # type: ignore[no-any-return]

    def _import(self) -> ModuleType:
        if self.script is None:
            return importlib.import_module(self.place)
        name = f"_clockwright_script_{self.script.stem}"
        spec = importlib.util.spec_from_file_location(name, self.script)
        if spec is None or spec.loader is None:
            raise InputError(f"{self.place} is not a Python script")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickle look a class's module up
        spec.loader.exec_module(module)
        return module

    def _arguments(
        self, function: Callable[..., Any], options: Mapping[str, OptionValue], device: str
    ) -> dict[str, Any]:
        parameters = inspect.signature(function).parameters.values()
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        unknown = [] if takes_all else sorted(set(options) - set(names))
        if unknown:
            accepted = ", ".join(n for n in names if n != "device") or "none"
            raise InputError(
                f"workload {self.spec} takes no option {unknown[0]!r}; it takes: {accepted}"
            )
        given = {"device": device} if takes_all or "device" in names else {}
        return {**given, **options}


def _needs_data(error: Exception) -> bool:
    """Whether fake tensors refused; capture explains these itself."""
    return type(error).__name__ in {"DataDependentOutputException", "DynamicOutputShapeException"}


@contextmanager
def _path_first(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        # The user's code may have changed the list; take out the one we put in, if it is there.
        if entry in sys.path:
            sys.path.remove(entry)
