"""Translates environments named by TensorForce and older versions of gym, with a sentence on each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from steppe.tensorforce.translation import Translation, TranslationError


def translate_environment(data: Any) -> Translation:
    """An environment by its name in gymnasium or Steppe; raises a TranslationError if it is not available."""
    given = {"id": data} if isinstance(data, str) else data
    if not isinstance(given, dict):
        return Translation(data)
    try:
        present, notices = _without_wrapper(dict(given))
        present, more = _with_present_id(present, was_gym_id="gym_id" in given and "id" not in given)
    except ValueError as error:
        raise TranslationError(str(error), is_joint=not isinstance(data, str)) from None
    return Translation(present, (*notices, *more))


class _Renamed(NamedTuple):
    """An environment in today's words, and one sentence for each renamed part."""

    data: dict[str, Any]
    notices: tuple[str, ...] = ()


_SERVE = (
    'run it in a Python that has it with "steppe env serve module:callable", and train with '
    '{"type": "remote", "address": "host:port"}'
)
GONE = {
    "deepmindlab": f"DeepMind Lab has no package for today's Python; {_SERVE}",
    "mazeexplorer": f"MazeExplorer has no package for today's Python; {_SERVE}",
    "mazeexp": f"MazeExplorer has no package for today's Python; {_SERVE}",
    "ple": f"the PyGame Learning Environment has no package for today's Python; {_SERVE}",
    "pygamelearningenvironment": f"the PyGame Learning Environment has no package for today's Python; {_SERVE}",
    "openaiuniverse": "OpenAI Universe was shut down; name a gymnasium environment instead",
    "universe": "OpenAI Universe was shut down; name a gymnasium environment instead",
    "game2048": 'Steppe has no 2048; write it as a gymnasium environment and name it as "module:callable"',
    "openairetro": 'Gym Retro lives on as stable-retro: write {"id": "stable_retro:make", "settings": {"game": ...}}',
    "retro": 'Gym Retro lives on as stable-retro: write {"id": "stable_retro:make", "settings": {"game": ...}}',
    "vizdoom": 'ViZDoom brings gymnasium ids: write {"id": "vizdoom.gymnasium_wrapper:VizdoomBasic-v1"}',
    "opensim": f"OpenSim's osim-rl has no package for today's Python; {_SERVE}",
    "osim": f"OpenSim's osim-rl has no package for today's Python; {_SERVE}",
    "osimenvironment": f"OpenSim's osim-rl has no package for today's Python; {_SERVE}",
    "carla": f"CARLA needs a server of its own; {_SERVE}",
    "carlaenvironment": f"CARLA needs a server of its own; {_SERVE}",
    "unityenv": f"Unity's ML-Agents need a Python of their own; {_SERVE}",
    "pycolabenvironment": f"pycolab speaks another interface; {_SERVE}",
    "dmpycolab": f"pycolab speaks another interface; {_SERVE}",
}
MONITOR = ("monitor", "monitor_safe", "monitor_video")
_LIFE = "steppe.envs.gymnasium.atari:LossOfLife"
_MINIMAL = "steppe.envs.minimal:MinimalTest"


def _without_wrapper(data: dict[str, Any]) -> _Renamed:
    """The `id` and settings for an old `type` and `gym_id`."""
    word = data.get("type", data.get("id") if "gym_id" not in data else None)
    old = _old_name(word) if isinstance(word, str) else ""
    if old in GONE:
        raise ValueError(f'"{word}" cannot be had: {GONE[old]}')
    match old:
        case "openaigym" | "gym":
            return _from_gym(data, str(word))
        case "ale" | "arcadelearningenvironment":
            return _from_ale(data, str(word))
        case "minimaltest":
            return _from_minimal_test(data, str(word))
        case "ue4environment" | "unrealengine":
            return _from_unreal_engine(data, str(word))
        case "remoteenvironment":
            rest = _without(data, "id", "type")
            return _Renamed(_first(rest, "id", "remote"), (_now(str(word), '{"type": "remote"}'),))
    if isinstance(word, str) and word.startswith("tensorforce."):
        raise ValueError(f'"{word}" is no environment that Steppe knows; name a gymnasium id or "module:callable"')
    if "id" in data:
        return _Renamed(data)
    # tfcli wrote both: "type" named the class around gym, "gym_id" the environment.
    name = "gym_id" if "gym_id" in data else "type"
    return _Renamed(_first(_without(data, "gym_id", "type"), "id", data[name]) if name in data else data)


