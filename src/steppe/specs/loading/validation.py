"""Turns pydantic's errors into one sentence: the mistake, the file and the place in it, and the way out."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, RootModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from steppe.errors import SpecError
from steppe.specs.loading.suggestions import did_you_mean, misplaced, quoted

Model = TypeVar("Model", bound=BaseModel)
Steps = tuple[str | int, ...]
"""The path to a value inside a spec: field names and list indices."""


@dataclass(frozen=True)
class Origins:
    """The file or option in which each part was written. All compare equal: origins are no part of a spec's value."""

    source: str = field(default="", compare=False)
    """The file or option in which the whole was written, or ""."""
    path: str = field(default="", compare=False)
    """The path of the whole inside `source`."""
    parts: dict[Steps, tuple[str, str]] = field(default_factory=dict, compare=False)
    """The parts written elsewhere, each with its own source and path."""
    moved: Mapping[Steps, Steps] = field(default_factory=dict, compare=False)
    """From the path of a value to the path at which it was written, if they differ."""

    def with_part(self, steps: Steps, source: str, path: str) -> Origins:
        """The same, except that the part at `steps` was written in `source` at `path`."""
        kept = {known: origin for known, origin in self.parts.items() if known[: len(steps)] != steps}
        return Origins(self.source, self.path, kept | {steps: (source, path)}, self.moved)

    def with_moved(self, moved: Mapping[Steps, Steps]) -> Origins:
        """The same for values that were translated to other paths."""
        return Origins(self.source, self.path, self.parts, moved)

    def below(self, *steps: str | int) -> Origins:
        """The origins of the part at `steps` alone."""
        written = self._written(steps)
        source, path = self._find(written)
        length = len(written)
        parts = {known[length:]: origin for known, origin in self.parts.items() if known[:length] == written}
        parts.pop((), None)
        inner = {
            now[len(steps) :]: then[length:]
            for now, then in self.moved.items()
            if now[: len(steps)] == steps and now != steps and then[:length] == written
        }
        return Origins(source, path, parts, inner)

    def place(self, *steps: str | int) -> str:
        """` in a.json at agent.type`: the middle of an error's sentence."""
        source, path = self._find(self._written(steps))
        return (f" in {source}" if source else "") + (f" at {path}" if path else "")

    def _written(self, steps: Steps) -> Steps:
        for length in range(len(steps), 0, -1):
            if steps[:length] in self.moved:
                return (*self.moved[steps[:length]], *steps[length:])
        return steps

    def _find(self, steps: Steps) -> tuple[str, str]:
        for length in range(len(steps), 0, -1):
            if steps[:length] in self.parts:
                source, path = self.parts[steps[:length]]
                return source, join_path(path, steps[length:])
        return self.source, join_path(self.path, steps)


def validate(
    model: type[Model],
    data: Any,
    *,
    source: str | Origins = "",
    path: str = "",
    options: Mapping[str, str] | None = None,
) -> Model:
    """`data` as a `model`, or one SpecError that names the source, the path in it and the nearest valid word.

    `options` maps fields of the model to their command-line options, for errors about missing fields.
    """
    origins = source if isinstance(source, Origins) else Origins(source, path)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A misspelt field also leaves the right one missing; the error names the misspelling.
        first = next((detail for detail in details if detail["type"] == "extra_forbidden"), details[0])
        sentence = _sentence(model, data, first, origins, options or {})
        more = len({detail["loc"] for detail in details}) - 1
        if more > 0:
            sentence += f" (and {more} more mistake{'s' if more > 1 else ''})"
        raise SpecError(sentence) from None


def unknown_word(
    kind: str, word: str, choices: Iterable[str], *, source: str | Origins = "", path: str = "", listed_by: str = ""
) -> SpecError:
    """The error for a word, found at `path`, that is none of `choices`; the command `listed_by` lists them."""
    choices = list(choices)
    if isinstance(source, Origins):
        place = source.place(*([path] if path else []))
    else:
        place = Origins(source, path).place()
    way_out = did_you_mean(word, choices)
    if not way_out and not listed_by and choices:
        way_out = f"; it must be {quoted(choices)}"
    if listed_by:
        way_out += f' ("{listed_by}" lists them)' if way_out else f'; "{listed_by}" lists them'
    return SpecError(f'unknown {kind} "{word}"{place}{way_out}')


