"""Finds things by name, with what each needs."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from toolwright.failures import UserError, nearest

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered thing: what it is called, what it is, what it must be given to work."""

    name: str
    target: T
    needs: frozenset[str]

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.target).parameters)

    def accepted(self, **candidates: Any) -> dict[str, Any]:
        """Return the candidates that the target's signature takes."""
        return {name: value for name, value in candidates.items() if name in self.parameters}


@cache
def plugins() -> dict[str, dict[str, str]]:
    """What plugins add: `{place: {name: "module:object"}}`.

    A plugin is a module with a table `ADDS` of that form. It is either `plugin.py` in a room of this package,
    or the module that an installed package names as an entry point of the group `toolwright.plugins`.
    """
    here = Path(__file__).parent
    modules = [f"toolwright.{file.parent.name}.plugin" for file in sorted(here.glob("*/plugin.py"))]
    modules += [point.module for point in entry_points(group="toolwright.plugins")]
    added: dict[str, dict[str, str]] = {}
    for module in modules:
        try:
            adds = importlib.import_module(module).ADDS
        except Exception as error:  # somebody else's package: whatever it raises, name it
            raise UserError(
                f"the plugin {module} cannot be used: {type(error).__name__}: {error}; repair or uninstall "
                "its package"
            ) from error
        for place, names in adds.items():
            added.setdefault(place, {}).update(names)
    return added


def added_to(place: str) -> dict[str, str]:
    """References to what plugins add to `place`, by name."""
    return plugins().get(place, {})


class Registry(Generic[T]):
    """Things of one kind, by name.

    A new file in `package` is enough to add one: the module of that name is imported first, and all the
    others only if it does not register the name. Plugins add to the place `plugins`, or to `package`.
    """

    def __init__(self, kind: str, package: str, *, plugins: str | None = None) -> None:
        self.kind = kind
        self.package = package
        self._place = plugins or package
        self._entries: dict[str, Entry[T]] = {}
        self._discovered = False

    def register(self, *names: str, needs: Iterable[str] = ()) -> Callable[[T], T]:
        def add(target: T) -> T:
            for name in names:
                known = self._entries.get(name)
                if known is not None and known.target is not target:
                    raise ValueError(f"two {self.kind}s are called {name!r}: {known.target} and {target}")
                self._entries[name] = Entry(name, target, frozenset(needs))
            return target

        return add

    def get(self, name: str) -> Entry[T]:
        self._load(name)
        if name not in self._entries:
            if ":" in name:
                target = load_object(name)
                if not callable(target):
                    article = "an" if self.kind[0] in "aeiou" else "a"
                    raise UserError(f"{name!r} is not {article} {self.kind}; it is a {type(target).__name__}")
                return Entry(name, target, frozenset(getattr(target, "needs", ())))
            raise UserError(f"unknown {self.kind} {name!r}; known: {', '.join(self.names())}")
        return self._entries[name]

    def names(self) -> list[str]:
        self._discover()
        return sorted({*self._entries, *added_to(self._place)})

    def _load(self, name: str) -> None:
        if name in self._entries or ":" in name:
            return
        if name.isidentifier() and importlib.util.find_spec(f"{self.package}.{name}") is not None:
            importlib.import_module(f"{self.package}.{name}")
        if name not in self._entries and name in added_to(self._place):
            target = load_object(added_to(self._place)[name])
            self._entries.setdefault(name, Entry(name, target, frozenset(getattr(target, "needs", ()))))
        if name not in self._entries:
            self._discover()

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True  # before the imports: a module may ask while it is imported itself
        try:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
        except BaseException:
            self._discovered = False
            raise


def signature_of(target: Callable[..., Any]) -> inspect.Signature:
    """With annotations as types, where they can be resolved."""
    try:
        return inspect.signature(target, eval_str=True)
    except NameError:  # an annotation that only a type checker can resolve: names are checked, types are not
        return inspect.signature(target)


