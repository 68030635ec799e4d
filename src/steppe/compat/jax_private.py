"""Private parts of JAX, and flags of XLA that are not documented. Seen in jax and jaxlib 0.10.2."""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

from steppe.files.durable import temporary_name

log = logging.getLogger(__name__)

Options = tuple[tuple[str, Any], ...]

PLAIN_PRODUCTS: Options = (("xla_cpu_experimental_ynn_fusion_type", ""),)
"""Matrix products are not fused with what follows: the fused ones take longer for batches of a few rows."""
NO_SHARING: Options = (("xla_cpu_multi_thread_eigen", False),)
"""No part of a product is handed to XLA's worker threads: for programs that many threads call at once."""
WHOLE_LOOPS: Options = (("xla_disable_hlo_passes", "cpu-parallel-task-assigner"),)
"""XLA's threads share products alone, not small loops: those take several times as long when they are divided."""


@cache
def compiler_options(options: Options) -> dict[str, Any]:
    """The options as `jax.jit` takes them, or none if this XLA does not know them."""
    import jax

    try:
        jax.jit(lambda number: number, compiler_options=dict(options))(0)
    except (jax.errors.JaxRuntimeError, ValueError):
        return {}
    return dict(options)


def limit_xla_threads(count: int) -> None:
    """Bounds the threads of XLA's CPU client; before JAX is set up, and unless NPROC is set already.

    XLA reads NPROC as the number of processors (`tsl::port::MaxParallelism`); JAX has no setting for it.
    """
    os.environ.setdefault("NPROC", str(count))


def xla_thread_limit() -> int | None:
    """The number of threads that `limit_xla_threads` or the user has set."""
    given = os.environ.get("NPROC", "")
    return int(given) if given.isdecimal() else None


def share_gpu_memory(share: float) -> None:
    """Leaves the rest of a GPU's memory to other processes; before JAX is set up, which would take 75% of it."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{share:.2f}")


def write_whole_cache_entries() -> None:
    """Makes JAX's compilation cache safe from kills, full disks and other processes that read it at the same time.

    JAX writes an entry in place and never replaces one that exists: an entry that was cut short would cause a warning
    and a compilation in every later run. There is no public way to change that. Does nothing if JAX has changed inside.
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
