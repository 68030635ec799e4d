"""How JAX is set up before its first use: a compilation cache on disk, and as many host devices as pay."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from steppe.envs.cores import available_cores
from steppe.files.durable import temporary_name

log = logging.getLogger(__name__)

ENVS_PER_SHARD = 256
"""Fewer environments than this on a device, and talking between devices costs more than it brings."""

PLAIN_PRODUCTS = (("xla_cpu_experimental_ynn_fusion_type", ""),)
NO_SHARING = (("xla_cpu_multi_thread_eigen", False),)
WHOLE_LOOPS = (("xla_disable_hlo_passes", "cpu-parallel-task-assigner"),)


def cache_folder() -> Path:
    """Where compiled programs are kept: $STEPPE_CACHE, or the user's cache folder."""
    if given := os.environ.get("STEPPE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "steppe" / "compiled"


def shards_for(num_envs: int, cores: int | None = None) -> int:
    """Over how many host devices that many environments are best spread: a power of two, at most one for each core."""
    cores = cores or available_cores()
    shards = 1
    while shards * 2 <= cores and num_envs // (shards * 2) >= ENVS_PER_SHARD and num_envs % (shards * 2) == 0:
        shards *= 2
    return shards


def let_threads_compute(count: int) -> None:
    """Before JAX is set up: so many threads will call compiled programs at once, which share XLA's worker threads."""
    os.environ.setdefault("NPROC", str(max(1, min(count, available_cores()))))


def xla_threads() -> int:
    """How many threads of XLA share large products, after `prepare_jax`."""
    given = os.environ.get("NPROC", "")
    return int(given) if given.isdecimal() else available_cores()


def keep_off_gpus() -> None:
    """Before JAX is set up, without effect after that: it takes no memory of GPUs, which others will compute on."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def prepare_jax(shards: int = 1, xla_threads: int = 1) -> int:
    """Sets JAX up for training on this many host devices; how many there really are (JAX may be in use already).

    `xla_threads` share large products; small programs take longer if parts of them are handed to another thread.
    """
    os.environ.setdefault("NPROC", str(max(shards, xla_threads)))
    _share_heaps()
    import jax

    _use_cache(jax)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if shards > 1:
        try:
            jax.config.update("jax_num_cpu_devices", shards)
        except RuntimeError:
            log.debug("JAX was in use before the number of host devices could be set")
    devices = jax.devices()
    return min(shards, len(devices)) if devices[0].platform == "cpu" else 1


def jit_for_learning(function: Callable[..., Any], **options: Any) -> Any:
    """Compiled so that XLA's threads share products alone: an update has dozens of small loops over parameters and
    activations, and cutting each of those between two threads takes several times as long as the loop."""
    import jax

    return jax.jit(function, compiler_options=_known(WHOLE_LOOPS), **options)


def jit_for_few(function: Callable[..., Any]) -> Any:
    """Compiled for batches of a few rows, for which XLA's fused matrix products take longer than plain ones."""
    import jax

    return jax.jit(function, compiler_options=_known(PLAIN_PRODUCTS))


def jit_for_threads(function: Callable[..., Any], plain_products: bool = False, **options: Any) -> Any:
    """Compiled for many threads that call it at once: none hands a part of a product over to XLA's worker threads."""
    import jax

    wanted = NO_SHARING + PLAIN_PRODUCTS if plain_products else NO_SHARING
    return jax.jit(function, compiler_options=_known(wanted), **options)


@cache
def _known(options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Options as XLA takes them; nothing where it knows no such option."""
    import jax

    try:
        jax.jit(lambda number: number, compiler_options=dict(options))(0)
    except (jax.errors.JaxRuntimeError, ValueError):
        return {}
    return dict(options)


def _share_heaps() -> None:
    """Makes glibc's threads share two heaps: XLA compiles in many, and their unused room adds up to 130 MB."""
    arena_max = -8  # M_ARENA_MAX in malloc.h
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(arena_max, 2)


def _use_cache(jax: object) -> None:
    config = jax.config  # type: ignore[attr-defined]
    if config.jax_compilation_cache_dir is not None:
        return
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"{folder} is not writable")
    except OSError as error:
        log.warning("compiled programs are not kept: %s", error)
        return
    config.update("jax_compilation_cache_dir", str(folder))
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _write_whole_entries()


def _write_whole_entries() -> None:
    """Makes JAX's cache safe from kills, full disks and other processes that read it at the same time.

    JAX writes an entry in place and never replaces one that exists: one that was cut short would be complained about
    and compiled again in every later run. It offers no public way to change that, so where its inner workings have
    changed, its own way is left as it is.
    """
    try:
        from jax._src.lru_cache import LRUCache
    except ImportError:
        return
    if getattr(LRUCache.put, "is_whole", False):
        return

    def put(self: Any, key: str, value: bytes) -> None:
        path = Path(str(self.path)) / f"{key}-cache"
        temporary = path.with_name(temporary_name(path.name))
        try:
            temporary.write_bytes(value)
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            log.warning("a compiled program could not be kept: %s", error)

    put.is_whole = True  # type: ignore[attr-defined]
    LRUCache.put = put  # type: ignore[method-assign]