def converted(where: str, annotation: Any, value: Any) -> Any:
    """The value of a setting, called `where`, held to what the parameter that takes it declares."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return value
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        raise UserError(f"{where}={value!r} does not work: {error.errors()[0]['msg']}") from None


def check_settings(
    owner: str,
    parameters: Iterable[inspect.Parameter],
    settings: Mapping[str, Any],
    *,
    prefix: str,
    reserved: Collection[str] = (),
    others: Collection[str] = (),
) -> dict[str, Any]:
    """The settings of `owner`, held to the names, types and ranges of its parameters. Messages name a setting
    by `prefix` and its key. The user cannot set those in `reserved`, and sets `others` elsewhere."""
    parameters = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
    known = {p.name: p for p in parameters if p.name not in reserved and p.kind is not p.VAR_KEYWORD}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    checked = {}
    for key, value in settings.items():
        if key in reserved:
            raise UserError(f"{prefix}{key} is set by the run and cannot be set here")
        if key not in known and not open_ended:
            hint = nearest(key, {*known, *others}) if known or others else "it takes none"
            raise UserError(f"{owner} has no setting {prefix}{key}; {hint}")
        annotation = known[key].annotation if key in known else inspect.Parameter.empty
        checked[key] = converted(f"{prefix}{key}", annotation, value)
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in checked:
            raise UserError(f"{owner} needs the setting {prefix}{key}")
    return checked


IN_PROCESS = "python"  # `python:name`: an object of a script or a notebook, known in this process alone
_in_process: dict[str, Any] = {}


def hold(name: str, target: Any) -> str:
    """Keep an object that no other process can import. `load_object` takes the reference in this one."""
    key, number = name, 2
    while key in _in_process:
        key, number = f"{name}_{number}", number + 1
    _in_process[key] = target
    return f"{IN_PROCESS}:{key}"


def release(reference: str) -> None:
    """Forget an object that was held."""
    _in_process.pop(reference.partition(":")[2], None)


def is_held(reference: str) -> bool:
    return reference.startswith(f"{IN_PROCESS}:")


def load_object(reference: str) -> Any:
    """`path/to/file.py:name` or `package.module:name`, with an error that says which half is wrong."""
    where, _, name = reference.rpartition(":")
    if where == IN_PROCESS:
        if name not in _in_process:
            raise UserError(
                f"{reference!r} is defined in the Python script or notebook that started the run, which this "
                "process cannot import; pass it to toolwright.Trainer again, or name it as "
                "package.module:name"
            )
        return _in_process[name]
    if not where or not name:
        raise UserError(
            f"{reference!r} is not a reference: write path/to/file.py:name or package.module:name"
        )
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where, reference)
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(f"{reference!r}: {where} has no {name!r}; {nearest(name, public)}")
    return getattr(module, name)


def absolute(reference: str) -> str:
    """The reference as it is found from any folder: the path of a file, alone or with `:name`, in full."""
    where, colon, name = reference.rpartition(":") if ".py:" in reference else (reference, "", "")
    return f"{Path(where).expanduser().resolve()}{colon}{name}" if where.endswith(".py") else reference


def short_name(name: str) -> str:
    """A name as it is; a reference such as `path/to/file.py:name` by its file alone, fit for a folder."""
    if is_held(name):
        return name.partition(":")[2]
    return name.rpartition(":")[0].removesuffix(".py").rpartition("/")[2] or name


def _load_module(name: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UserError(f"{reference!r}: no module named {error.name!r} can be imported") from None
        raise


def _load_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    name = f"toolwright_user_{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} cannot be imported as Python")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for the modules that lie beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, UserError | KeyboardInterrupt):
            raise
        raise UserError(f"{path} cannot be imported: {_told(error, path)}") from error
    return module


def _told(error: BaseException, path: Path) -> str:
    """An exception in one line, and the line of the file that led to it."""
    what = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f"{what} (line {lines[-1]})" if lines else what