def _old_name(word: str) -> str:
    """`openaigym` for `openai_gym` and for `tensorforce.contrib.openai_gym.OpenAIGym`; "" for other dotted paths."""
    module, _, name = word.rpartition(".")
    if module and not module.startswith("tensorforce"):
        return ""
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


def _from_gym(data: dict[str, Any], word: str) -> _Renamed:
    id = data.get("gym_id", data.get("level", data.get("id") if "type" in data else None))
    if not isinstance(id, str):
        raise ValueError(f'"{word}" needs "gym_id", the name of an environment')
    is_atari = _ATARI.fullmatch(id) is not None or id.startswith("ALE/")
    names = f'{{"id": "{id}", "backend": "gymnasium"}}' if is_atari else f'"{id}" alone'
    notices = [f'environment type "{word}" is no longer needed: {names} names the environment']
    if unused := ", ".join(name for name in MONITOR if data.get(name)):
        notices.append(
            f"{unused} has no effect: every run leaves metrics, a report and a film of one episode in its own folder"
        )
    rest = _shown(_without(data, "id", "type", "gym_id", "level", *MONITOR), "visualize")
    if is_atari:
        # The old class returned whole frames, and old agents preprocess them.
        rest.setdefault("backend", "gymnasium")
    return _Renamed(_first(rest, "id", id), tuple(notices))


def _from_ale(data: dict[str, Any], word: str) -> _Renamed:
    rom = data.get("rom", data.get("level"))
    if not isinstance(rom, str) or not PurePath(rom).stem:
        raise ValueError(f'"{word}" needs "rom", the file of a game, such as "breakout.bin"')
    if data.get("seed") is not None:
        raise ValueError(
            "an environment has no seed of its own; write seed in the experiment, and it follows from that"
        )
    game = "".join(part[:1].upper() + part[1:] for part in PurePath(rom).stem.split("_"))
    id = f"ALE/{game}-v5"
    settings = {
        "frameskip": data.get("frame_skip", 1),
        "repeat_action_probability": data.get("repeat_action_probability", 0.0),
    }
    ends = bool(data.get("loss_of_life_termination", data.get("life_loss_terminal", False)))
    reward = data.get("loss_of_life_reward", -_number(data.get("life_loss_punishment", 0)))
    rest = _without(data, "type", "id", "rom", "level", "seed", "frame_skip", "repeat_action_probability")
    rest = _without(rest, "loss_of_life_termination", "life_loss_terminal", "loss_of_life_reward")
    rest = _shown(_without(rest, "life_loss_punishment"), "display_screen", "watch", "visualize")
    rest = {"backend": "gymnasium"} | rest | {"settings": settings | _object(rest, "settings")}
    if ends or reward:
        lost = {"type": _LIFE, "terminates": ends, "reward": reward}
        rest["wrappers"] = [lost, *rest.get("wrappers", [])]
    return _Renamed(_first(rest, "id", id), (_now(f"{word} with {rom}", f'"{id}"', settings),))


def _from_minimal_test(data: dict[str, Any], word: str) -> _Renamed:
    given = {"specification": data["specification"]} if "specification" in data else {}
    rest = _without(data, "type", "id", "specification")
    rest["settings"] = given | _object(rest, "settings")
    return _Renamed(_first(rest, "id", _MINIMAL), (_now(word, f'"{_MINIMAL}"'),))


def _from_unreal_engine(data: dict[str, Any], word: str) -> _Renamed:
    if "image" in data and not ({"host", "port", "address"} & data.keys()):
        raise ValueError(
            'Steppe does not start the game of "image"; start it yourself and write {"type": "ue4"} with its address'
        )
    notices = [_now(word, '{"type": "ue4"}')]
    if "image" in data:
        notices.append("image has no effect: the game is taken as running at its address")
    rest = _without(data, "id", "type", "image", "remote", "connect")
    return _Renamed(_first(rest, "id", "ue4"), tuple(notices))


