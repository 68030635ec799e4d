"""Docstrings of fields, read from the source on demand, since most commands do not need them."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from pydantic import AliasChoices, BaseModel
from pydantic.json_schema import GenerateJsonSchema

Json = dict[str, Any]


def sentence_of(model: type[BaseModel], name: str) -> str:
    """A field's description or the docstring under it, "" if it has neither."""
    given = model.model_fields[name].description
    if given is not None:
        return given
    owner = next(each for each in model.__mro__ if name in inspect.get_annotations(each))
    return _docstrings(owner.__module__).get(owner.__qualname__, {}).get(name, "")


def sentence_of_class(module: str, name: str) -> str:
    """The first line of a class's docstring, without importing its module."""
    package, _, file = module.rpartition(".")
    source = files(package).joinpath(f"{file}.py").read_text(encoding="utf-8")
    owner = next(each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == name)
    return (ast.get_docstring(owner) or "").partition("\n")[0]


class DescribedSchema(GenerateJsonSchema):
    """Pydantic's JSON Schema, with every field's sentence as its description."""

    def model_schema(self, schema: Any) -> Json:
        """The schema of one model."""
        found = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        properties = found.get("properties", {})
        for name, field in model.model_fields.items():
            alias = field.validation_alias
            names = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]
            sentence = sentence_of(model, name)
            for written in [each for each in names if each in properties] if sentence else []:
                properties[written]["description"] = sentence
        return found


@functools.cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Class -> field -> docstring, of all classes of a module; empty if its source is not available."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return {}
    return dict(_classes(tree, ""))


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, dict[str, str]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}{child.name}", _fields(child)
            yield from _classes(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(child, f"{prefix}{child.name}.<locals>.")


def _fields(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for pair in itertools.pairwise(node.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found
