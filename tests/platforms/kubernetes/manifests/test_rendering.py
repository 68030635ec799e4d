import base64
import json
import re

import kubernetes_validate
import numpy as np
import pytest
import yaml
from kubernetes_validate.utils import latest_version

from steppe.errors import UserError
from steppe.files.bundles import unpack
from steppe.platforms.kubernetes.agreement import TOKEN_KEYS
from steppe.platforms.kubernetes.manifests import naming
from steppe.platforms.kubernetes.manifests.pod_spec import pod_template
from steppe.platforms.kubernetes.manifests.rendering import as_yaml, jobs, reader, render, root

TOKENS = dict.fromkeys(TOKEN_KEYS, "secret-0123456789")
MODES = ("single", "multi-threaded", "distributed", "async")


def job_of(plan, role):
    return next(job for job in jobs(plan) if job["metadata"]["labels"][naming.ROLE] == role)


def container_of(plan, role):
    return job_of(plan, role)["spec"]["template"]["spec"]["containers"][0]


def variables_of(container):
    return {each["name"]: each.get("value") for each in container["env"]}


@pytest.mark.parametrize("version", ["1.30", latest_version()])
@pytest.mark.parametrize("mode", MODES)
def test_manifests_are_valid(planned, packed, mode, version):
    modules = {"mine.py": "x = 1\n", "level.bin": b"\xff"}
    plan = planned(run_mode=mode, modules=modules, files=[packed("good.safetensors", b"x")])
    for manifest in [*render(plan, owner_uid="uid", tokens=TOKENS), reader(plan, owner_uid="uid")]:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_experiment_gives_the_same_manifests(planned, mode):
    assert render(planned(run_mode=mode, seed=1)) == render(planned(run_mode=mode, seed=1))


@pytest.mark.parametrize(
    ("fields", "pods"),
    [
        ({"run_mode": "single"}, {"driver": 1}),
        ({"run_mode": "multi-threaded", "num_workers": 4}, {"driver": 1}),
        (
            {"run_mode": "distributed", "num_workers": 5, "num_parameter_servers": 2},
            {"driver": 1, "server": 2, "worker": 5},
        ),
        ({"run_mode": "async", "num_workers": 1000}, {"driver": 1, "worker": 1000}),
    ],
)
def test_each_run_mode_has_its_pods(planned, fields, pods):
    made = {job["metadata"]["labels"][naming.ROLE]: job["spec"]["parallelism"] for job in jobs(planned(**fields))}
    assert made == pods


def test_everything_belongs_to_the_root(planned):
    first, *rest = render(planned(run_mode="distributed"), owner_uid="uid-1", tokens=TOKENS)
    assert first["kind"] == "ConfigMap"
    for manifest in rest:
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("ConfigMap", first["metadata"]["name"], "uid-1")
    assert all(each["metadata"]["labels"][naming.MANAGED_BY] == "steppe" for each in (first, *rest))


def test_tokens_are_in_no_manifest_that_is_printed(planned):
    plan = planned(run_mode="async")
    assert "Secret" not in [each["kind"] for each in render(plan)]
    assert TOKENS["door"] not in as_yaml(render(plan))


def test_the_yaml_has_the_same_content_as_the_manifests(planned):
    manifests = render(planned(run_mode="distributed"))
    text = as_yaml(manifests, "two\nlines")
    assert text.startswith("# two\n# lines\n---\n")
    assert list(yaml.safe_load_all(text)) == manifests
    assert "&id" not in text


def test_no_pod_gets_a_token_of_the_cluster_or_runs_as_root(planned):
    for mode in MODES:
        for job in jobs(planned(run_mode=mode)):
            pod = job["spec"]["template"]["spec"]
            assert pod["automountServiceAccountToken"] is False
            assert pod["securityContext"]["runAsNonRoot"] is True


