"""Binds the keys of `_target_` nodes to the signatures of what they name, without calling anything.

Knows Python signatures and pydantic, nothing of Hydra: it is given plain dicts and lists. Values
are checked against the annotations a yaml value can meet (numbers, text, Literal, Annotated
bounds, containers of those); tensors, protocols and callables are left to the code itself.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from stabledrl.errors import did_you_mean, unknown_key

RESERVED = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}
NUMBERS = (bool, int, float)
UNCHANGED = {*((kind, kind) for kind in NUMBERS), (int, float)}  # as written, as it is read
MISSING = object()  # stands for a mandatory value (`???`) that somebody else has reported


class Borrowed(dict[str, Any]):
    """A dict that stands elsewhere in the configuration and is seen through `${…}`."""


class Fault(NamedTuple):
    """What is wrong, and at which key path."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def locate(dotted: str) -> Any:
    """The object behind `package.module.name`; LookupError with a readable reason otherwise."""
    found: Any = None
    name = ""
    for part in dotted.split("."):
        parent, name = name, f"{name}.{part}".strip(".")
        if found is not None and hasattr(found, part):
            found = getattr(found, part)
            continue
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if f"{name}.".startswith(f"{error.name}."):
                where = f" in {parent}" if parent else ""
                raise LookupError(
                    f"there is no '{part}'{where}{did_you_mean(part, _names(found))}"
                ) from error
            raise LookupError(f"needs the package '{error.name}', not installed") from error
        except Exception as error:
            raise LookupError(f"importing {name} fails: {type(error).__name__}: {error}") from error
    return found


def _names(holder: Any) -> list[str]:
    """Public names in a module or class, submodules included."""
    names = [name for name in dir(holder) if not name.startswith("_")] if holder else []
    return names + [module.name for module in pkgutil.iter_modules(getattr(holder, "__path__", []))]


def walk(path: str, value: Any, given: frozenset[str] = frozenset()) -> Iterator[Fault]:
    """Faults of every `_target_` node at or below `value`.

    given: parameters of the outermost target that its caller supplies.
    """
    if isinstance(value, Borrowed):  # checked where it stands
        return
    if isinstance(value, Mapping) and "_target_" in value:
        yield from _component(path, value, given)
    elif isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            yield from walk(f"{path}.{key}", item)


def construction_fault(path: str, node: Mapping[str, Any]) -> Fault | None:
    """What a pydantic dataclass objects to when built from plain values (`__post_init__`)."""
    try:
        target = locate(node["_target_"])
    except LookupError:
        return None
    settings = {key: value for key, value in node.items() if key not in RESERVED}
    cheap = is_dataclass(target) and hasattr(target, "__pydantic_fields__")
    if not cheap or node.get("_partial_") or _holds(settings, _is_target, _is_missing):
        return None
    try:
        target(**settings)
    except Exception as error:
        return Fault(path, words(error))
    return None


def words(error: BaseException) -> str:
    """What an object objects to when it is built; of pydantic's errors the sentences alone."""
    if isinstance(error, ValidationError):
        return "; ".join(sentence(entry) for entry in error.errors())
    return str(error) or type(error).__name__


def _component(path: str, node: Mapping[str, Any], given: frozenset[str]) -> Iterator[Fault]:
    settings = {key: value for key, value in node.items() if key not in RESERVED}
    try:
        target = locate(str(node["_target_"]))
        signature = inspect.signature(target)
    except LookupError as error:
        yield Fault(f"{path}._target_", f"cannot import '{node['_target_']}': {error}")
        return
    except (TypeError, ValueError):  # not callable, or a builtin without a signature
        if not callable(locate(str(node["_target_"]))):
            yield Fault(f"{path}._target_", f"'{node['_target_']}' is not callable")
        return
    parameters = _bindable(signature, len(node.get("_args_") or []))
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    annotations = _annotations(target, list(parameters))
    for key, value in settings.items():
        where = f"{path}.{key}"
        if _holds(value, _is_target):
            yield from walk(where, value)
        if key in parameters:
            default = parameters[key].default
            as_is = type(value) is type(default) and value == default
            if not as_is and not _holds(value, _is_target, _is_missing):
                yield from value_faults(where, value, annotations.get(key, Any))
        elif not open_ended:
            optional = [name for name, p in parameters.items() if p.default is not p.empty]
            known = optional if node.get("_partial_") else set(parameters) - given
            yield Fault(where, f"{node['_target_']}: {unknown_key(str(key), known)}")
    if not node.get("_partial_"):
        for key, parameter in parameters.items():
            if parameter.default is parameter.empty and key not in settings and key not in given:
                yield Fault(f"{path}.{key}", f"missing, {node['_target_']} requires it")
    if node.get("_target_") in {"hydra.utils.get_method", "hydra.utils.get_object"}:
        try:
            locate(str(settings.get("path")))
        except LookupError as error:
            yield Fault(f"{path}.path", f"cannot import '{settings.get('path')}': {error}")


