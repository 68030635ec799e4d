"""The machine types of clouds for a number of CPUs, an amount of memory and a kind of GPU."""

from __future__ import annotations

from steppe.errors import UserError
from steppe.specs.loading.suggestions import did_you_mean, quoted
from steppe.specs.running.cluster import ClusterSpec

GOOGLE_DEFAULT, AMAZON_DEFAULT = "e2-standard-4", "m6i.xlarge"
GOOGLE_WHOLE = {
    "nvidia-l4": "g2-standard-*",
    "nvidia-tesla-a100": "a2-highgpu-*",
    "nvidia-a100-80gb": "a2-ultragpu-*",
    "nvidia-h100-80gb": "a3-highgpu-*",
    "nvidia-h100-mega-80gb": "a3-megagpu-*",
}
"""GPUs that Google offers only as part of a machine type."""

_SIZES = {2: "large", 4: "xlarge", 8: "2xlarge", 16: "4xlarge", 32: "8xlarge", 48: "12xlarge", 64: "16xlarge"}
_SIZES |= {96: "24xlarge", 128: "32xlarge"}
_FAMILIES = {2: "c6i", 4: "m6i", 8: "r6i"}
"""Amazon's families by their GB of memory per CPU, cheapest first."""
_GPU_SIZES = [
    ("xlarge", 4, 16, 1),
    ("2xlarge", 8, 32, 1),
    ("4xlarge", 16, 64, 1),
    ("8xlarge", 32, 128, 1),
    ("12xlarge", 48, 192, 4),
]
_GPU_FAMILIES = {
    "nvidia-tesla-t4": ("g4dn", ("metal", 96, 384, 8)),
    "nvidia-a10g": ("g5", ("48xlarge", 192, 768, 8)),
    "nvidia-l4": ("g6", ("48xlarge", 192, 768, 8)),
}
"""Amazon's machines by their GPU: their family and its largest size; all sizes are (name, CPUs, GB, GPUs)."""


def google_machine(spec: ClusterSpec) -> str:
    """The machine type on GKE: the given one, or a custom one with exactly these CPUs and this memory."""
    if spec.machine_type is not None:
        return spec.machine_type
    whole = GOOGLE_WHOLE.get(spec.gpu_type or "") if spec.gpus_per_node else None
    if whole is not None:
        raise UserError(
            f'GPU "{spec.gpu_type}" is part of the machine type on gke; give machine_type ({whole}) in place of '
            "cpus_per_node and memory_per_node"
        )
    if spec.cpus_per_node is None or spec.memory_per_node is None:
        # Only N1 machines can be combined with GPUs.
        return "n1-standard-4" if spec.gpus_per_node else GOOGLE_DEFAULT
    cpus, megabytes = spec.cpus_per_node, round(spec.memory_per_node * 4) * 256
    if spec.gpus_per_node:
        family, least, most, per_cpu = "", 1, 96, (0.9, 6.5)
    elif cpus <= 32 and spec.memory_per_node <= 128:
        family, least, most, per_cpu = "e2-", 2, 32, (0.5, 8.0)
    else:
        family, least, most, per_cpu = "n2-", 2, 128, (0.5, 8.0)
    if not least <= cpus <= most or (cpus % 2 and cpus != 1):
        raise UserError(
            f"no machine on gke has {cpus} CPUs{' beside GPUs' if spec.gpus_per_node else ''}; cpus_per_node is "
            f"{'1 or ' if least == 1 else ''}an even number up to {most}"
        )
    low, high = (bound * cpus for bound in per_cpu)
    if not low <= megabytes / 1024 <= high:
        raise UserError(f"a machine on gke with {cpus} CPUs has {low:g} to {high:g} GB of memory_per_node")
    return f"{family}custom-{cpus}-{megabytes}"


def amazon_machine(spec: ClusterSpec) -> str:
    """The instance type on EKS: the given one, or the smallest with at least these CPUs, this memory and these GPUs."""
    if spec.machine_type is not None:
        return spec.machine_type
    cpus, memory = spec.cpus_per_node or 0, spec.memory_per_node or 0.0
    if spec.gpus_per_node:
        return _gpu_machine(spec, cpus, memory)
    if not cpus:
        return AMAZON_DEFAULT
    for size, word in _SIZES.items():
        for per_cpu, family in _FAMILIES.items():
            if cpus <= size and memory <= size * per_cpu:
                return f"{family}.{word}"
    raise UserError(f"no common machine on eks has {cpus} CPUs and {memory:g} GB; give a machine_type")


def _gpu_machine(spec: ClusterSpec, cpus: int, memory: float) -> str:
    kind = spec.gpu_type or "nvidia-tesla-t4"
    if kind not in _GPU_FAMILIES:
        known = did_you_mean(kind, _GPU_FAMILIES) or f"; those known by name are {quoted(_GPU_FAMILIES)}"
        raise UserError(f'unknown gpu_type "{kind}" on eks{known}; for another one give its machine_type')
    family, largest = _GPU_FAMILIES[kind]
    for size, has_cpus, has_memory, has_gpus in [*_GPU_SIZES, largest]:
        # The number of GPUs must be equal: more of them would be paid for and not used.
        if cpus <= has_cpus and memory <= has_memory and spec.gpus_per_node == has_gpus:
            return f"{family}.{size}"
    raise UserError(
        f"no machine on eks has {spec.gpus_per_node} of {kind} with {cpus} CPUs and {memory:g} GB; give a machine_type"
    )
