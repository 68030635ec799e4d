"""Tables of settings: each setting's name, type in the words of a JSON file, default and sentence.

`steppe agents`, `steppe layers` and docs/fields.md format the same rows.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AliasChoices, BaseModel, RootModel
from pydantic.fields import FieldInfo

from steppe.specs.describing.docstrings import sentence_of
from steppe.specs.learning.layer_options import Activation
from steppe.specs.running.frequency import Frequency

REQUIRED = "required"
"""The default of a required setting."""
_OTHER_SPELLINGS = re.compile(r"[;.] also(?: spelled)? ((?:`?[\w.]+`?(?:, | or )?)+)\.$", re.IGNORECASE)
"""Matches other names of a setting at the end of its sentence, such as `; also spelled gym_id or type.`"""
Members = dict[str, type[BaseModel]]


class Word(NamedTuple):
    """A piece of a type: plain text, a `value` to be written as it stands, or the `name` of a kind of object."""

    text: str
    role: Literal["text", "value", "name"] = "text"
    name: str = ""
    """The singular of `text`, if it names a kind of object."""


class Row(NamedTuple):
    """One setting."""

    name: str
    type: tuple[Word, ...]
    default: str
    """As JSON, or REQUIRED."""
    sentence: str

    @property
    def plain_type(self) -> str:
        """The type as one text."""
        return "".join(word.text for word in self.type)


def rows(
    model: type[BaseModel], *, without_type: bool = False, spelled: Mapping[str, list[str]] | None = None
) -> list[Row]:
    """A row for each setting; those of a group follow it as group.name, with the group's own defaults.

    `spelled` are further names of settings, added to their sentences.
    """
    found = [row for row in _rows(model, "", None) if not (without_type and row.name == "type")]
    return [row._replace(sentence=_spelled_out(row.sentence, (spelled or {}).get(row.name, []))) for row in found]


def sentence(thing: type) -> str:
    """The first line of a docstring."""
    return (thing.__doc__ or "").strip().partition("\n")[0]


def members(union: Any) -> Members:
    """The models of a tagged union, by their types; those with several are listed under the first."""
    plain = get_args(union)[0] if get_origin(union) is Annotated else union
    return {tags(member)[0]: member for member in get_args(plain)}


def tags(member: type[BaseModel]) -> tuple[str, ...]:
    """The values of `type` that select this member of a tagged union."""
    return get_args(member.model_fields["type"].annotation)


def kinds(model: type[BaseModel]) -> dict[str, Members]:
    """The tagged unions in a model's settings, and in those of their members: name -> members."""
    found: dict[str, Members] = {}
    _gather(model, found)
    return found


def as_written(value: Any) -> Any:
    """A default as the shortest JSON that a user could write: `"adam"` for an optimiser with its own defaults."""
    if isinstance(value, RootModel):
        return as_written(value.root)
    if isinstance(value, BaseModel):
        given = {
            name: as_written(getattr(value, name))
            for name, field in type(value).model_fields.items()
            if field.is_required() or getattr(value, name) != field.get_default(call_default_factory=True)
        }
        if "type" not in type(value).model_fields:
            return given
        kind = getattr(value, "type")  # noqa: B009 - not every model has this attribute
        given.pop("type", None)
        return {"type": kind, **given} if given else kind
    if isinstance(value, Frequency):
        return str(value)
    if isinstance(value, list | tuple):
        return [as_written(each) for each in value]
    return value


def _rows(model: type[BaseModel], prefix: str, group: BaseModel | None) -> Iterator[Row]:
    for name, field in model.model_fields.items():
        if field.exclude:
            continue  # it follows from other settings
        if group is not None:
            default: Any = getattr(group, name)
        elif field.is_required():
            default = None
        else:
            default = field.get_default(call_default_factory=True)
        if _is_group(field):
            yield from _rows(type(default), f"{prefix}{name}.", default)
            continue
        is_required = group is None and field.is_required()
        shown = REQUIRED if is_required else json.dumps(as_written(default), default=str)
        yield Row(f"{prefix}{name}", tuple(_type_of(field)), shown, _described(model, name))


def _is_group(field: FieldInfo) -> bool:
    """Whether a field is a group of settings with defaults, rather than a part of the file of its own."""
    kind = field.annotation
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, RootModel)
    return is_model and not field.is_required()