def _bindable(signature: inspect.Signature, positional: int) -> dict[str, inspect.Parameter]:
    """Parameters that a key can name, less those taken by `_args_`."""
    named = [
        p
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    return {p.name: p for p in named[positional:]}


def _annotations(target: Any, names: list[str]) -> dict[str, Any]:
    """Annotation per parameter, with pydantic field bounds; unreadable ones are left out."""
    fields = getattr(target, "__pydantic_fields__", None)
    if fields:
        return {name: _bounded(field.annotation, field.metadata) for name, field in fields.items()}
    if isinstance(target, type):
        target = target if is_dataclass(target) else inspect.getattr_static(target, "__init__")
    elif inspect.isfunction(getattr(target, "func", None)):  # functools.partial
        target = target.func
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name that exists for type checkers only: read the others one by one
        return _readable_annotations(target, names)


def _bounded(annotation: Any, bounds: list[Any]) -> Any:
    """`Annotated[annotation, *bounds]`."""
    return functools.reduce(lambda kind, bound: Annotated[kind, bound], bounds, annotation)


def _readable_annotations(target: Any, names: list[str]) -> dict[str, Any]:
    module = inspect.getmodule(inspect.unwrap(target))
    readable: dict[str, Any] = {}
    for name in names:
        holder = types.SimpleNamespace(
            __annotations__={name: getattr(target, "__annotations__", {}).get(name, Any)}
        )
        try:
            readable |= typing.get_type_hints(holder, vars(module), include_extras=True)
        except Exception:  # this one stays unchecked
            continue
    return readable


def value_faults(path: str, value: Any, annotation: Any) -> Iterator[Fault]:
    """Faults of one plain value against one annotation; nothing if yaml cannot express the type."""
    adapter = _adapter(annotation)
    if adapter is None:
        return
    try:
        seen = adapter.validate_python(value)
    except ValidationError as error:
        for place, sentence in _sentences(error, value):
            yield Fault(f"{path}{place}", sentence)
        return
    yield from _converted(path, value, seen)


def _converted(path: str, value: Any, seen: Any) -> Iterator[Fault]:
    """Where pydantic read a number out of something else: '3' as 3, 8.0 as 8, true as 1.

    The code is given the value as it stands, so it has to be of the right kind itself; only a float
    may be written without a point.
    """
    if isinstance(value, list) and isinstance(seen, list | tuple):
        for index, (item, read) in enumerate(zip(value, seen, strict=True)):
            yield from _converted(f"{path}[{index}]", item, read)
    elif isinstance(value, Mapping):
        read = seen if isinstance(seen, Mapping) else getattr(seen, "__dict__", {})  # a dataclass
        for key in filter(read.__contains__, value):
            yield from _converted(f"{path}.{key}", value[key], read[key])
    elif type(seen) in NUMBERS and (type(value), type(seen)) not in UNCHANGED:
        yield Fault(f"{path}={value!r}", f"should be of type {type(seen).__name__}")


def _sentences(error: ValidationError, value: Any) -> Iterator[tuple[str, str]]:
    """One place and sentence for a scalar (alternatives joined by 'or'), one per item otherwise."""
    entries = error.errors()
    if isinstance(value, Mapping | list):
        for entry in entries:
            yield f"{_place(entry['loc'], value)}={entry['input']!r}", sentence(entry)
    else:
        yield f"={value!r}", " or ".join(dict.fromkeys(sentence(entry) for entry in entries))


def _place(location: tuple[int | str, ...], value: Any) -> str:
    """Keys and indices of pydantic's location, as `.key` and `[index]`.

    What is in the location and not in the value is pydantic's own: the member of a union it tried.
    """
    place = ""
    for part in location:
        if isinstance(value, list) and isinstance(part, int):
            place, value = f"{place}[{part}]", value[part]
        elif isinstance(value, Mapping) and part in value:
            place, value = f"{place}.{part}", value[part]
    return place


def sentence(entry: Mapping[str, Any]) -> str:
    """pydantic's message as the rest of a sentence that begins with the key."""
    return entry["msg"].replace("Input should be", "should be").removeprefix("Value error, ")


@functools.cache
def _cached_adapter(annotation: Any) -> TypeAdapter[Any] | None:
    try:
        return TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError, AttributeError):
        return None


def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    """A validator for the part of the annotation that a yaml value can meet, None if there is none.

    Members of a union that pydantic does not know (a Trainer's `str | Strategy`) are left out:
    no yaml value can be one.
    """
    if annotation in (Any, inspect.Parameter.empty):
        return None
    if get_origin(annotation) in (Union, types.UnionType):
        plain = [member for member in get_args(annotation) if _adapter(member) is not None]
        if plain in ([], [types.NoneType]) or Any in get_args(annotation):
            return None
        annotation = Union[tuple(plain)]  # noqa: UP007
    try:
        return _cached_adapter(annotation)
    except TypeError:  # an unhashable annotation
        return None


def _is_target(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" in value


def _is_missing(value: Any) -> bool:
    return value is MISSING


def _holds(value: Any, *tests: Any) -> bool:
    """Whether the value or anything inside it passes one of the tests."""
    if any(test(value) for test in tests):
        return True
    if isinstance(value, Mapping):
        return any(_holds(item, *tests) for item in value.values())
    return isinstance(value, list) and any(_holds(item, *tests) for item in value)
