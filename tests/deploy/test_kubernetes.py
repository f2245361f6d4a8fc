"""deploy/kubernetes: valid by Kubernetes' own schemas, and true to the server and to each other."""

import re
import subprocess

import pytest
import yaml

from attnd_server import ROOT
from project import drain_ms, image_user, split_flags, version, watchdog_seconds

FOLDER = ROOT / "deploy" / "kubernetes"
OLDEST, NEWEST = "1.30", "1.37"  # preStop.sleep is on from 1.30


@pytest.fixture(scope="module")
def manifests():
    """Kind -> its one manifest."""
    found = [each for file in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]
    kinds = {each["kind"]: each for each in found}
    assert len(kinds) == len(found) == 7
    return kinds


@pytest.fixture(scope="module")
def pod(manifests):
    return manifests["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod):
    (only,) = pod["containers"]
    return only


@pytest.fixture(scope="module")
def flags(container):
    return split_flags(container["args"])


def validate(*files, kubernetes):
    return subprocess.run(
        [ROOT / "build/venv/bin/kubernetes-validate", "--strict", "-k", kubernetes, *files],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kubernetes", [OLDEST, NEWEST])
def test_schemas(kubernetes):
    files = sorted(FOLDER.glob("*.yaml"))
    checked = validate(*files, kubernetes=kubernetes)
    assert checked.returncode == 0 and checked.stdout.count("passed") == len(files), checked.stdout + checked.stderr


def test_the_schemas_catch_what_they_are_for(tmp_path):
    wrong = (FOLDER / "deployment.yaml").read_text().replace("readinessProbe:", "readyProbe:")
    (tmp_path / "wrong.yaml").write_text(wrong)
    assert validate(tmp_path / "wrong.yaml", kubernetes=NEWEST).returncode != 0


def test_a_pod_is_given_the_time_that_its_end_takes(pod, container, flags):
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = sleep + drain_ms(flags) / 1000 + watchdog_seconds()
    assert pod["terminationGracePeriodSeconds"] >= needed
    # Before the drain: the edge asks for names again, and they may be as old as a cluster's DNS lets them be.
    edge = (ROOT / "deploy/envoy/envoy.yaml").read_text()
    dns_record_seconds_max = 5  # CoreDNS's default for a cluster's own names
    assert sleep >= int(re.search(r"dns_refresh_rate: (\d+)s", edge).group(1)) + dns_record_seconds_max


def test_everyone_means_the_same_pods_and_ports(manifests, container, flags):
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifests["Deployment"]["spec"]["selector"]["matchLabels"],
        manifests["Service"]["spec"]["selector"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        *[
            each["labelSelector"]["matchLabels"]
            for each in manifests["Deployment"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
        ],
    ]
    assert all(each and each.items() <= labels.items() for each in selectors)
    for kind, manifest in manifests.items():
        if kind != "Namespace":
            assert manifest["metadata"]["namespace"] == manifests["Namespace"]["metadata"]["name"], kind
    scaled = manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("Deployment", manifests["Deployment"]["metadata"]["name"])

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert flags["listen"].endswith(f":{ports['grpc']}")
    assert flags["admin_listen"] == f"$(POD_IP):{ports['admin']}"
    (service_port,) = manifests["Service"]["spec"]["ports"]
    assert service_port["targetPort"] in ports and service_port["port"] == ports["grpc"]
    assert manifests["Service"]["spec"]["clusterIP"] == "None"
    allowed = {port["port"] for rule in manifests["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == set(ports)
    annotations = manifests["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) == ports["admin"]
    edge = (ROOT / "deploy/envoy/envoy.yaml").read_text()
    name = f"{manifests['Service']['metadata']['name']}.{manifests['Namespace']['metadata']['name']}.svc.cluster.local"
    assert f"{{address: {name}, port_value: {ports['grpc']}}}" in edge


def test_probes_ask_the_admin_port(container):
    paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {kind: each["path"] for kind, each in paths.items()} == {
        "startup": "/readyz",
        "readiness": "/readyz",
        "liveness": "/healthz",
    }
    assert all(each["port"] == "admin" for each in paths.values())
    # A pod is ended only long after calls stopped going to it.
    seconds = {
        kind: container[f"{kind}Probe"]["periodSeconds"] * container[f"{kind}Probe"]["failureThreshold"]
        for kind in ("readiness", "liveness")
    }
    assert seconds["liveness"] >= 3 * seconds["readiness"]


def test_no_privileges(manifests, pod, container):
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == image_user()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert manifests["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == manifests["ServiceAccount"]["metadata"]["name"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert manifests["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert manifests["NetworkPolicy"]["spec"]["egress"] == []


def test_files_of_flags_are_mounted(pod, container, flags):
    volumes = {volume["name"]: volume["secret"] for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    files = [value for value in flags.values() if value.startswith("/")]
    assert len(files) == 4
    for file in files:
        mount = mounts[file.rpartition("/")[0]]
        assert mount["readOnly"] and "subPath" not in mount
        # The container's user reads them by its group, and nobody else does.
        assert volumes[mount["name"]]["defaultMode"] == 0o440
        # The README's commands make the secret with that very key.
        command = rf"secret generic {volumes[mount['name']]['secretName']} .*--from-file={file.rpartition('/')[2]}"
        assert re.search(command, (FOLDER / "README.md").read_text()), command


def test_resources_and_replicas(manifests, container):
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"].isdigit()  # whole CPUs
    scaler = manifests["HorizontalPodAutoscaler"]["spec"]
    assert "replicas" not in manifests["Deployment"]["spec"]  # a second apply would undo the scaler's choice
    assert scaler["minReplicas"] > manifests["PodDisruptionBudget"]["spec"]["maxUnavailable"]
    assert container["image"] == f"attnd:{version()}"
