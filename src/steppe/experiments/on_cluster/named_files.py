"""Files of this machine that an experiment names: they are sent to its Pods, or refused before anything is made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from steppe.errors import UserError
from steppe.experiments.on_cluster.user_modules import Content, content_of, files_below, texts_of
from steppe.files import bundles
from steppe.platforms.kubernetes.manifests.rendering import LARGEST_CONFIG_MAP, LARGEST_FILES, PIECE
from steppe.records import demonstrations
from steppe.specs.experiment import ExperimentSpec
from steppe.specs.loading.validation import join_path
from steppe.specs.running.kubernetes import KubernetesSpec

MOUNT = "mount it there under the same path (kubernetes.volumes, kubernetes.volume_mounts)"
SECRET = (
    "put the token into a Secret under the key STEPPE_ENV_TOKEN and name that in kubernetes.env_from_secrets instead, "
    "or mount a Secret under the same path (kubernetes.volumes, kubernetes.volume_mounts)"
)
LONGEST_PATH = 4096


def large_files(spec: ExperimentSpec) -> list[bundles.Packed]:
    """An agent's demonstrations, packed; nothing if Pods have a volume at their path."""
    name = spec.agent.settings.get("demonstrations")
    if not isinstance(name, str) or _is_mounted(name, spec.kubernetes):
        return []
    try:
        path = demonstrations.find(name)
    except UserError as error:
        raise UserError(f"agent.demonstrations cannot go along to the cluster: {error}, or {MOUNT}") from None
    packed = bundles.pack(path, name, PIECE, LARGEST_FILES)
    if packed is None:
        raise UserError(
            f"agent.demonstrations names {path}, which takes more than the {LARGEST_FILES / 1e6:.0f} MB that a cluster "
            f"keeps of such files, even compressed; record fewer timesteps, or {MOUNT}"
        )
    return [packed]


def small_files(spec: ExperimentSpec, folders: list[Path]) -> dict[str, Content]:
    """Path -> content of the files below `folders` that environments, wrappers and layers name by relative paths.

    Pods find them under the same paths, since they work in the folder to which the files are sent.
    """
    found: dict[str, Content] = {}
    for way, text in texts_of(spec):
        if way[0] == "agent" or _is_token(spec, way) or not _may_be_a_path(text) or _is_mounted(text, spec.kubernetes):
            continue
        path = Path(text).expanduser()
        place = next((place for folder in folders if _is_there(place := folder / path)), None)
        if place is None:
            continue
        # As written, without resolving links: Pods look for it by this name.
        name = PurePosixPath(os.path.normpath(path))
        is_inside = not name.is_absolute() and name.parts[:1] not in ((), ("..",))
        if place.is_file():
            _check_file(join_path("", way), text, place, is_inside)
            found[name.as_posix()] = content_of(place)
        elif is_inside and "/" in text:
            found |= _small_folder(name, place)
    return found


def check(spec: ExperimentSpec) -> None:
    """Refuses secrets and TLS files that Pods have not mounted."""
    for field, name, way_out in _secrets(spec):
        if not _is_mounted(name, spec.kubernetes):
            raise UserError(f"{field} names {name}, a file that Pods do not have, and no secret is sent; {way_out}")
    if spec.run_mode == "distributed" and spec.ray.tls is not None:
        raise UserError(
            "ray.tls is for machines whose names are in its certificates, and Pods get their addresses when they "
            "start; leave it out on Kubernetes, where Ray has a token and the cluster's network may encrypt all of it"
        )


def _check_file(field: str, text: str, place: Path, is_inside: bool) -> None:
    if not is_inside:
        raise UserError(
            f"{field} names {text}, a file of this machine that Pods do not have; give a path that begins in the "
            f"project's folder and stays in it, whose file goes along, or {MOUNT}"
        )
    if (size := place.stat().st_size) > LARGEST_CONFIG_MAP:
        raise UserError(
            f"{field} names {text}, which takes {size / 1e6:.1f} MB, and a cluster takes 1 MB of such files; give the "
            "path that it has in an image of your own (kubernetes.image), or in a volume (kubernetes.volumes, "
            "kubernetes.volume_mounts)"
        )


def _small_folder(name: PurePosixPath, place: Path) -> dict[str, Content]:
    """All files of a small folder; a large one may be for output, and is not sent."""
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    if size > LARGEST_CONFIG_MAP:
        return {}
    return {(name / inner).as_posix(): content for inner, content in files_below(place, place).items()}


def _secrets(spec: ExperimentSpec) -> Iterator[tuple[str, str, str]]:
    """(field, the secret file it names, the way out) for this run mode."""
    mount = "mount a Secret under the same path (kubernetes.volumes, kubernetes.volume_mounts), or leave it out"
    if spec.environment.id == "remote" and isinstance(file := spec.environment.settings.get("token_file"), str):
        yield "environment.token_file", file, SECRET
    if spec.run_mode == "async":
        for field in ("token_file", "tls_cert", "tls_key"):
            if (file := getattr(spec.asynchronous, field)) is not None:
                yield f"asynchronous.{field}", file, mount


def _is_token(spec: ExperimentSpec, way: tuple[str | int, ...]) -> bool:
    """Whether this is a file with a secret."""
    return spec.environment.id == "remote" and way == ("environment", "settings", "token_file")


def _may_be_a_path(text: str) -> bool:
    """A single word is not taken for a path, even if a file has that name."""
    return len(text) < LONGEST_PATH and text.isprintable() and ("/" in text or "." in text)


def _is_there(path: Path) -> bool:
    """False also for texts that cannot be a path."""
    with contextlib.suppress(OSError):
        return path.exists()
    return False


def _is_mounted(name: str, pods: KubernetesSpec) -> bool:
    """Whether Pods have a volume of the user's at this path."""
    places = [PurePosixPath(each["mountPath"]) for each in pods.volume_mounts or ()]
    return any(PurePosixPath(name).is_relative_to(place) for place in places)
