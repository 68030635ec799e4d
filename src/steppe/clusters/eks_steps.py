"""The requests that make a cluster on EKS, in order; a dry run prints the same ones."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from steppe.clusters._base import ACCOUNT, ID_LABEL, MANAGED, Record
from steppe.clusters.machines import amazon_machine
from steppe.errors import UserError

NODES, DISKS = "nodes", "aws-ebs-csi-driver"
CLUSTER_POLICIES = ["AmazonEKSClusterPolicy"]
# The last policy lets the disks' driver on the nodes make and attach the disks of experiments.
NODE_POLICIES = [
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "AmazonEC2ContainerRegistryReadOnly",
    "service-role/AmazonEBSCSIDriverPolicy",
]
GPU_SHARING = """\
[settings.kubelet-device-plugins.nvidia]
device-sharing-strategy = "time-slicing"
[settings.kubelet-device-plugins.nvidia.time-slicing]
replicas = {clients}
rename-by-default = false
fail-requests-greater-than-one = false
"""
"""The setting of the nodes' system that offers each GPU as several `nvidia.com/gpu`."""
WITHOUT_EKS = {"use1-az3", "usw1-az2", "cac1-az3"}
"""The zones in which Amazon runs no control plane."""
NAME_SUBNETS = """name two subnets of yours in different zones (--set 'subnets=["subnet-1", "subnet-2"]')"""
Client = Callable[[str], Any]