def test_threads_match_the_requested_cpus(planned):
    plan = planned(run_mode="multi-threaded", num_workers=6, kubernetes={"driver": {"cpus": 4.5, "memory": 2}})
    container = container_of(plan, "driver")
    assert container["resources"]["requests"] == {"cpu": "4500m", "memory": "2048Mi"}
    assert container["resources"]["limits"] == {"cpu": "4500m", "memory": "2048Mi"}
    assert {variables_of(container)[name] for name in ("OMP_NUM_THREADS", "STEPPE_CORES")} == {"4"}


def test_a_threaded_driver_has_a_cpu_for_each_worker_by_default(planned):
    assert (
        container_of(planned(run_mode="multi-threaded", num_workers=6), "driver")["resources"]["requests"]["cpu"]
        == "6000m"
    )


@pytest.mark.parametrize(
    ("share", "workers", "pods", "gpus", "members"),
    [
        (0.33, 7, 3, "1", "3"),
        (0.5, 4, 2, "1", "2"),
        # No more than three, unless the cluster's spec says so.
        (0.1, 7, 3, "1", "3"),
        (1.0, 2, 2, "1", "1"),
        (2.0, 2, 2, "2", "1"),
        (0.0, 2, 2, None, "1"),
    ],
)
def test_workers_share_a_gpu_by_fractions(planned, share, workers, pods, gpus, members):
    plan = planned(run_mode="distributed", num_workers=workers, ray={"gpus_per_worker": share})
    container = container_of(plan, "worker")
    assert job_of(plan, "worker")["spec"]["parallelism"] == pods
    assert container["resources"]["limits"].get("nvidia.com/gpu") == gpus
    assert variables_of(container)["STEPPE_POD_MEMBERS"] == members


@pytest.mark.parametrize(
    ("workers", "shape"),
    [(7, [("worker", 2, 3), ("worker-2", 1, 1)]), (8, [("worker", 2, 3), ("worker-2", 1, 2)]), (9, [("worker", 3, 3)])],
)
def test_async_starts_the_exact_number_of_workers_that_share_gpus(planned, workers, shape):
    plan = planned(run_mode="async", num_workers=workers, ray={"gpus_per_worker": 0.33})
    made = [job for job in jobs(plan) if job["metadata"]["labels"][naming.ROLE] == "worker"]
    found = []
    for job in made:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        members = int(variables_of(container)["STEPPE_POD_MEMBERS"])
        found.append((job["metadata"]["name"].removeprefix(f"{plan.name}-"), job["spec"]["parallelism"], members))
        assert container["resources"]["requests"]["cpu"] == f"{1000 * members}m"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert found == shape
    assert sum(pods * members for _, pods, members in found) == workers


def test_modules_have_valid_keys_in_a_config_map(planned):
    paths = ["levels/eins (1).txt", "levels/eins_(1).txt", "größe.py", "x" * 300 + ".py"]
    plan = planned(modules=dict.fromkeys(paths, "text"))
    keys = [key for key in root(plan)["data"] if key.startswith("module-")]
    assert len(keys) == len(paths)
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) for key in keys)
    volumes = {each["name"]: each for each in job_of(plan, "driver")["spec"]["template"]["spec"]["volumes"]}
    volume = volumes["modules"]
    assert {item["path"]: item["key"] for item in volume["configMap"]["items"]} == dict(zip(paths, keys, strict=True))


def test_a_cluster_limits_how_many_workers_share_a_gpu(planned):
    plan = planned({"clients_per_gpu": 10}, run_mode="async", num_workers=20, ray={"gpus_per_worker": 0.1})
    assert variables_of(container_of(plan, "worker"))["STEPPE_POD_MEMBERS"] == "10"


def test_the_experiments_limit_of_workers_on_a_gpu_precedes_the_clusters(planned):
    ray = {"gpus_per_worker": 0.1, "workers_per_gpu": 5}
    plan = planned({"clients_per_gpu": 10}, run_mode="async", num_workers=20, ray=ray)
    assert variables_of(container_of(plan, "worker"))["STEPPE_POD_MEMBERS"] == "5"


