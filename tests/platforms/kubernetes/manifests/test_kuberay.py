"""RayJobs for KubeRay, and a driver in a Ray that KubeRay has started."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap

import jsonschema
import kubernetes_validate
import pytest
from kubernetes_validate.utils import latest_version
from processes import wait_until
from ray_operator import refusal_of, schema_of

from steppe.platforms.kubernetes.manifests import kuberay, naming, permissions
from steppe.platforms.kubernetes.manifests.rendering import render, root, service, workloads
from steppe.platforms.kubernetes.pod import roles
from steppe.runners import pods

MODES = ("single", "multi-threaded", "async")
# The fields as KubeRay's API names them; it silently drops unknown ones.
SPEC_FIELDS = {"submissionMode", "entrypoint", "shutdownAfterJobFinishes", "backoffLimit", "rayClusterSpec"}
CLUSTER_FIELDS = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


@pytest.fixture
def ray_planned(planned):
    def plan(engine="kuberay", **fields):
        own = {"engine": engine} | fields.pop("kubernetes", {})
        given = {"run_mode": "distributed", "num_workers": 5, "num_parameter_servers": 2} | fields
        return planned(kubernetes=own, **given)

    return plan


def job_of(plan):
    (job,) = workloads(plan)
    assert job["kind"] == "RayJob"
    return job


def head_of(plan):
    return job_of(plan)["spec"]["rayClusterSpec"]["headGroupSpec"]


def group_of(plan, name):
    groups = job_of(plan)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return next(group for group in groups if group["groupName"] == name)


def container_of(group):
    return group["template"]["spec"]["containers"][0]


def variables_of(container):
    return {each["name"]: each.get("value") for each in container["env"]}


def volumes_of(group):
    return {volume["name"]: volume for volume in group["template"]["spec"]["volumes"]}


def groups_of(plan):
    return [head_of(plan), group_of(plan, "server"), group_of(plan, "worker")]


def test_every_pod_of_a_ray_job_has_the_large_files(ray_planned, packed):
    plan = ray_planned(files=[packed("good.safetensors", b"x")])
    for group in (head_of(plan), group_of(plan, "server"), group_of(plan, "worker")):
        (mount,) = [each for each in container_of(group)["volumeMounts"] if each["name"] == "carried"]
        assert variables_of(container_of(group))["STEPPE_CARRIED"] == mount["mountPath"]
        assert "carried" in [volume["name"] for volume in group["template"]["spec"]["volumes"]]


def test_a_ray_job_has_only_fields_that_kuberay_knows(ray_planned):
    job = job_of(ray_planned())
    assert set(job["spec"]) == SPEC_FIELDS
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) == CLUSTER_FIELDS
    assert set(cluster["headGroupSpec"]) == {"rayStartParams", "template"}
    assert all(set(group) == GROUP_FIELDS for group in cluster["workerGroupSpecs"])


@pytest.mark.parametrize("fields", [{}, {"num_workers": 7, "ray": {"gpus_per_worker": 0.33}, "name": "9_a.B" * 20}])
def test_kuberay_accepts_the_ray_job(ray_planned, fields):
    job = job_of(ray_planned(**fields))
    jsonschema.Draft7Validator(closed(schema_of())).validate({"spec": job["spec"]})
    assert refusal_of(job) is None


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda job: job["metadata"].update(name="x" * 48), "cannot be the name of a RayJob"),
        (lambda job: job["spec"].update(suspend=True, shutdownAfterJobFinishes=False), "shutdownAfterJobFinishes"),
        (lambda job: job["spec"].update(submissionMode="HttpMode"), "how to give the order"),
        (lambda job: job["spec"]["rayClusterSpec"].update(rayVersion="2.51.2"), "knows no tokens"),
        (lambda job: job["spec"]["rayClusterSpec"]["headGroupSpec"].update(resources={"CPU": "1"}), "rayStartParams"),
    ],
)
def test_the_fake_operator_refuses_the_same_mistakes_as_kuberay(ray_planned, change, refusal):
    job = job_of(ray_planned())
    change(job)
    assert refusal in refusal_of(job)


def closed(schema):
    """The same schema, in which an unknown field is an error."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(each) for name, each in schema.items()}
    return inner | ({"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {})


@pytest.mark.parametrize("version", ["1.30", latest_version()])
def test_its_pods_are_valid(ray_planned, version):
    own = {"sidecars": [{"image": "world:1"}]}
    for group in groups_of(ray_planned(modules={"mine.py": "x = 1\n"}, kubernetes=own)):
        template = group["template"]
        metadata = template["metadata"] | {"name": "x"}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        kubernetes_validate.validate(made, version, strict=True)


def test_the_ray_job_replaces_the_jobs_and_is_owned_by_the_root(ray_planned):
    plan = ray_planned()
    made = render(plan, owner_uid="uid")
    assert [each["kind"] for each in made] == [
        "ConfigMap",
        "PersistentVolumeClaim",
        "Service",
        "NetworkPolicy",
        "RayJob",
    ]
    assert made[-1]["metadata"]["ownerReferences"][0]["uid"] == "uid"
    assert root(plan)["metadata"]["annotations"][naming.ENGINE] == "kuberay"


@pytest.mark.parametrize("mode", MODES)
def test_run_modes_without_ray_are_jobs_whatever_the_engine(ray_planned, mode):
    plan = ray_planned(run_mode=mode)
    assert {each["kind"] for each in workloads(plan)} == {"Job"}
    assert root(plan)["metadata"]["annotations"][naming.ENGINE] == "jobs"


def test_a_cluster_can_choose_kuberay_for_all_its_experiments(planned):
    plan = planned({"kubernetes": {"engine": "kuberay"}}, run_mode="distributed")
    assert job_of(plan)["metadata"]["name"] == plan.name


@pytest.mark.parametrize("name", ["x", "A_very.long-name_of-an_experiment.with-signs" * 2, "1"])
def test_kuberay_accepts_the_name_of_every_experiment(ray_planned, name):
    found = job_of(ray_planned(name=name))["metadata"]["name"]
    assert len(found) <= 47
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", found)


def test_the_service_and_the_client_find_the_head(ray_planned):
    plan = ray_planned()
    labels = head_of(plan)["template"]["metadata"]["labels"]
    assert service(plan)["spec"]["selector"].items() <= labels.items()
    assert labels[naming.START] == "1"
    container = container_of(head_of(plan))
    assert container["name"] == labels[naming.ROLE] == "driver"
    # If any port has a name, KubeRay finds its own ports by name.
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "door": 8470,
        "gcs-server": 6379,
        "dashboard": 8265,
    }


def test_only_the_head_has_the_results_and_a_token(ray_planned):
    plan = ray_planned()
    head, *others = groups_of(plan)
    assert "results" in volumes_of(head)
    assert [item["key"] for item in volumes_of(head)["tokens"]["secret"]["items"]] == ["door"]
    for group in others:
        assert not {"results", "tokens"} & set(volumes_of(group))
        mounted = {mount["name"] for mount in container_of(group)["volumeMounts"]}
        assert mounted == {"experiment", "memory", "steppe-tmp"}


def test_kuberay_sets_the_commands_of_containers(ray_planned):
    for group in groups_of(ray_planned()):
        assert not {"command", "args"} & set(container_of(group))


def test_ray_demands_a_token(ray_planned):
    assert job_of(ray_planned())["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    made = job_of(ray_planned())
    assert not kuberay.is_too_old_for(made)
    # An old KubeRay's schema drops unknown fields.
    del made["spec"]["rayClusterSpec"]["authOptions"]
    assert kuberay.is_too_old_for(made)


def test_each_server_and_worker_has_a_pod_with_room_for_it(ray_planned):
    plan = ray_planned()
    found = {
        group["groupName"]: (group["replicas"], group["minReplicas"], group["maxReplicas"])
        for group in job_of(plan)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    }
    assert found == {"server": (2, 2, 2), "worker": (5, 5, 5)}
    rooms = [shlex.split(group["rayStartParams"].get("resources", ""))[:1] for group in groups_of(plan)]
    assert [json.loads(room[0]) if room else None for room in rooms] == [
        None,
        {"steppe_server": 1},
        {"steppe_worker": 1},
    ]


def test_workers_share_a_gpu_by_fractions(ray_planned):
    group = group_of(ray_planned(num_workers=7, ray={"gpus_per_worker": 0.33}), "worker")
    assert group["replicas"] == 3
    assert container_of(group)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert group["rayStartParams"]["num-gpus"] == "1"
    assert json.loads(group["rayStartParams"]["resources"].strip("'")) == {"steppe_worker": 3}


def test_queue_and_pod_settings_reach_the_ray_job(ray_planned):
    own = {
        "queue": "team",
        "node_selector": {"pool": "a"},
        "annotations": {"note": "x"},
        "env": {"A": "1"},
        "grace_seconds": 90,
        "worker": {"image": "simulator:2", "memory": 2},
    }
    plan = ray_planned(kubernetes=own)
    assert job_of(plan)["metadata"]["labels"][naming.KUEUE_QUEUE] == "team"
    for group in groups_of(plan):
        assert group["template"]["spec"]["nodeSelector"] == {"pool": "a"}
        assert group["template"]["metadata"]["annotations"] == {"note": "x"}
        assert variables_of(container_of(group))["A"] == "1"
    assert container_of(group_of(plan, "worker"))["image"] == "simulator:2"
    assert variables_of(container_of(head_of(plan)))["RAY_JOB_STOP_WAIT_TIME_S"] == "90"


def test_the_driver_works_in_the_folder_of_the_modules(ray_planned):
    plan = ray_planned(modules={"mine.py": "x = 1\n"})
    assert job_of(plan)["spec"]["entrypoint"].startswith("cd /steppe/modules && exec python3 ")
    assert all("modules" in volumes_of(group) for group in groups_of(plan))


def test_ray_accepts_its_start_parameters(ray_planned):
    scripts = pytest.importorskip("ray.scripts.scripts")
    plan = ray_planned(ray={"gpus_per_worker": 0.5})
    parsed = []
    for group in groups_of(plan):
        # The command as KubeRay assembles it, read by a shell.
        line = " ".join(
            f"--{name}" if value == "true" and name != "include-dashboard" else f"--{name}={value}"
            for name, value in group["rayStartParams"].items()
        )
        shell = ["bash", "-c", f"printf '%s\\n' {line}"]
        environment = os.environ | {"STEPPE_POD_IP": "10.0.0.7"}
        words = subprocess.run(shell, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()
        parsed.append(scripts.start.make_context("start", words).params)
    assert [each["node_ip_address"] for each in parsed] == ["10.0.0.7"] * 3
    assert [each["num_cpus"] for each in parsed] == [0, 1000, 1000]
    assert [each["num_gpus"] for each in parsed] == [0, 0, 1]
    assert parsed[0]["include_dashboard"] is True
    assert json.loads(parsed[2]["resources"]) == {"steppe_worker": 2}


def test_the_role_names_ray_jobs_only_where_they_are_needed():
    assert ("create", "rayjobs", "ray.io") in permissions.needed("kuberay")
    assert not [each for each in permissions.needed() if each[2] == "ray.io"]


def test_a_driver_joins_the_ray_that_is_there(ray_planned, monkeypatch):
    spec = ray_planned().spec
    assert (pods.ray_of(spec).port, pods.ray_of(spec).address) == (6379, None)
    monkeypatch.setenv(pods.RAY_VARIABLE, "10.0.0.7:6379")
    assert (pods.ray_of(spec).port, pods.ray_of(spec).address) == (None, "10.0.0.7:6379")


@pytest.fixture
def drive(tmp_path, monkeypatch):
    """Starts a driver, by default as in a Pod of KubeRay; its training is any program."""
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "door").write_text("secret")
    monkeypatch.setattr(roles, "DRIVER_FILE", tmp_path / "driver.pid")
    changes = {
        "RESULTS": str(tmp_path),
        "TOKENS": str(tmp_path / "tokens"),
        "TERMINATION_LOG": str(tmp_path / "last-words"),
        "DOOR_PORT": 0,
        "LINGER_SECONDS": 0.0,
        "RESTART_SECONDS": 0.0,
    }
    started = []

    def start(training, told=(pods.RAY_VARIABLE, "127.0.0.1:1")):
        program = f"""
            import pathlib, sys
            from steppe.platforms.kubernetes.pod import roles

            vars(roles).update({changes!r}, DRIVER_FILE=pathlib.Path({str(roles.DRIVER_FILE)!r}))
            roles.Driver._command = lambda self: [sys.executable, "-c", {textwrap.dedent(training)!r}]
            sys.exit(roles.Driver().run())
        """
        command = [sys.executable, "-c", textwrap.dedent(program)]
        environment = os.environ | {"STEPPE_POD_EXPERIMENT": "x"} | dict([told])
        started.append(subprocess.Popen(command, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("told", [(pods.RAY_VARIABLE, "127.0.0.1:1"), ("STEPPE_POD_HAS_SIDECARS", "1")])
def test_a_training_that_dies_restarts_in_the_same_pod(drive, tmp_path, told):
    count = tmp_path / "count"
    training = f"""
        import pathlib, sys
        file = pathlib.Path({str(count)!r})
        file.write_text(file.read_text() + "x" if file.exists() else "x")
        sys.exit(0 if len(file.read_text()) == 3 else 1)
        """
    driver = drive(training, told)
    assert driver.wait(60) == 0
    assert count.read_text() == "xxx"
    assert not roles.DRIVER_FILE.exists()


def test_a_training_that_failed_for_good_does_not_restart(drive):
    assert drive("import sys; sys.exit(3)").wait(60) == 3


def test_the_training_is_saved_before_ray_is_ended(drive, tmp_path):
    saved, started = tmp_path / "saved", tmp_path / "started"
    driver = drive(
        f"""
        import pathlib, signal, sys, time

        def save(*_):
            time.sleep(0.5)
            pathlib.Path({str(saved)!r}).write_text("all")
            sys.exit(143)

        signal.signal(signal.SIGTERM, save)
        pathlib.Path({str(started)!r}).touch()
        time.sleep(60)
        """
    )
    wait_until(started.exists, "the training to start", seconds=60, pause=0.1)
    assert roles.main(["hand-over"]) == 0
    assert saved.read_text() == "all"
    assert json.loads((tmp_path / "last-words").read_text())["is_over"] is False
    # KubeRay would count its end as a failure, so it waits to be ended with Ray.
    with pytest.raises(subprocess.TimeoutExpired):
        driver.wait(1)


def test_a_hand_over_without_a_driver_ends_at_once(drive):
    assert roles.hand_over() == 0
