"""`steppe cluster`: make, list, check and delete clusters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli.input import completion
from steppe.cli.input.flags import AS_JSON, CLUSTER_SETS
from steppe.cli.input.parsing import SteppeApp

if TYPE_CHECKING:
    from steppe.clusters._base import Record
    from steppe.clusters.lifecycle import ClusterEntry

CLUSTER = Annotated[
    str,
    typer.Option(
        "-c", "--cluster", metavar="NAME", help="The cluster's name.", autocompletion=completion.known_clusters
    ),
]
YES = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]

app = SteppeApp(no_args_is_help=True, rich_markup_mode=None)


@app.command()
def create(
    file: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="A name in configs/clusters/, or a file.",
            autocompletion=completion.cluster_files,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("-n", "--name", metavar="NAME", help="The cluster's name; without it the file's.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option("--provider", metavar="PROVIDER", help="Who runs it: gke, eks, kind, k3d or kubeconfig."),
    ] = None,
    num_nodes: Annotated[
        int | None, typer.Option("-s", "--size", "--num-nodes", metavar="N", help="How many nodes.")
    ] = None,
    machine_type: Annotated[
        str | None,
        typer.Option("-m", "--machine-type", metavar="TYPE", help="The provider's name for the kind of machine."),
    ] = None,
    cpus_per_node: Annotated[
        int | None, typer.Option("--cpus-per-node", metavar="N", help="In place of a machine type: its CPUs.")
    ] = None,
    memory_per_node: Annotated[
        float | None, typer.Option("--memory-per-node", metavar="GB", help="In place of a machine type: its memory.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", metavar="N", help="How many GPUs each node has.")
    ] = None,
    gpu_type: Annotated[
        str | None, typer.Option("--gpu-type", metavar="TYPE", help="The kind of GPU, such as nvidia-tesla-t4.")
    ] = None,
    gpu_sharing: Annotated[
        bool | None, typer.Option("--gpu-sharing", help="Let three Pods share each GPU (gke, eks).")
    ] = None,
    disk_size: Annotated[
        int | None, typer.Option("-d", "--disk-size", metavar="GB", help="The size of each node's disk.")
    ] = None,
    location: Annotated[
        str | None, typer.Option("--location", metavar="PLACE", help="The provider's region or zone.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="CONTEXT", help="The context of a cluster that is there already."),
    ] = None,
    kubeconfig: Annotated[
        str | None, typer.Option("--kubeconfig", metavar="FILE", help="The kubeconfig file that has the context.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAMESPACE", help="Where experiments run in it.")
    ] = None,
    sets: CLUSTER_SETS = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be sent to the provider.")] = False,
) -> None:
    """Make a cluster, or register an existing one.

    Waits until it is ready. An interrupted command continues when it is run again with the same arguments.
    """
    from steppe.clusters import lifecycle, loading, registry
    from steppe.display.progress_lines import telling
    from steppe.errors import ClusterError

    fields = {
        "provider": provider,
        "num_nodes": num_nodes,
        "machine_type": machine_type,
        "cpus_per_node": cpus_per_node,
        "memory_per_node": memory_per_node,
        "gpus_per_node": gpus_per_node,
        "gpu_type": gpu_type,
        "gpu_sharing": gpu_sharing,
        "disk_size": disk_size,
        "location": location,
        "context": context,
        "kubeconfig": str(Path(kubeconfig).expanduser().absolute()) if kubeconfig else None,
        "namespace": namespace,
    }
    is_bare = file is None and not sets and not any(value is not None for value in fields.values())
    if is_bare and name is not None and registry.knows(name):
        record = registry.read(name)
    else:
        record = lifecycle.plan(loading.load(file, fields, sets or [], Path.cwd()), name, dry_run=dry_run)
    if dry_run:
        _print_requests(record)
        _print_notes(record)
        return
    _print_notes(record)
    try:
        with telling() as tell:
            reachable = lifecycle.create(record, tell)
    except KeyboardInterrupt:
        raise ClusterError(
            f'cluster "{record.name}" is still being made; go on with: steppe cluster create -n {record.name}, or '
            f"remove it with: steppe cluster delete -c {record.name}"
        ) from None
    made = "made" if reachable.is_owned else "registered"
    print(f'{made} cluster "{reachable.name}"; experiments run in its namespace "{reachable.namespace}"; try next:')
    print(f"  steppe cluster check -c {reachable.name}")
    print(f"  steppe experiment start -e NAME -c {reachable.name}")


@app.command("list")
def list_clusters(as_json: AS_JSON = False) -> None:
    """List the clusters of all providers."""
    from steppe.clusters import lifecycle
    from steppe.display.console import console, print_json, table
    from steppe.display.text import age

    entries, notes = lifecycle.entries()
    if as_json:
        print_json({"clusters": [_row(entry) for entry in entries], "notes": notes})
        return
    out = console()
    if entries:
        columns = ("NAME", "PROVIDER", "STATE", "NODES", "VERSION", "WHERE", "MADE BY", "AGE")
        drop = ("VERSION", "MADE BY", "AGE", "NODES", "WHERE")
        listing = table(*columns, right=("NODES",), drop=drop)
        for row in map(_row, entries):
            nodes = "" if row["num_nodes"] is None else str(row["num_nodes"])
            # A kubeconfig may hold a context whose server is gone.
            row["state"] = "unknown" if row["state"] == "ready" and not row["is_asked"] else row["state"]
            listing.add_row(
                *(row["name"], row["provider"], row["state"], nodes, row["version"], row["where"], row["made_by"]),
                age(row["created"]).removesuffix(" ago"),
            )
        out.print(listing)
    else:
        out.print("no clusters; make one: steppe cluster create -f small_cluster -n first --provider gke", markup=False)
    for note in [*(entry.seen.reason for entry in entries if entry.seen.reason), *notes]:
        out.print(f"note: {note}", markup=False)


@app.command()
def delete(
    cluster: Annotated[
        str | None,
        typer.Option(
            "-c", "--cluster", metavar="NAME", help="The cluster's name.", autocompletion=completion.known_clusters
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("-A", "--all", help="All clusters that Steppe made from here.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Only forget it: nothing is asked or changed at its provider.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even one that Steppe did not make; with --yes, whatever is on it.")
    ] = False,
    yes: YES = False,
) -> int:
    """Delete a cluster with everything on it.

    A cluster that was only registered is forgotten, and stays as it is.
    """
    from steppe.clusters import lifecycle
    from steppe.display.progress_lines import telling
    from steppe.errors import ClusterError, UserError
    from steppe.platforms.kubernetes.client.cluster_deletion import delete_cluster

    if (cluster is None) != everything:
        raise UserError("say which cluster to delete: -c NAME, or --all for those that Steppe made")
    if forget:
        if cluster is None:
            raise UserError("--forget is for one cluster; name it with -c")
        return _forget(cluster, yes)
    chosen = [lifecycle.entry(cluster)] if cluster is not None else _own()
    if not chosen:
        print("Steppe made no clusters from here")
        return 0
    for entry in chosen:
        if entry.is_deletable:
            lifecycle.check_deletable(entry, force)
    lost, unasked = _what_is_lost(chosen)
    if lost and yes and not force:
        raise UserError(
            f"nothing was deleted, since what {lost} has on {_them(chosen)} would be lost; fetch it first (steppe "
            "experiment download -e NAME), or give it up with --force"
        )
    if unasked and yes and not force:
        raise ClusterError(f"nothing was deleted, since {unasked[0]}; to delete it all the same, add --force")
    for note in unasked:
        print(f"note: {note}")
    if not yes and not typer.confirm(_question(chosen, lost)):
        print("nothing was deleted")
        return 1
    for entry in chosen:
        try:
            with telling() as tell:
                note = delete_cluster(entry, tell, force=force)
        except KeyboardInterrupt:
            raise ClusterError(f'cluster "{entry.record.name}" is still being deleted; run it again to wait') from None
        done = "deleted" if entry.is_deletable else "forgot"
        print(f'{done} cluster "{entry.record.name}"')
        if note:
            print(f"note: {note}")
    return 0


@app.command()
def check(
    cluster: CLUSTER,
    quick: Annotated[bool, typer.Option("--quick", help="Without a trial Pod, which pulls the image.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long the trial Pod may take.")
    ] = 300.0,
    as_json: AS_JSON = False,
) -> int:
    """Check whether a cluster can run experiments, and say how to fix problems.

    Checks permissions, storage and GPUs, and runs Steppe in a trial Pod, which is removed again.
    """
    import dataclasses

    from steppe.clusters import registry
    from steppe.display.console import console, print_json
    from steppe.display.progress_lines import telling
    from steppe.platforms.kubernetes.client.kubeapi import Kube
    from steppe.platforms.kubernetes.diagnosis import cluster_check

    reachable, out, found = registry.find(cluster), console(), []
    marks = {"ok": "ok", "failed": "FAILED", "unknown": "?"}
    opened = Kube(reachable.kubeconfig, reachable.context, reachable.namespace, reachable.name)
    with opened as kube, telling(out, is_quiet=as_json) as tell:
        for finding in cluster_check.check(kube, reachable, tell, has_trial=not quick, seconds=timeout):
            found.append(finding)
            if not as_json:
                out.print(f"{marks[finding.outcome]:<7} {finding.what}: {finding.sentence}", markup=False)
                if finding.fix:
                    out.print(f"        to fix it: {finding.fix}", markup=False)
    is_fit = not any(finding.outcome == "failed" for finding in found)
    if as_json:
        print_json({"is_fit": is_fit, "findings": [dataclasses.asdict(finding) for finding in found]})
    elif is_fit:
        out.print(f'cluster "{cluster}" can run experiments', markup=False)
    else:
        out.print(f'cluster "{cluster}" cannot run experiments yet', markup=False)
    return 0 if is_fit else 1


@app.command()
def role(
    cluster: Annotated[
        str | None, typer.Option("-c", "--cluster", metavar="NAME", help="The cluster, for its namespace.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAMESPACE", help="The namespace to give rights in.")
    ] = None,
) -> None:
    """Print the Role that users need in a namespace, for an administrator to apply."""
    from steppe.clusters import registry
    from steppe.platforms.kubernetes.manifests.permissions import role as needed_role
    from steppe.platforms.kubernetes.manifests.rendering import as_yaml

    reachable = registry.find(cluster) if cluster is not None else None
    where = namespace or (reachable.namespace if reachable is not None else "default")
    engine = reachable.spec.kubernetes.engine if reachable is not None else None
    print(as_yaml([needed_role(where, engine)]), end="")


@app.command(hidden=True)
def token(cluster: CLUSTER) -> None:
    """Print a fresh token for a cloud's cluster, in kubectl's format."""
    import json

    from steppe.clusters import registry

    text, until = registry.token(cluster)
    status = {"token": text, **({"expirationTimestamp": until} if until else {})}
    print(
        json.dumps({"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": status})
    )


def _print_requests(record: Record) -> None:
    import json

    from steppe.clusters import lifecycle, registry
    from steppe.clusters._base import ACCOUNT, PROJECT

    requests = lifecycle.requests(record)
    for request in requests:
        print(request.call)
        if request.body is not None:
            print(json.dumps(request.body, indent=2))
    printed = f"{requests}"
    if PROJECT in printed:
        print(f"note: {PROJECT} stands for the cloud project; steppe init -r links this project to one")
    if ACCOUNT in printed:
        print(f"note: {ACCOUNT} and SUBNET stand for what Amazon says with credentials (run: aws configure)")
    if not requests:
        print(f"nothing is sent; {registry.folder() / record.name}.json would say:")
        print(json.dumps(record.place, indent=2))


def _print_notes(record: Record) -> None:
    """Prints the settings of the spec that have no effect."""
    for field in ("gpu_type", "gpu_sharing"):
        if getattr(record.spec, field) and not record.spec.gpus_per_node:
            print(f"note: {field} has no effect without GPUs; give gpus_per_node too (--gpus-per-node)")


def _row(entry: ClusterEntry) -> dict[str, Any]:
    from steppe.clusters.kubeconfig import NAME as KUBECONFIG

    record, seen = entry.record, entry.seen
    return {
        "name": record.name,
        "provider": record.provider,
        "state": entry.state,
        "is_asked": record.provider != KUBECONFIG,
        "num_nodes": seen.num_nodes,
        "version": seen.version,
        "where": entry.where,
        "made_by": "steppe" if entry.is_own else "others",
        "is_registered": entry.is_known,
        "created": record.created or None,
        "reason": seen.reason,
    }


def _own() -> list[ClusterEntry]:
    from steppe.clusters import lifecycle
    from steppe.errors import ClusterError

    entries, notes = lifecycle.entries()
    unknown = [entry.record.name for entry in entries if entry.record.is_owned and entry.seen.state == "unknown"]
    if unknown:
        raise ClusterError(f"nothing was deleted, since not all clusters can be asked for: {notes[0]}")
    return [entry for entry in entries if entry.record.is_owned and entry.is_own]


def _forget(name: str, yes: bool) -> int:
    from steppe.clusters import lifecycle

    if not yes and not typer.confirm(f'Forget cluster "{name}"? It stays as it is, and may have to be paid for.'):
        print("nothing was forgotten")
        return 1
    record = lifecycle.forget(name)
    print(f'forgot cluster "{name}"')
    if record is not None and record.is_owned:
        print(f"note: if it is still there, delete it where it is: {record.provider} {record.where}".rstrip())
    return 0


def _what_is_lost(chosen: list[ClusterEntry]) -> tuple[str, list[str]]:
    """(a phrase that names the experiments on these clusters; the clusters where they are unknown, and why)."""
    from steppe.errors import SteppeError
    from steppe.platforms.kubernetes.client.cluster_deletion import experiments_on

    found: list[str] = []
    unasked: list[str] = []
    for entry in chosen:
        try:
            found += [f"experiment {each}" for each in experiments_on(entry)]
        except SteppeError as error:
            unasked.append(f'whether experiments are on cluster "{entry.record.name}" is not known: {error}')
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found), unasked


def _question(chosen: list[ClusterEntry], lost: str) -> str:
    kept = [entry for entry in chosen if not entry.is_deletable]
    if kept:
        return f'Forget cluster "{kept[0].record.name}"? The cluster itself stays as it is.'
    words = [f'"{entry.record.name}" ({entry.record.provider} {entry.where})'.replace(" )", ")") for entry in chosen]
    also = f", and what {lost} has on {_them(chosen)}" if lost else f" with everything on {_them(chosen)}"
    return f"Delete {' and '.join(words)}{also}?"


def _them(chosen: list[ClusterEntry]) -> str:
    return "it" if len(chosen) == 1 else "them"