@pytest.mark.parametrize(
    ("provider", "share", "parts", "devices"),
    [
        ("eks", 0.1, "1", "1"),
        ("eks", 0.33, "1", "1"),
        ("eks", 0.5, "2", "1"),
        ("kubeconfig", 1.0, "3", "1"),
        ("eks", 2.0, "6", "2"),
        ("gke", 0.33, "1", "1"),
        ("gke", 0.1, "1", "1"),
    ],
)
def test_on_a_cluster_that_shares_gpus_each_pod_asks_for_its_parts(planned, provider, share, parts, devices):
    cluster = {"provider": provider, "gpus_per_node": 1, "gpu_sharing": True}
    plan = planned(cluster, run_mode="async", num_workers=6, ray={"gpus_per_worker": share})
    assert job_of(plan, "worker")["spec"]["parallelism"] == 6
    container = container_of(plan, "worker")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == parts
    assert variables_of(container)["STEPPE_POD_GPUS"] == devices


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
def test_gke_refuses_more_than_one_part_of_a_gpu_for_a_pod(planned, share):
    cluster = {"provider": "gke", "gpus_per_node": 1, "gpu_sharing": True}
    plan = planned(cluster, run_mode="async", ray={"gpus_per_worker": share})
    with pytest.raises(UserError, match=r"gives each Pod one of a GPU's 3 parts; ask for 0\.33 or less"):
        jobs(plan)