@dataclass(frozen=True)
class EksStep:
    """One request to one of Amazon's services."""

    service: str
    operation: str
    parameters: dict[str, Any]
    waits_for: str | None = None
    """The part of the cluster to wait for before the next step."""

    @property
    def method(self) -> str:
        """The name of the operation's method: create_cluster for CreateCluster."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.operation).lower()


def steps(record: Record, client: Client) -> list[EksStep]:
    """All steps for a cluster; only reads the account and its subnets."""
    arn = client("sts").get_caller_identity()["Arn"]
    return _steps(record, arn.split(":")[1], arn.split(":")[4], _subnets(record, client("ec2")))


def placeholder_steps(record: Record) -> list[EksStep]:
    """The steps for a dry run without credentials, with placeholders for the account and the subnets."""
    return _steps(record, "aws", ACCOUNT, record.spec.subnets or ["SUBNET-1", "SUBNET-2"])


def _steps(record: Record, partition: str, account: str, subnets: list[str]) -> list[EksStep]:
    tags = dict([MANAGED, (ID_LABEL, record.id)])
    cluster_role, node_role = role_names(record)
    roles = f"arn:{partition}:iam::{account}:role/"
    return [
        *_role_steps(cluster_role, "eks.amazonaws.com", CLUSTER_POLICIES, partition, tags),
        *_role_steps(node_role, "ec2.amazonaws.com", NODE_POLICIES, partition, tags),
        EksStep(
            "eks", "CreateCluster", _control_plane(record, roles + cluster_role, subnets, tags), "the control plane"
        ),
        *([EksStep("ec2", "CreateLaunchTemplate", _template(record, tags))] if record.spec.gpu_sharing else []),
        EksStep("eks", "CreateNodegroup", _nodes(record, roles + node_role, subnets, tags), "the nodes"),
        # A new cluster has neither a driver for disks nor a default storage class.
        EksStep(
            "eks",
            "CreateAddon",
            {
                "clusterName": record.name,
                "addonName": DISKS,
                "configurationValues": json.dumps({"defaultStorageClass": {"enabled": True}}),
                "tags": tags,
            },
            "the disks' driver",
        ),
    ]


def role_names(record: Record) -> tuple[str, str]:
    """The roles of the control plane and of the nodes; the id keeps clusters of one name in two regions apart."""
    return f"{_stem(record)}-cluster", f"{_stem(record)}-nodes"


def template_name(record: Record) -> str:
    """The name of the launch template of nodes that share their GPUs."""
    return f"{_stem(record)}-nodes"


def _stem(record: Record) -> str:
    return f"steppe-{record.name}-{record.id}"


def _role_steps(name: str, service: str, policies: list[str], partition: str, tags: dict[str, str]) -> list[EksStep]:
    trust = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}],
    }
    role = {
        "RoleName": name,
        "AssumeRolePolicyDocument": json.dumps(trust),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    attached = [
        EksStep("iam", "AttachRolePolicy", {"RoleName": name, "PolicyArn": f"arn:{partition}:iam::aws:policy/{policy}"})
        for policy in policies
    ]
    return [EksStep("iam", "CreateRole", role), *attached]


def _control_plane(record: Record, role: str, subnets: list[str], tags: dict[str, str]) -> dict[str, Any]:
    return {
        "name": record.name,
        "roleArn": role,
        "resourcesVpcConfig": {"subnetIds": subnets},
        "accessConfig": {
            "authenticationMode": "API_AND_CONFIG_MAP",
            "bootstrapClusterCreatorAdminPermissions": True,
        },
        **({"version": record.spec.version} if record.spec.version else {}),
        "tags": tags,
    }


def _template(record: Record, tags: dict[str, str]) -> dict[str, Any]:
    """The settings that a node group lacks; a setting in both, such as the size of the disk, is refused."""
    settings = GPU_SHARING.format(clients=record.spec.clients_per_gpu)
    return {
        "LaunchTemplateName": template_name(record),
        "LaunchTemplateData": {
            "UserData": base64.b64encode(settings.encode()).decode(),
            # The second disk is for images and containers.
            "BlockDeviceMappings": [
                {"DeviceName": "/dev/xvdb", "Ebs": {"VolumeSize": record.spec.disk_size, "VolumeType": "gp3"}}
            ],
            # Two hops, the default without a template: the disks' driver asks for its identity from inside a Pod.
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        },
        "TagSpecifications": [
            {
                "ResourceType": "launch-template",
                "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            }
        ],
    }


def _nodes(record: Record, role: str, subnets: list[str], tags: dict[str, str]) -> dict[str, Any]:
    spec = record.spec
    return {
        "clusterName": record.name,
        "nodegroupName": NODES,
        "scalingConfig": {"minSize": spec.num_nodes, "maxSize": spec.num_nodes, "desiredSize": spec.num_nodes},
        **({"launchTemplate": {"name": template_name(record)}} if spec.gpu_sharing else {"diskSize": spec.disk_size}),
        # One zone, since a disk with results cannot be attached in another zone.
        "subnets": subnets[:1],
        "instanceTypes": [amazon_machine(spec)],
        # The only one of Amazon's systems for NVIDIA that offers GPUs to Pods without installing anything.
        "amiType": "BOTTLEROCKET_x86_64_NVIDIA" if spec.gpus_per_node else "AL2023_x86_64_STANDARD",
        "capacityType": "SPOT" if spec.spot else "ON_DEMAND",
        "nodeRole": role,
        "tags": tags,
    }


def _subnets(record: Record, ec2: Any) -> list[str]:
    """The subnets of the control plane, in at least two zones; the first is for the nodes."""
    region, wanted = record.place["region"], record.place.get("zone")
    found = _named_subnets(record, ec2) if record.spec.subnets else _default_subnets(region, ec2)
    by_zone: dict[str, str] = {}
    for subnet in found:
        if subnet.get("AvailabilityZoneId") not in WITHOUT_EKS:
            by_zone.setdefault(subnet["AvailabilityZone"], subnet["SubnetId"])
    if wanted is not None and wanted not in by_zone:
        raise UserError(
            f"no cluster can have its nodes in {wanted}; choose one of {', '.join(sorted(by_zone))} as location, "
            f"or {region}"
        )
    if len(by_zone) < 2 and record.spec.subnets:
        raise UserError(
            f"the given subnets are in {len(by_zone)} of the 2 zones that eks needs; add one of another zone"
        )
    if len(by_zone) < 2:
        raise UserError(
            f"the default network in {region} has subnets in {len(by_zone)} of the 2 zones that eks needs; add one "
            f"with: aws ec2 create-default-subnet --region {region} --availability-zone ZONE; or {NAME_SUBNETS}"
        )
    if record.spec.subnets:
        chosen = by_zone[wanted] if wanted is not None else record.spec.subnets[0]
        return sorted(record.spec.subnets, key=lambda subnet: subnet != chosen)
    zones = sorted(by_zone, key=lambda zone: (zone != wanted, zone))
    return [by_zone[zone] for zone in zones[:2]]


def _named_subnets(record: Record, ec2: Any) -> list[dict[str, Any]]:
    """The subnets that the spec names, in its order; they must exist and be in one network."""
    region, names = record.place["region"], record.spec.subnets or []
    # A filter ignores subnets that do not exist; a request by ids would fail as a whole.
    found = ec2.describe_subnets(Filters=[{"Name": "subnet-id", "Values": names}])["Subnets"]
    by_name: dict[str, dict[str, Any]] = {subnet["SubnetId"]: subnet for subnet in found}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise UserError(
            f"there is no subnet {missing[0]} in {region}; list those there are with: "
            f"aws ec2 describe-subnets --region {region}"
        )
    networks = sorted({subnet["VpcId"] for subnet in found})
    if len(networks) > 1:
        raise UserError(f"the given subnets are of different networks ({', '.join(networks)}); take those of one")
    return [by_name[name] for name in names]


def _default_subnets(region: str, ec2: Any) -> list[dict[str, Any]]:
    """The subnets of the default network, one in each zone."""
    networks = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not networks:
        raise UserError(
            f"there is no default network (VPC) in {region}; {NAME_SUBNETS}, or make a default network with: "
            f"aws ec2 create-default-vpc --region {region}"
        )
    found: list[dict[str, Any]] = ec2.describe_subnets(
        Filters=[
            {"Name": "vpc-id", "Values": [networks[0]["VpcId"]]},
            {"Name": "default-for-az", "Values": ["true"]},
        ]
    )["Subnets"]
    return found