def _shown(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """Shows a window of the game if one of `names` asks for it."""
    rest = _without(data, *names)
    if any(data.get(name) for name in names):
        rest = {"backend": "gymnasium"} | rest | {"settings": _object(rest, "settings") | {"render_mode": "human"}}
    return rest


_SUCCESSORS = {
    "Acrobot-v0": "Acrobot-v1",
    "Pendulum-v0": "Pendulum-v1",
    "Blackjack-v0": "Blackjack-v1",
    "CliffWalking-v0": "CliffWalking-v1",
    "FrozenLake-v0": "FrozenLake-v1",
    "FrozenLake8x8-v0": "FrozenLake8x8-v1",
    **{f"Taxi-v{old}": "Taxi-v4" for old in (1, 2, 3)},
    **{f"{name}-v{old}": f"{name}-v3" for name in ("LunarLander", "LunarLanderContinuous") for old in (1, 2)},
    **{f"{name}-v{old}": f"{name}-v3" for name in ("BipedalWalker", "BipedalWalkerHardcore") for old in (1, 2)},
    **{f"CarRacing-v{old}": "CarRacing-v3" for old in (0, 1, 2)},
    **{
        f"{name}-v{old}": f"{name}-v5"
        for name in (
            *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum"),
            *("InvertedPendulum", "Pusher", "Reacher", "Swimmer", "Walker2d"),
        )
        for old in (0, 1, 2, 3)
    },
}
_GAMES = (
    *("Adventure", "AirRaid", "Alien", "Amidar", "Assault", "Asterix", "Asteroids", "Atlantis", "BankHeist"),
    *("BattleZone", "BeamRider", "Berzerk", "Bowling", "Boxing", "Breakout", "Carnival", "Centipede"),
    *("ChopperCommand", "CrazyClimber", "Defender", "DemonAttack", "DoubleDunk", "ElevatorAction", "Enduro"),
    *("FishingDerby", "Freeway", "Frostbite", "Gopher", "Gravitar", "Hero", "IceHockey", "Jamesbond"),
    *("JourneyEscape", "Kangaroo", "Krull", "KungFuMaster", "MontezumaRevenge", "MsPacman", "NameThisGame"),
    *("Phoenix", "Pitfall", "Pong", "Pooyan", "PrivateEye", "Qbert", "Riverraid", "RoadRunner", "Robotank"),
    *("Seaquest", "Skiing", "Solaris", "SpaceInvaders", "StarGunner", "Tennis", "TimePilot", "Tutankham"),
    *("UpNDown", "Venture", "VideoPinball", "WizardOfWor", "YarsRevenge", "Zaxxon"),
)
_ATARI = re.compile(rf"({'|'.join(_GAMES)})(-ram)?(NoFrameskip|Deterministic)?-v([0-4])")


def _with_present_id(data: dict[str, Any], was_gym_id: bool) -> _Renamed:
    """Replaces the ids of removed versions by those of their successors."""
    id = data.get("id")
    if not isinstance(id, str):
        return _Renamed(data)
    if id in _SUCCESSORS:
        return _Renamed(data | {"id": _SUCCESSORS[id]}, (_now(id, f'"{_SUCCESSORS[id]}"'),))
    game = _ATARI.fullmatch(id)
    return _atari(data, game, was_gym_id) if game else _Renamed(data)


def _atari(data: dict[str, Any], game: re.Match[str], was_gym_id: bool) -> _Renamed:
    """Renames `BreakoutNoFrameskip-v4` to `ALE/Breakout-v5` with the settings it had."""
    name, ram, kind, version = game.groups()
    sticky = 0.25 if version == "0" else 0.0
    skipped: Any = {"NoFrameskip": 1, "Deterministic": 3 if name == "SpaceInvaders" else 4, None: [2, 5]}[kind]
    if ram or was_gym_id or data.get("wrappers"):
        data = {"backend": "gymnasium"} | data
    if data.get("backend") == "gymnasium":
        settings = {"frameskip": skipped, "repeat_action_probability": sticky} | ({"obs_type": "ram"} if ram else {})
        remark = "; " + ("its memory is observed" if ram else "whole frames are observed, in colour")
    else:
        # Users of NoFrameskip skipped frames by a wrapper, as the standard preprocessing does.
        settings = {"repeat_action_probability": sticky} | ({"frame_skip": skipped} if kind == "Deterministic" else {})
        remark = "; always 4 frames are skipped, not 2 to 4" if kind is None else ""
    id = f"ALE/{name}-v5"
    notice = _now(game.group(), f'"{id}"', settings) + remark
    return _Renamed(data | {"id": id, "settings": settings | _object(data, "settings")}, (notice,))


def _now(old: str, new: str, settings: Mapping[str, Any] | None = None) -> str:
    """The notice for a new name."""
    given = " and ".join(f"{name} {value}" for name, value in (settings or {}).items())
    return f'environment "{old}" now is {new}' + (f" with {given}" if given else "")


def _first(data: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {name: value} | {key: each for key, each in data.items() if key != name}


def _without(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in names}


def _object(data: dict[str, Any], name: str) -> dict[str, Any]:
    """An object inside the data; other values are left for the spec to refuse."""
    value = data.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object")
    return value


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else 0