def test_settings_of_both_specs_reach_the_pods(planned):
    cluster = {
        "kubernetes": {
            "image": "registry/steppe:1",
            "node_selector": {"pool": "a"},
            "env": {"A": "1", "B": "1"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "image_pull_secrets": ["registry"],
            "labels": {"team": "red"},
        }
    }
    own = {
        "env": {"B": "2"},
        "priority_class": "high",
        "queue": "team-red",
        "volumes": [{"name": "data", "emptyDir": {}}],
        "volume_mounts": [{"name": "data", "mountPath": "/data"}],
        "env_from_secrets": ["keys"],
        "service_account": "runner",
        "annotations": {"note": "x"},
        "worker": {"image": "registry/simulator:2"},
        "sidecars": [{"image": "registry/world:1", "ports": [{"containerPort": 5555}]}],
    }
    plan = planned(cluster, run_mode="async", kubernetes=own)
    driver, worker = job_of(plan, "driver"), job_of(plan, "worker")
    pod = worker["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "a"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["serviceAccountName"] == "runner"
    assert {"name": "data", "emptyDir": {}} in pod["volumes"]
    assert worker["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-red"
    assert worker["metadata"]["labels"]["team"] == "red"
    assert worker["spec"]["template"]["metadata"]["annotations"] == {"note": "x"}
    acting, sidecar = pod["containers"]
    assert acting["image"] == "registry/simulator:2"
    assert acting["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert (variables_of(acting)["A"], variables_of(acting)["B"]) == ("1", "2")
    assert sidecar["image"] == "registry/world:1"
    beside = [each["image"] for each in driver["spec"]["template"]["spec"]["containers"]]
    assert beside == ["registry/steppe:1", "registry/world:1"]


def test_simulators_run_beside_all_pods_that_open_environments(planned):
    own = {"sidecars": [{"image": "world:1"}]}
    beside = {
        mode: [
            len(job["spec"]["template"]["spec"]["containers"]) for job in jobs(planned(run_mode=mode, kubernetes=own))
        ]
        for mode in MODES
    }
    assert beside == {"single": [2], "multi-threaded": [2], "distributed": [2, 1, 2], "async": [2, 2]}


def test_a_driver_knows_that_it_has_sidecars(planned):
    for sidecars, told in (([{"image": "world:1"}], "1"), ([], None)):
        driver = job_of(planned(kubernetes={"sidecars": sidecars}), "driver")
        container = driver["spec"]["template"]["spec"]["containers"][0]
        assert variables_of(container).get("STEPPE_POD_HAS_SIDECARS") == told


def test_the_root_holds_the_experiment_and_the_users_modules(planned):
    plan = planned(modules={"worlds/__init__.py": "", "worlds/a.py": "x = 1\n"})
    data = root(plan)["data"]
    assert json.loads(data["experiment.json"])["name"] == "first"
    pod = job_of(plan, "driver")["spec"]["template"]["spec"]
    (modules,) = [each for each in pod["volumes"] if each["name"] == "modules"]
    found = {item["path"]: data[item["key"]] for item in modules["configMap"]["items"]}
    assert found == {"worlds/__init__.py": "", "worlds/a.py": "x = 1\n"}


def test_modules_that_are_too_large_are_refused_with_a_remedy(planned):
    with pytest.raises(UserError, match=r"take 2\.0 MB, and a cluster takes 1 MB; .*kubernetes\.image"):
        root(planned(modules={"big.py": "#" * 2_000_000}))


def test_files_that_modules_read_are_included_unchanged(planned):
    manifest = root(planned(modules={"worlds/__init__.py": "", "worlds/level.bin": b"\xff\x00"}))
    ((key, content),) = manifest["binaryData"].items()
    assert (key.endswith("worlds_level.bin"), base64.b64decode(content)) == (True, b"\xff\x00")
    assert len(manifest["data"]) == 2


@pytest.mark.parametrize(
    ("mode", "roles"),
    [
        ("single", {"driver"}),
        ("multi-threaded", {"driver"}),
        # Workers there only act.
        ("async", {"driver"}),
        ("distributed", {"driver", "server", "worker"}),
    ],
)
def test_large_files_go_in_pieces_to_all_pods_that_learn(planned, packed, mode, roles, monkeypatch, tmp_path):
    content = np.random.default_rng(1).bytes(2_500_000)
    plan = planned(files=[packed("/home/me/good.safetensors", content)], run_mode=mode)
    maps = {
        each["metadata"]["name"]: each["binaryData"]
        for each in render(plan)
        if each["metadata"]["labels"].get(naming.ROLE) == naming.FILES
    }
    assert len(maps) == 3
    for held in maps.values():
        assert sum(len(base64.b64decode(part)) for part in held.values()) <= 1_000_000
    assert root(plan)["metadata"]["annotations"][naming.CARRIED].split() == list(maps)
    found = set()
    for job in jobs(plan):
        spec = job["spec"]["template"]["spec"]
        for volume in spec["volumes"]:
            if volume["name"] == "carried":
                found.add(job["metadata"]["labels"]["steppe/role"])
                sources = [source["configMap"]["name"] for source in volume["projected"]["sources"]]
        container = spec["containers"][0]
        assert ("STEPPE_CARRIED" in variables_of(container)) == (job["metadata"]["labels"]["steppe/role"] in found)
    assert found == roles
    # The files as a Pod sees them.
    for name in sources:
        for key, part in maps[name].items():
            (tmp_path / key).write_bytes(base64.b64decode(part))
    monkeypatch.setenv("STEPPE_CARRIED", str(tmp_path))
    assert unpack("/home/me/good.safetensors") == content


def test_config_maps_of_other_content_have_other_names(planned, packed):
    one, same, other = (planned(files=[packed("x", content)]).carried for content in (b"1", b"1", b"2"))
    assert one == same
    assert not one.keys() & other.keys()


def test_only_the_driver_can_write_the_results(planned):
    for mode in MODES:
        for job in jobs(planned(run_mode=mode)):
            mounts = job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
            has_results = any(mount["name"] == "results" for mount in mounts)
            assert has_results == (job["metadata"]["labels"][naming.ROLE] == "driver")
    plan = planned()
    (mount,) = [each for each in reader(plan)["spec"]["containers"][0]["volumeMounts"] if each["name"] == "results"]
    assert mount["readOnly"] is True


def test_a_reader_runs_the_image_that_wrote_the_results(planned):
    images = {"driver": {"image": "registry/steppe:1"}, "worker": {"image": "registry/simulator:2"}}
    for own, image in ((images, "registry/steppe:1"), (images | {"image": "other:1"}, "registry/steppe:1")):
        (container,) = reader(planned(kubernetes=own))["spec"]["containers"]
        assert container["image"] == image
    (container,) = reader(planned(kubernetes={"image": "other:1"}))["spec"]["containers"]
    assert container["image"] == "other:1"


def test_simultaneous_readers_have_different_names_and_prefer_one_node(planned):
    plan = planned()
    first, second = (reader(plan, suffix=suffix) for suffix in ("a", "b"))
    assert [pod["metadata"]["name"] for pod in (first, second)] == [f"{plan.name}-reader-a", f"{plan.name}-reader-b"]
    (wish,) = first["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    wanted = wish["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert wanted.items() <= second["metadata"]["labels"].items()
    # Object storage can be read from every node.
    assert "affinity" not in reader(planned(kubernetes={"results": "s3://bucket"}))["spec"]


def test_the_job_of_workers_never_gives_up(planned):
    plan = planned(run_mode="async", num_workers=2)
    # The largest that Kubernetes takes: it counts all restarts since the start.
    assert job_of(plan, "worker")["spec"]["backoffLimit"] == 2**31 - 1


def test_a_replaced_driver_is_not_counted_as_failed(planned):
    rules = job_of(planned(), "driver")["spec"]["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert codes == {"FailJob": [3], "Ignore": [4]}


@pytest.mark.parametrize(("run_mode", "token"), [("async", "learner"), ("distributed", "ray")])
def test_only_the_driver_has_the_token_that_opens_everything(planned, run_mode, token):
    for group in (plan := planned(run_mode=run_mode)).pod_groups:
        volumes = {volume["name"]: volume for volume in pod_template(plan, group)["spec"]["volumes"]}
        keys = [item["key"] for item in volumes["tokens"]["secret"]["items"]]
        assert keys == (["door", token] if group.role == "driver" else [token])


def policy_of(plan):
    return [each for each in render(plan, owner_uid="uid") if each["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize(
    ("run_mode", "of_own_pods"), [("single", None), ("async", [8471]), ("distributed", "any"), ("multi-threaded", None)]
)
def test_other_pods_of_the_cluster_reach_only_the_status_server(planned, run_mode, of_own_pods):
    plan = planned(run_mode=run_mode)
    (policy,) = policy_of(plan)
    own = {"matchLabels": {naming.RUN: plan.name}}
    assert policy["spec"]["podSelector"] == own
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["metadata"]["ownerReferences"][0]["uid"] == "uid"
    to_all = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
    assert [[port["port"] for port in rule["ports"]] for rule in to_all] == [[8470]]
    others = [rule for rule in policy["spec"]["ingress"] if "from" in rule]
    assert all(rule["from"] == [{"podSelector": own}] for rule in others)
    found = [[port["port"] for port in rule["ports"]] if "ports" in rule else "any" for rule in others]
    assert found == ([] if of_own_pods is None else [of_own_pods])


def test_an_experiment_can_do_without_a_network_policy(planned):
    assert policy_of(planned(kubernetes={"network_policy": False})) == []


@pytest.mark.parametrize("mode", MODES)
def test_containers_can_write_to_their_volumes_only(planned, mode):
    plan = planned(run_mode=mode)
    pods = [job["spec"]["template"]["spec"] for job in jobs(plan)] + [reader(plan)["spec"]]
    for pod in pods:
        security = pod["containers"][0]["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert {"name": mounts["/tmp"], "emptyDir": {}} in pod["volumes"]


def test_a_simulators_own_image_is_writable_unless_forbidden(planned):
    own = {"worker": {"image": "registry.example.com/team/simulator:7"}}
    for asked, (driver, worker) in ((None, (True, False)), (True, (True, True)), (False, (False, False))):
        plan = planned(run_mode="async", kubernetes=own | {"read_only_root": asked})
        for role, expected in (("driver", driver), ("worker", worker)):
            container = container_of(plan, role)
            assert container["securityContext"].get("readOnlyRootFilesystem", False) is expected
            assert ("/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]) is expected


def test_a_tmp_volume_of_the_user_is_kept(planned):
    volumes = {"volumes": [{"name": "mine", "emptyDir": {}}], "volume_mounts": [{"name": "mine", "mountPath": "/tmp"}]}
    mounts = container_of(planned(kubernetes=volumes), "driver")["volumeMounts"]
    assert [mount["name"] for mount in mounts if mount["mountPath"] == "/tmp"] == ["mine"]
