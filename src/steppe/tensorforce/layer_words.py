"""Translates TensorForce's networks into today's words."""

from __future__ import annotations

from typing import Any

from steppe.specs.loading.validation import shown
from steppe.tensorforce.translation import Translation, TranslationError

LAYER_NORM_INSTEAD = (
    "batch_normalization is trained as layer_norm, which normalises each observation by itself, since a policy also "
    "acts on one alone"
)
_OLD_OPTIONS = {
    "scope": "TensorFlow's names do not exist here",
    "summary_labels": "metrics are chosen for a whole experiment",
    "weights": "first weights are drawn orthogonally; to begin from others, resume from a checkpoint",
    "return_final_state": "a recurrent layer puts out its features at each timestep",
}
_NOT_HERE = {
    "batch_normalization": (
        'a policy also acts on one observation alone; write {"type": "layer_norm"} in its place, with no other '
        "options, which sees each by itself"
    ),
    "global_pooling": 'use "pool2d" with a window as large as the image, or "flatten"',
}
LAYER_NORM_HAS = {"center": True, "scale": True, "axis": -1}
"""Options of TensorFlow's batch normalisation -> the only values that layer_norm supports."""
WITHOUT_EFFECT = ("momentum", "epsilon")
"""Its options without effect."""


def translate_network(data: Any) -> Translation:
    """A network of today's layers; data that is no network is left for its spec to refuse."""
    if isinstance(data, dict) and data.get("type", "layered") == "layered":
        names = {"layers", "layers_spec"} & data.keys()
        if len(names) == 1 and len(data.keys() - {"type"}) == 1:
            data = data[names.pop()]
    if not isinstance(data, list | tuple):
        return Translation(data)
    layers: list[Any] = []
    notices: tuple[str, ...] = ()
    for index, given in enumerate(data):
        is_branch = isinstance(given, list | tuple)
        try:
            found = translate_network(given) if is_branch else _layer(given)
        except TranslationError as error:
            raise error.below(index) from None
        layers.append(found.data)
        notices = notices or found.notices
    return Translation(layers, notices)


def _layer(data: Any) -> Translation:
    if not isinstance(data, dict) or not isinstance(kind := data.get("type"), str):
        return Translation(data)
    if (kind, data.get("layer")) == ("tf_layer", "batch_normalization"):
        return Translation(_as_layer_norm(data), (LAYER_NORM_INSTEAD,))
    if kind in _NOT_HERE:
        raise TranslationError(f'there is no layer "{kind}"; {_NOT_HERE[kind]}')
    if kind == "tf_layer":
        raise TranslationError(
            "layers of TensorFlow do not exist here; use one of Steppe's, or write your own as a flax module "
            'and name it as {"type": "my_layers:MyLayer"}'
        )
    if ":" in kind or "." in kind or kind == "custom":
        return Translation(data)
    if kind == "dueling" and (more := sorted(data.keys() - {"type", "size"})):
        raise TranslationError(f'the agent makes a dueling layer from its own output layers, so it has no "{more[0]}"')
    if old := next((option for option in _OLD_OPTIONS if option in data), None):
        raise TranslationError(f'"{old}" cannot be honoured: {_OLD_OPTIONS[old]}; leave it out')
    nonlinearity = "name" if kind == "nonlinearity" else "activation"
    return Translation({**data, nonlinearity: _word(data, nonlinearity)} if nonlinearity in data else data)


def _word(layer: dict[str, Any], option: str) -> Any:
    """A nonlinearity that may be null or `{"name": word}`."""
    word = layer[option]
    if not isinstance(word, dict) or "name" not in word:
        return "none" if word is None else word
    if len(word) > 1:
        raise TranslationError(
            'write "none" here and a "nonlinearity" layer after this one, which has these settings',
            option,
            is_joint=True,
        )
    return word["name"]


def _as_layer_norm(data: dict[str, Any]) -> dict[str, Any]:
    """The layer that replaces batch normalisation; raises a TranslationError for options it does not support."""
    for name, value in data.items():
        if name in ("type", "layer", *WITHOUT_EFFECT) or value is None:
            continue
        if name not in LAYER_NORM_HAS:
            known = ", ".join((*LAYER_NORM_HAS, *WITHOUT_EFFECT))
            raise TranslationError(f'"{name}" of batch_normalization is not known; the options are {known}')
        if value != LAYER_NORM_HAS[name]:
            raise TranslationError(
                f'"{name}" of batch_normalization can only be {shown(LAYER_NORM_HAS[name])}, as it is in layer_norm, '
                "which takes its place; leave it out"
            )
    return {"type": "layer_norm"}