def join_path(path: str, steps: Steps) -> str:
    """`network`, then `(1, "type")`: `network[1].type`."""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def shown(value: Any) -> str:
    """The value as JSON, shortened if it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _sentence(
    model: type[BaseModel], data: Any, detail: ErrorDetails, origins: Origins, options: Mapping[str, str]
) -> str:
    """One pydantic error as one sentence."""
    kind, context = detail["type"], detail.get("ctx", {})
    steps = _without_tags(model, data, detail["loc"], keep_last=kind == "missing")
    expected = _descend(model, detail["loc"])
    if kind == "extra_forbidden":
        word = str(detail["loc"][-1])
        names = list(_field_names(_descend(model, detail["loc"][:-1])))
        way_out = (
            misplaced(word, names)
            or did_you_mean(word, names)
            or (f"; the fields are {', '.join(names)}" if names else "")
        )
        return f'unknown field "{word}"{origins.place(*steps)}{way_out}'
    if kind in ("missing", "union_tag_not_found"):
        word = str(steps[-1]) if kind == "missing" else context["discriminator"].strip("'")
        parent = steps[:-1] if kind == "missing" else steps
        return f'missing field "{word}"{origins.place(*parent)}; {_way_to_give(word, parent, origins, options)}'
    if kind == "union_tag_invalid":
        word, name = context["tag"], context["discriminator"].strip("'")
        choices = list(_tags(expected, name))
        return str(unknown_word(_title(expected), word, choices, source=origins.below(*steps), path=name))
    if kind == "literal_error":
        choices = [choice for option in _options(expected) for choice in get_args(option) if choice is not None]
        way_out = did_you_mean(detail["input"], choices) if isinstance(detail["input"], str) else ""
        listed = ", ".join(json.dumps(choice) for choice in choices)
        way_out = way_out or f"; it must be {'one of ' if len(choices) > 1 else ''}{listed}"
        return f"unknown value {shown(detail['input'])}{origins.place(*steps)}{way_out}"
    # If several fields of one object are wrong together, the error shows none of their values.
    is_joint = kind == "value_error" and isinstance(detail["input"], dict)
    what = "settings" if is_joint else f"value {shown(detail['input'])}"
    return f"wrong {what}{origins.place(*steps)}; {_rule(kind, context, detail['msg'])}"


def _way_to_give(word: str, parent: Steps, origins: Origins, options: Mapping[str, str]) -> str:
    """The end of the error for a missing field."""
    if parent or word not in options:
        return "it has no default, so it must be given"
    return f"{'write it there or ' if origins.source else ''}give it with {options[word]}"


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text in quotes",
    "dict": "an object",
    "model": "an object",
    "list": "a list",
    "tuple": "a list",
    "finite": "a finite number",
}
_BOUNDS = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}
_BOUND_WORDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def _rule(kind: str, context: dict[str, Any], message: str) -> str:
    """The rule that the value breaks."""
    if kind in _BOUNDS:
        bound = context[_BOUNDS[kind]]
        return f"it must be {_BOUND_WORDS[_BOUNDS[kind]]} {int(bound) if bound == int(bound) else bound}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("too_short", "too_long"):
        is_short = kind == "too_short"
        length = context["min_length" if is_short else "max_length"]
        return f"it must have at {'least' if is_short else 'most'} {length} item{'s' if length != 1 else ''}"
    if kind == "string_too_short":
        return "it must not be empty"
    if (base := kind.split("_")[0]) in _TYPES:
        return f"it must be {_TYPES[base]}"
    return message[0].lower() + message[1:]


def _without_tags(model: type[BaseModel], data: Any, location: Steps, keep_last: bool) -> Steps:
    """Pydantic's path to the value without the tags of union members, which are in no file."""
    steps: list[str | int] = []
    for number, step in enumerate(location):
        is_last = number == len(location) - 1
        # A field may be written under another name; its path still helps to find it.
        is_field = number == 0 and step in model.model_fields
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            if not (is_field or (is_last and keep_last)):
                continue
            data = None
        steps.append(step)
    return tuple(steps)


def _descend(annotation: Any, steps: Steps) -> Any:
    """The type that pydantic expects at `steps`, or None if it is unknown."""
    for step in steps:
        annotation = next(_inner(annotation, step), None)
    return annotation


def _inner(annotation: Any, step: str | int) -> Iterator[Any]:
    options = list(_options(annotation))
    models = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
    if len(models) > 1:
        # A member's tag comes before its fields, one of which may have the same name.
        yield from (option for option in models if _is_tag(option, step))
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            for name, info in option.model_fields.items():
                if step in _spellings(name, info):
                    yield _annotated(info)
            if _is_tag(option, step):
                yield option
        elif isinstance(step, int) and get_origin(option) in (list, tuple):
            yield get_args(option)[0]
        elif isinstance(step, str) and get_origin(option) is dict:
            yield get_args(option)[1]


def _is_tag(model: type[BaseModel], step: str | int) -> bool:
    return any(step in get_args(info.annotation) for info in model.model_fields.values())


def _options(annotation: Any) -> Iterator[Any]:
    """The members of a union, without their annotations; a root model stands for its root."""
    if get_origin(annotation) is Annotated:
        yield from _options(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for option in get_args(annotation):
            yield from _options(option)
    elif isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from _options(annotation.model_fields["root"].annotation)
    else:
        yield annotation


def _annotated(info: FieldInfo) -> Any:
    return Annotated[info.annotation, info] if info.annotation is not None else None


def _spellings(name: str, info: FieldInfo) -> set[str]:
    alias = info.validation_alias
    if isinstance(alias, AliasChoices):
        return {name} | {choice for choice in alias.choices if isinstance(choice, str)}
    return {name, alias} if isinstance(alias, str) else {name}


def _field_names(annotation: Any) -> Iterator[str]:
    for option in _options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            yield from option.model_fields


def _tags(annotation: Any, name: str) -> Iterator[str]:
    for option in _options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            yield from get_args(option.model_fields[name].annotation)


def _title(annotation: Any) -> str:
    """The title of a tagged union, such as "layer"."""
    if get_origin(annotation) in (Union, types.UnionType):
        known = [title for title in map(_title, get_args(annotation)) if title != "value"]
        return known[0] if known else "value"
    titles = [info.title for info in get_args(annotation) if isinstance(info, FieldInfo) and info.title]
    return titles[0] if titles else _title(get_args(annotation)[0]) if get_origin(annotation) is Annotated else "value"
