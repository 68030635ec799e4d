"""Sets JAX up before its first use: a compilation cache on disk, and the number of host devices and threads."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from steppe.compat.jax_private import (
    NO_SHARING,
    PLAIN_PRODUCTS,
    WHOLE_LOOPS,
    compiler_options,
    limit_xla_threads,
    write_whole_cache_entries,
    xla_thread_limit,
)
from steppe.envs.cores import available_cores

log = logging.getLogger(__name__)

ENVS_PER_SHARD = 256
"""With fewer environments on a device, communication between the devices costs more than is gained."""


def cache_folder() -> Path:
    """The folder of compiled programs: $STEPPE_CACHE, or the user's cache folder."""
    if given := os.environ.get("STEPPE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "steppe" / "compiled"


def shards_for(num_envs: int, cores: int | None = None) -> int:
    """The number of host devices over which to spread environments: a power of two, at most one for each core."""
    cores = cores or available_cores()
    shards = 1
    while shards * 2 <= cores and num_envs // (shards * 2) >= ENVS_PER_SHARD and num_envs % (shards * 2) == 0:
        shards *= 2
    return shards


def let_threads_compute(count: int) -> None:
    """Limits XLA's worker threads for `count` threads that call compiled programs at once; called before JAX is set
    up."""
    limit_xla_threads(max(1, min(count, available_cores())))


def xla_threads() -> int:
    """How many threads of XLA share large products, after `prepare_jax`."""
    return xla_thread_limit() or available_cores()


def keep_off_gpus() -> None:
    """Leaves the GPUs to other processes; before JAX is set up, without effect after that."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def prepare_jax(shards: int = 1, xla_threads: int = 1) -> int:
    """Sets JAX up for training on `shards` host devices; returns their real number, as JAX may be in use already.

    `xla_threads` threads share large products. Small programs take longer if a part of them goes to another thread.
    """
    limit_xla_threads(max(shards, xla_threads))
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
    """Compiles so that XLA's threads share products alone.

    An update has dozens of small loops over parameters and activations, and dividing such a loop between two threads
    takes several times as long as the loop.
    """
    import jax

    return jax.jit(function, compiler_options=compiler_options(WHOLE_LOOPS), **options)


def jit_for_few(function: Callable[..., Any]) -> Any:
    """Compiles for batches of a few rows, for which XLA's fused matrix products take longer than plain ones."""
    import jax

    return jax.jit(function, compiler_options=compiler_options(PLAIN_PRODUCTS))


def jit_for_threads(function: Callable[..., Any], plain_products: bool = False, **options: Any) -> Any:
    """Compiles for many threads that call it at once: none hands a part of a product to XLA's worker threads."""
    import jax

    wanted = NO_SHARING + PLAIN_PRODUCTS if plain_products else NO_SHARING
    return jax.jit(function, compiler_options=compiler_options(wanted), **options)


def _share_heaps() -> None:
    """Makes glibc's threads share two heaps: XLA compiles in many threads, whose unused memory adds up to 130 MB."""
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
    write_whole_cache_entries()