def _described(model: type[BaseModel], name: str) -> str:
    """The sentence of a setting, with all its other spellings at the end."""
    text = " ".join(sentence_of(model, name).split())
    alias = model.model_fields[name].validation_alias
    if not isinstance(alias, AliasChoices):
        return text
    return _spelled_out(text, [str(choice) for choice in alias.choices[1:]])


def _spelled_out(text: str, names: list[str]) -> str:
    """The sentence with these names at its end, merged with those that it already lists."""
    if not names:
        return text
    own = _OTHER_SPELLINGS.search(text)
    told = re.findall(r"\w[\w.]*\w", own[1].replace(" or ", " ")) if own is not None else []
    every = ", ".join(f"`{name}`" for name in dict.fromkeys([*told, *names]))
    return f"{text[: own.start()] if own is not None else text.removesuffix('.')}. Also spelled {every}."


def _type_of(field: FieldInfo) -> list[Word]:
    if field.discriminator and field.title:
        return [_named(str(field.title), plural=False)]
    return _type(field.annotation, field.metadata)


def _type(annotation: Any, metadata: Any = (), plural: bool = False) -> list[Word]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner, *more = arguments
        title = next((each.title for each in more if isinstance(each, FieldInfo) and each.discriminator), None)
        if title:
            return [_named(title, plural)]
        return _type(inner, [bound for each in more for bound in getattr(each, "metadata", [each])], plural)
    if annotation == Activation:
        return [_named("activation", plural)]
    if origin is Literal:
        return _joined([[Word(json.dumps(choice), "value")] for choice in arguments])
    if origin in (Union, types.UnionType):
        # Null comes last, whatever else there is.
        ordered = sorted(arguments, key=lambda option: option is type(None))
        return _joined([_type(option, metadata, plural) for option in ordered])
    if origin in (list, tuple):
        return [Word("lists of " if plural else "list of "), *_counted(origin, arguments, metadata)]
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        return _type_of(annotation.model_fields["root"])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", annotation.__name__.removesuffix("Spec"))
        return [_named(name.lower(), plural)]
    if annotation is bool:
        return _joined([[Word("true", "value")], [Word("false", "value")]])
    if annotation is type(None):
        return [Word("null", "value")]
    words = {int: "whole number", float: "number", str: "text", Frequency: "frequency"}
    return [Word(words.get(annotation, "object") + ("s" if plural else "") + _bounds(metadata))]


def _counted(origin: Any, arguments: tuple[Any, ...], metadata: Any) -> list[Word]:
    """The type of a list's items, and their number if it is fixed."""
    if origin is list or arguments[-1] is Ellipsis:
        least = next((each.min_length for each in metadata if isinstance(each, MinLen)), None)
        most = next((each.max_length for each in metadata if isinstance(each, MaxLen)), None)
        count = least if least == most else None
    else:
        count = len(arguments)
    return [*([Word(f"{count} ")] if count else []), *_type(arguments[0], plural=True)]


def _named(title: str, plural: bool) -> Word:
    return Word(f"{title}s" if plural else title, "name", title)


def _joined(options: list[list[Word]]) -> list[Word]:
    """The options with "or" between them, each once."""
    joined: list[Word] = []
    for option in {tuple(option): option for option in options}.values():
        joined += [Word(" or "), *option] if joined else option
    return joined


def _bounds(metadata: Any) -> str:
    words = {Ge: "from", Gt: "above", Le: "to", Lt: "below"}
    found = [
        f" {word} {getattr(bound, kind.__name__.lower()):g}"
        for kind, word in words.items()
        for bound in metadata
        if isinstance(bound, kind)
    ]
    return "".join(found)


def _gather(annotation: Any, found: dict[str, Members]) -> None:
    """Adds the tagged unions in an annotation, and those in their members, to `found`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for field in annotation.model_fields.values():
            if field.discriminator and field.title:
                _note(str(field.title), field.annotation, found)
            elif not field.exclude:
                _gather(field.annotation, found)
        return
    if get_origin(annotation) is Annotated:
        for each in get_args(annotation)[1:]:
            if isinstance(each, FieldInfo) and each.discriminator and each.title:
                _note(each.title, annotation, found)
                return
    for argument in get_args(annotation):
        _gather(argument, found)


def _note(title: str, union: Any, found: dict[str, Members]) -> None:
    new = {tag: member for tag, member in members(union).items() if tag not in found.get(title, {})}
    found[title] = found.get(title, {}) | new
    for member in new.values():
        _gather(member, found)
