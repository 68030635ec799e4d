"""EKS, through Amazon's own client library against moto's server on loopback."""

from __future__ import annotations

import base64
import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from amazon_cloud import AmazonCloud

from steppe.clusters import registry

Steppe = Callable[..., Any]
Client = Callable[[str], Any]
CREATE = ("cluster", "create", "-n", "first", "--provider", "eks")
GPUS = ("--gpus-per-node", "1", "--gpu-type", "nvidia-tesla-t4")


def roles(client: Client) -> list[str]:
    return [role["RoleName"] for role in client("iam").list_roles()["Roles"] if role["RoleName"].startswith("steppe-")]


def templates(client: Client) -> list[str]:
    return [each["LaunchTemplateName"] for each in client("ec2").describe_launch_templates()["LaunchTemplates"]]


def new_subnet(client: Client, network: str, zone: str, number: int) -> str:
    where = {"VpcId": network, "CidrBlock": f"10.9.{number}.0/24", "AvailabilityZone": f"eu-west-1{zone}"}
    return str(client("ec2").create_subnet(**where)["Subnet"]["SubnetId"])


def given(*subnets: str) -> tuple[str, str]:
    return "--set", f"subnets={json.dumps(subnets)}"


def test_create_makes_roles_control_plane_nodes_and_disks(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    answer = steppe(*CREATE, "-s", "2", "--cpus-per-node", "4", "--memory-per-node", "16", "-d", "50")
    assert answer.code == 0, answer.err
    record = registry.read("first")
    cluster = client("eks").describe_cluster(name="first")["cluster"]
    assert cluster["tags"] == {"managed-by": "steppe", "steppe-id": record.id}
    nodes = client("eks").describe_nodegroup(clusterName="first", nodegroupName="nodes")["nodegroup"]
    assert nodes["scalingConfig"] == {"minSize": 2, "maxSize": 2, "desiredSize": 2}
    assert (nodes["instanceTypes"], nodes["diskSize"], len(nodes["subnets"])) == (["m6i.xlarge"], 50, 1)
    policies = client("iam").list_attached_role_policies(RoleName=f"steppe-first-{record.id}-nodes")["AttachedPolicies"]
    assert "AmazonEBSCSIDriverPolicy" in {policy["PolicyName"] for policy in policies}
    assert amazon.addons["first"]["addonName"] == "aws-ebs-csi-driver"
    assert "Amazon makes the disks' driver" in answer.out
    assert registry.find("first").is_owned


def test_dry_run_prints_what_is_sent_and_makes_nothing(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    answer = steppe(*CREATE, "--dry-run")
    assert answer.code == 0, answer.err
    assert roles(client) == []
    assert registry.names() == []
    shown = parsed(answer.out)
    assert [call for call, _ in shown].count("iam:CreateRole") == 2
    assert [call for call, _ in shown][-3:] == ["eks:CreateCluster", "eks:CreateNodegroup", "eks:CreateAddon"]
    assert steppe(*CREATE).code == 0
    shown_id = shown[-3][1]["tags"]["steppe-id"]

    def same(body: Any) -> Any:
        return json.loads(json.dumps(body).replace(registry.read("first").id, shown_id))

    paths = ("/clusters", "/clusters/first/node-groups", "/clusters/first/addons")
    for (_, body), path in zip(shown[-3:], paths, strict=True):
        # The path has the cluster's own name, and the library adds an idempotency token.
        expected = {key: value for key, value in body.items() if key != "clusterName"}
        sent = {key: value for key, value in same(amazon.sent(path)).items() if key != "clientRequestToken"}
        assert sent == expected


def parsed(text: str) -> list[tuple[str, Any]]:
    """(call, body) of each request that was printed."""
    found: list[tuple[str, Any]] = []
    decoder = json.JSONDecoder()
    while text.strip():
        call, _, rest = text.lstrip().partition("\n")
        body, end = decoder.raw_decode(rest)
        found.append((call, body))
        text = rest[end:]
    return found


def test_a_zone_holds_all_nodes(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    assert steppe(*CREATE, "--location", "eu-west-1b").code == 0
    (subnet,) = client("eks").describe_nodegroup(clusterName="first", nodegroupName="nodes")["nodegroup"]["subnets"]
    (about,) = client("ec2").describe_subnets(SubnetIds=[subnet])["Subnets"]
    assert about["AvailabilityZone"] == "eu-west-1b"
    assert len(amazon.sent("/clusters")["resourcesVpcConfig"]["subnetIds"]) == 2
    assert registry.read("first").place["region"] == "eu-west-1"


def test_gpus_get_the_image_that_offers_them_to_pods(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    assert steppe(*CREATE, *GPUS).code == 0
    nodes = amazon.sent("/clusters/first/node-groups")
    assert (nodes["amiType"], nodes["instanceTypes"]) == ("BOTTLEROCKET_x86_64_NVIDIA", ["g4dn.xlarge"])
    assert (nodes["diskSize"], templates(client)) == (100, [])


def test_shared_gpus_are_a_setting_of_the_nodes(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    assert steppe(*CREATE, *GPUS, "--gpu-sharing", "-d", "50", "--set", "clients_per_gpu=4").code == 0
    (template,) = templates(client)
    nodes = amazon.sent("/clusters/first/node-groups")
    assert nodes["launchTemplate"] == {"name": template}
    # Amazon refuses a node group with both a disk size and a launch template.
    assert "diskSize" not in nodes
    asked = client("ec2").describe_launch_template_versions(LaunchTemplateName=template, Versions=["$Latest"])
    data = asked["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    sharing = tomllib.loads(base64.b64decode(data["UserData"]).decode())["settings"]["kubelet-device-plugins"]["nvidia"]
    assert sharing["device-sharing-strategy"] == "time-slicing"
    # Parts keep the usual resource name, so the same manifest requests a part or a whole GPU.
    assert (sharing["time-slicing"]["replicas"], sharing["time-slicing"]["rename-by-default"]) == (4, False)
    assert data["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 50
    assert steppe("cluster", "delete", "-c", "first", "--yes", "--force").code == 0
    assert (templates(client), roles(client)) == ([], [])


def test_gpu_sharing_needs_gpus(steppe: Steppe, amazon: AmazonCloud) -> None:
    answer = steppe(*CREATE, "--gpu-sharing")
    assert answer.code == 2
    assert "give gpus_per_node too" in answer.err


def test_given_subnets_hold_the_cluster_and_the_first_its_nodes(
    steppe: Steppe, amazon: AmazonCloud, client: Client
) -> None:
    network = client("ec2").create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    names = [new_subnet(client, network, zone, number) for number, zone in enumerate("cabb")]
    answer = steppe(*CREATE, *given(*names))
    assert answer.code == 0, answer.err
    assert amazon.sent("/clusters")["resourcesVpcConfig"]["subnetIds"] == names
    assert amazon.sent("/clusters/first/node-groups")["subnets"] == names[:1]


def test_nodes_get_the_given_subnet_of_their_zone(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    network = client("ec2").create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    first, second = (new_subnet(client, network, zone, number) for number, zone in enumerate("ab"))
    assert steppe(*CREATE, *given(first, second), "--location", "eu-west-1b").code == 0
    assert amazon.sent("/clusters/first/node-groups")["subnets"] == [second]
    assert set(amazon.sent("/clusters")["resourcesVpcConfig"]["subnetIds"]) == {first, second}


def test_subnets_that_cannot_hold_a_cluster_are_refused(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    networks = [client("ec2").create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"] for _ in range(2)]
    here, beside = (new_subnet(client, networks[0], "a", number) for number in range(2))
    elsewhere = new_subnet(client, networks[1], "b", 0)
    for names, words in (
        ((here, "subnet-0123456789abcdef0"), "there is no subnet subnet-0123456789abcdef0 in eu-west-1"),
        ((here, beside), "the given subnets are in 1 of the 2 zones that eks needs"),
        ((here, elsewhere), "the given subnets are of different networks"),
    ):
        answer = steppe(*CREATE, *given(*names))
        assert answer.code == 2
        assert words in answer.err
    assert (registry.names(), roles(client)) == ([], [])


def test_subnets_are_refused_for_other_providers(steppe: Steppe, programs: Any) -> None:
    answer = steppe("cluster", "create", "-n", "first", "--provider", "kind", *given("subnet-1"))
    assert answer.code == 2
    assert 'subnets are a setting of provider "eks"; leave them out for "kind"' in answer.err


def test_list_shows_known_and_foreign_clusters(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    assert steppe(*CREATE).code == 0
    network = {"subnetIds": ["subnet-1", "subnet-2"]}
    client("eks").create_cluster(name="theirs", roleArn="arn:aws:iam::123456789012:role/x", resourcesVpcConfig=network)
    rows = {row["name"]: row for row in json.loads(steppe("cluster", "list", "--json").out)["clusters"]}
    assert (rows["first"]["state"], rows["first"]["made_by"], rows["first"]["num_nodes"]) == ("ready", "steppe", 3)
    assert (rows["theirs"]["made_by"], rows["theirs"]["where"]) == ("others", "eu-west-1")


def test_delete_leaves_nothing_behind(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    assert steppe(*CREATE).code == 0
    assert len(roles(client)) == 2
    answer = steppe("cluster", "delete", "-c", "first", "--yes", "--force")
    assert answer.code == 0, answer.err
    assert client("eks").list_clusters()["clusters"] == []
    assert roles(client) == []
    assert registry.names() == []


def test_a_namesake_without_a_label_is_not_deleted(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    assert steppe(*CREATE).code == 0
    client("eks").delete_nodegroup(clusterName="first", nodegroupName="nodes")
    client("eks").delete_cluster(name="first")
    network = {"subnetIds": ["subnet-1", "subnet-2"]}
    client("eks").create_cluster(name="first", roleArn="arn:aws:iam::123456789012:role/x", resourcesVpcConfig=network)
    answer = steppe("cluster", "delete", "-c", "first", "--yes")
    assert answer.code == 2
    assert "is not the one that Steppe made, but a namesake" in answer.err
    assert steppe("cluster", "delete", "--all", "--yes").code == 0
    assert client("eks").list_clusters()["clusters"] == ["first"]


def test_a_failed_cluster_leaves_no_roles_behind(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    message = "You have reached the limit of clusters"
    amazon.refusals["POST", "/clusters"] = (400, "ResourceLimitExceededException", message)
    answer = steppe(*CREATE)
    assert answer.code == 1
    assert message in answer.err
    assert "another location, or ask for more under Service Quotas" in answer.err
    assert roles(client) == []
    assert registry.names() == []


def test_create_goes_on_after_a_failure_half_way(steppe: Steppe, amazon: AmazonCloud, client: Client) -> None:
    path = ("POST", "/clusters/first/node-groups")
    amazon.refusals[path] = (403, "AccessDeniedException", "not authorized to perform: eks:CreateNodegroup")
    answer = steppe(*CREATE)
    assert answer.code == 1
    assert "allow CreateNodegroup in IAM" in answer.err
    assert registry.read("first").state == "creating"
    amazon.refusals.clear()
    assert steppe("cluster", "create", "-n", "first").code == 0
    assert registry.find("first").name == "first"
    assert len(roles(client)) == 2


def test_a_new_role_is_waited_for(steppe: Steppe, amazon: AmazonCloud) -> None:
    original, tries = amazon.answer, []

    def answer(method: str, path: str, body: Any) -> tuple[int, Any] | None:
        if (method, path) == ("POST", "/clusters") and len(tries) < 2:
            tries.append(path)
            return 400, {"__type": "InvalidParameterException", "message": "Role cannot be assumed by EKS"}
        return original(method, path, body)

    amazon.answer = answer  # type: ignore[method-assign]
    try:
        done = steppe(*CREATE)
    finally:
        del amazon.answer
    assert done.code == 0, done.err
    assert len(tries) == 2
    assert "Amazon makes the roles known" in done.out


def test_a_token_is_a_presigned_request_for_this_cluster(steppe: Steppe, amazon: AmazonCloud) -> None:
    assert steppe(*CREATE).code == 0
    content = yaml.safe_load(registry.find("first").kubeconfig.read_text())
    command = content["users"][0]["user"]["exec"]
    done = subprocess.run([command["command"], *command["args"]], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)["status"]
    kind, _, text = status["token"].partition(".")
    url = urlsplit(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
    query = parse_qs(url.query)
    assert kind == "k8s-aws-v1"
    assert query["Action"] == ["GetCallerIdentity"]
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]
    assert query["X-Amz-Expires"] == ["60"]
    assert status["expirationTimestamp"].endswith("Z")


def test_an_error_without_a_default_network_explains_the_remedy(
    steppe: Steppe, amazon: AmazonCloud, client: Client
) -> None:
    ec2 = client("ec2")
    (network,) = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    for subnet in ec2.describe_subnets()["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    answer = steppe(*CREATE)
    assert answer.code == 2
    assert "has subnets in 0 of the 2 zones that eks needs" in answer.err
    ec2.delete_vpc(VpcId=network["VpcId"])
    answer = steppe(*CREATE)
    assert answer.code == 2
    assert "aws ec2 create-default-vpc --region eu-west-1" in answer.err
    assert """name two subnets of yours in different zones (--set 'subnets=["subnet-1", "subnet-2"]')""" in answer.err
    assert registry.names() == []


def test_an_error_without_a_region_explains_the_remedy(
    steppe: Steppe, amazon: AmazonCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    answer = steppe(*CREATE)
    assert answer.code == 2
    assert "give --location, such as eu-west-1, or set AWS_REGION" in answer.err


def test_an_unreachable_cloud_is_a_one_sentence_error(
    steppe: Steppe, amazon: AmazonCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    answer = steppe(*CREATE)
    assert answer.code == 1
    assert "Amazon cannot be reached" in answer.err
    assert len(answer.err.splitlines()) == 1
    assert registry.names() == []


def test_an_error_without_credentials_explains_the_remedy(
    steppe: Steppe, amazon: AmazonCloud, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    answer = steppe(*CREATE)
    assert answer.code == 2
    assert "run: aws configure" in answer.err
    # Nor does a list complain about a cloud that is not used.
    assert json.loads(steppe("cluster", "list", "--json").out) == {"clusters": [], "notes": []}


def test_a_dry_run_needs_no_credentials(steppe: Steppe, amazon: AmazonCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    answer = steppe(*CREATE, "--dry-run")
    assert answer.code == 0, answer.err
    assert "arn:aws:iam::ACCOUNT-ID:role/steppe-first-" in answer.out
    assert "note: ACCOUNT-ID and SUBNET stand for what Amazon says with credentials" in answer.out
    assert registry.names() == []
