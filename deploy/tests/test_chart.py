"""The chart, rendered by helm itself and checked against Kubernetes' schemas; and that its commands
are commands."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from deploy.tests.operators_schemas import SPECS
from everflow import StreamsConfig
from everflow.cli.app import app
from everflow.cli.commands import assignments
from everflow.instance.serving.routes import NO_TOKEN

pytestmark = [pytest.mark.slow]

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "everflow"
HELM = "helm.sh/helm/v3/cmd/helm@v3.18.4"
ADAPTER = CHART.parents[1] / "prometheus-adapter.yaml"
OPERATORS = {"namespace", "pod", "container", "endpoint", "job", "instance"}
"""Labels that the Prometheus operator gives the series of a PodMonitor's pods."""
KUBERNETES = "1.30"
GIVEN = ("streams.applicationId=orders", "streams.brokers=broker:9092")


@pytest.fixture(scope="session")
def helm() -> str:
    """helm as it is on the path, or made by Go, once, into everflow's cache."""
    found = shutil.which("helm")
    if found:
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everflow" / "bin"
    made = cache / "helm"
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if not made.exists():
        if go is None:
            pytest.skip("neither helm nor Go is here: the chart is not rendered")
        ran = subprocess.run(
            [go, "install", HELM],
            env={**os.environ, "GOBIN": str(cache), "GOTOOLCHAIN": "auto"},
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            pytest.skip(f"helm cannot be made here: {ran.stderr[-300:]}")
    return str(made)


def rendered(
    helm: str, *values: str, file: Path | None = None, version: str = KUBERNETES
) -> list[dict[str, Any]]:
    arguments = [part for value in (*GIVEN, *values) for part in ("--set", value)]
    arguments += [] if file is None else ["--values", str(file)]
    ran = subprocess.run(
        [
            *(helm, "template", "orders", str(CHART), "--namespace", "shop"),
            *("--kube-version", version),
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return [found for found in yaml.safe_load_all(ran.stdout) if found]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [one for one in objects if one["kind"] == kind]
    return found


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def settings(found: dict[str, Any]) -> dict[str, str]:
    """What a container's arguments set, with the pod's name written out as the kubelet does."""
    (pod,) = [one for one in found["env"] if one["name"] == "POD_NAME"]
    assert pod["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    given = [one.removeprefix("--set=") for one in found["args"] if one.startswith("--set=")]
    return assignments("--set", [one.replace("$(POD_NAME)", "orders-2") for one in given])


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("persistence.enabled=false", "rack.enabled=false", "staticMembership=false"),
        ("podMonitor.enabled=true", "prometheusRule.enabled=true"),
        ("autoscaling.enabled=true", "streams.secretName=passwords"),
        ("query.enabled=true", "query.tokenSecretName=tokens"),
        (
            "autoscaling.enabled=true",
            "autoscaling.kind=keda",
            "autoscaling.topics={in}",
            "autoscaling.internalTopics={by-item-repartition}",
            "autoscaling.authenticationRef=passwords",
            "autoscaling.idleReplicas=0",
        ),
        (
            "query.enabled=true",
            "query.tokenSecretName=tokens",
            "query.tlsSecretName=certificate",
            "persistence.storageClass=fast",
            "nodeSelector.disk=ssd",
            "env[0].name=HTTP_PROXY",
            "env[0].value=http://proxy:3128",
            "imagePullSecrets[0].name=registry",
        ),
    ],
)
def test_what_is_rendered_fits_the_schemas(helm: str, values: tuple[str, ...]) -> None:
    objects = rendered(helm, *values)
    assert objects
    for one in objects:
        assert one["apiVersion"]
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "orders"
        own = SPECS.get((one["apiVersion"], one["kind"]))
        if own is None:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
        else:
            jsonschema.validate(one["spec"], own)


def test_the_instances_command_is_read_and_its_settings_are_settings(helm: str) -> None:
    found = container(rendered(helm))
    assert found["command"] == ["tini", "--", "everflow"]
    _, program, *arguments = found["args"]
    assert program == "app:topology"
    options = dict(one.removeprefix("--").split("=", 1) for one in arguments if "--set=" not in one)
    assert options.pop("settings-folder") == "/run/everflow"
    given = settings(found)
    run = get_command(app).commands["run"]  # type: ignore[attr-defined]
    known = {text for parameter in run.params for text in parameter.opts}
    assert {f"--{option}" for option in options} <= known
    config = StreamsConfig(
        {
            **given,
            "application.id": options["application-id"],
            "bootstrap.servers": options["bootstrap-servers"],
            "client.rack": "b",
            "client.tag.zone": "b",
        }
    )
    assert config.group_instance_id == "orders-2"
    assert config.topic() == {
        "segment.bytes": "52428800",
        "min.cleanable.dirty.ratio": "0.2",
        "min.insync.replicas": "2",
    }
    grace_ms = of_kind(rendered(helm), "StatefulSet")["spec"]["template"]["spec"][
        "terminationGracePeriodSeconds"
    ]
    assert grace_ms * 1000 > config.drain_timeout_ms + 60_000


def test_a_tag_of_digits_is_a_tag(helm: str, tmp_path: Path) -> None:
    """A number of a file of values is a float to Helm, and printed with an exponent."""
    file = tmp_path / "values.yaml"
    file.write_text("imageTag: 20260101")
    assert container(rendered(helm, file=file))["image"] == "everflow-app:20260101"


def test_settings_are_the_numbers_that_were_written(helm: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(
        "streams: {config: {linger.ms: 0.5, max.memory.bytes: 4000000000}, "
        "topic: {min.cleanable.dirty.ratio: 0.3}}"
    )
    found = settings(container(rendered(helm, file=file)))
    assert found["linger.ms"] == "0.5"
    assert found["max.memory.bytes"] == "4000000000"
    assert found["topic.min.cleanable.dirty.ratio"] == "0.3"


def test_a_member_that_the_chart_does_not_name_may_be_named(helm: str) -> None:
    own = "streams.config.group\\.instance\\.id=$(POD_NAME)"
    found = settings(container(rendered(helm, "staticMembership=false", own)))
    assert found["group.instance.id"] == "orders-2"


def test_nothing_answers_queries_unless_it_is_asked_for(helm: str) -> None:
    found = container(rendered(helm))
    assert not {"query.listen", "query.token.file", "application.server"} & set(settings(found))
    assert [port["name"] for port in found["ports"]] == ["http"]
    assert "token" not in {volume["name"] for volume in found["volumeMounts"]}


def test_queries_are_answered_at_the_name_of_the_pod(helm: str) -> None:
    """Its governing service's name is in it, which has no address of its own and lists it also
    while it is not ready: an instance that restores is asked how it does."""
    objects = rendered(helm, "query.enabled=true", "query.tokenSecretName=t", "query.port=7000")
    found = container(objects)
    config = StreamsConfig(
        {"application.id": "orders", "bootstrap.servers": "broker:9092", **settings(found)}
    )
    assert config.query_listen == "0.0.0.0:7000"
    assert config.application_server == "orders-2.orders.shop.svc:7000"
    service = of_kind(objects, "Service")
    assert of_kind(objects, "StatefulSet")["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    port = {"name": "query", "port": 7000, "targetPort": "query"}
    assert port in service["spec"]["ports"]
    assert {"name": "query", "containerPort": 7000} in found["ports"]


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_token_is_a_file_that_the_user_can_read(helm: str, enabled: str) -> None:
    """The page asks for it, too: it is there without the query service."""
    objects = rendered(
        helm,
        *(f"query.enabled={enabled}", "query.tokenSecretName=tokens", "query.tokenSecretKey=mine"),
    )
    found, pod = container(objects), of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "token"]
    secret = volume["secret"]
    assert secret["secretName"] == "tokens"
    assert secret["defaultMode"] == 0o440
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    (mount,) = [one for one in found["volumeMounts"] if one["name"] == "token"]
    (item,) = secret["items"]
    assert item["key"] == "mine"
    assert settings(found)["query.token.file"] == f"{mount['mountPath']}/{item['path']}"


def test_https_takes_its_certificate_from_files(helm: str) -> None:
    plain, named = "query.enabled=true", ("query.tokenSecretName=t", "query.tlsSecretName=cert")
    objects = rendered(helm, plain, *named)
    found, pod = container(objects), of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "tls"]
    (mount,) = [one for one in found["volumeMounts"] if one["name"] == "tls"]
    assert volume["secret"]["secretName"] == "cert"
    assert volume["secret"]["defaultMode"] == 0o440
    config = StreamsConfig(
        {"application.id": "orders", "bootstrap.servers": "broker:9092", **settings(found)}
    )
    files = {item["path"]: item["key"] for item in volume["secret"]["items"]}
    assert files == {"tls.crt": "tls.crt", "tls.key": "tls.key", "ca.crt": "ca.crt"}
    assert {
        config.query_ssl_certificate_location,
        config.query_ssl_key_location,
        config.query_ssl_ca_location,
    } == {f"{mount['mountPath']}/{path}" for path in files}
    other = container(rendered(helm, plain, *named, "query.tlsAuthorityKey="))
    assert "query.ssl.ca.location" not in settings(other)
    closed = container(rendered(helm, *named))
    assert not any(name.startswith("query.ssl") for name in settings(closed))


def test_that_no_token_is_wanted_has_to_be_said(helm: str) -> None:
    objects = rendered(helm, "query.enabled=true", "query.tokenSecretName=none")
    assert settings(container(objects))["query.token.file"] == NO_TOKEN
    volumes = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    assert "token" not in {one["name"] for one in volumes}


def test_the_pre_stop_hook_tells_a_scale_in_from_a_restart(helm: str) -> None:
    objects = rendered(helm)
    hook = container(objects)["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == [
        *("everflow", "drain", "127.0.0.1:9464", "--stateful-set=orders", "--timeout=150")
    ]
    (rule,) = of_kind(objects, "Role")["rules"]
    assert rule["resources"] == ["statefulsets"]
    assert rule["resourceNames"] == ["orders"]
    drain = get_command(app).commands["drain"]  # type: ignore[attr-defined]
    assert {"--stateful-set", "--timeout"} <= {o for p in drain.params for o in p.opts}
    (rack,) = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["initContainers"]
    assert rack["command"][:2] == ["everflow", "rack"]


@pytest.mark.parametrize(
    ("values", "kept_apart"),
    [
        ((), ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]),
        (("rack.topologyKey=room",), ["kubernetes.io/hostname", "room"]),
        (("rack.enabled=false",), ["kubernetes.io/hostname"]),
    ],
)
def test_pods_stay_apart(helm: str, values: tuple[str, ...], kept_apart: list[str]) -> None:
    """All standbys of tasks would be in one zone with their active ones else."""
    pod = of_kind(rendered(helm, *values), "StatefulSet")["spec"]["template"]
    found = pod["spec"]["affinity"]["podAntiAffinity"]
    terms = [
        one["podAffinityTerm"] for one in found["preferredDuringSchedulingIgnoredDuringExecution"]
    ]
    assert [term["topologyKey"] for term in terms] == kept_apart
    for term in terms:
        assert term["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_autoscalers_own_the_number_of_replicas(helm: str) -> None:
    assert of_kind(rendered(helm), "StatefulSet")["spec"]["replicas"] == 1
    scaled = rendered(helm, "autoscaling.enabled=true")
    assert "replicas" not in of_kind(scaled, "StatefulSet")["spec"]
    metric = of_kind(scaled, "HorizontalPodAutoscaler")["spec"]["metrics"][0]["object"]["metric"]
    assert metric["name"] == "everflow_desired_instances"
    keda = rendered(
        helm, "autoscaling.enabled=true", "autoscaling.kind=keda", "autoscaling.topics={in,other}"
    )
    triggers = of_kind(keda, "ScaledObject")["spec"]["triggers"]
    assert [one["metadata"]["topic"] for one in triggers] == ["in", "other"]
    assert {one["metadata"]["consumerGroup"] for one in triggers} == {"orders"}


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_an_autoscaler_goes_down_one_pod_at_a_time_and_late(helm: str, kind: str) -> None:
    scaled = rendered(
        helm,
        *("autoscaling.enabled=true", f"autoscaling.kind={kind}", "autoscaling.topics={in}"),
        "autoscaling.scaleDownStabilizationSeconds=400",
    )
    if kind == "hpa":
        behavior = of_kind(scaled, "HorizontalPodAutoscaler")["spec"]["behavior"]
    else:
        advanced = of_kind(scaled, "ScaledObject")["spec"]["advanced"]
        behavior = advanced["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"] == {
        "stabilizationWindowSeconds": 400,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
    }


@pytest.mark.parametrize(
    ("version", "kind", "tolerance"),
    [("1.30", "hpa", [None, None]), ("1.35", "hpa", ["0", "0"]), ("1.35", "keda", [None, None])],
)
def test_a_step_of_a_tenth_is_a_step_where_kubernetes_has_a_tolerance(
    helm: str, version: str, kind: str, tolerance: list[str | None]
) -> None:
    """From ten pods to eleven: its own tolerance is 10 %."""
    scaled = rendered(
        helm,
        *("autoscaling.enabled=true", f"autoscaling.kind={kind}", "autoscaling.topics={in}"),
        version=version,
    )
    if kind == "hpa":
        found = of_kind(scaled, "HorizontalPodAutoscaler")
        kubernetes_validate.validate(found, version, strict=True)
        behavior = found["spec"]["behavior"]
    else:
        advanced = of_kind(scaled, "ScaledObject")["spec"]["advanced"]
        behavior = advanced["horizontalPodAutoscalerConfig"]["behavior"]
    assert [behavior[way].get("tolerance") for way in ("scaleUp", "scaleDown")] == tolerance


def test_keda_asks_brokers_with_a_password_and_may_have_no_pod(helm: str) -> None:
    keda = ("autoscaling.enabled=true", "autoscaling.kind=keda", "autoscaling.topics={in}")
    plain = of_kind(rendered(helm, *keda), "ScaledObject")["spec"]
    assert "authenticationRef" not in plain["triggers"][0]
    assert "idleReplicaCount" not in plain
    more = ("autoscaling.authenticationRef=passwords", "autoscaling.idleReplicas=0")
    scaled = of_kind(rendered(helm, *keda, *more), "ScaledObject")["spec"]
    assert [one["authenticationRef"] for one in scaled["triggers"]] == [{"name": "passwords"}]
    assert scaled["idleReplicaCount"] == 0


def test_the_adapter_finds_the_figure_that_the_autoscaler_follows(helm: str) -> None:
    """It knows an object by labels that the series themselves have: those that the Prometheus
    operator gives each pod's, and those that the PodMonitor adds."""
    objects = rendered(helm, "podMonitor.enabled=true", "autoscaling.enabled=true")
    (endpoint,) = of_kind(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    labels = OPERATORS | {one["targetLabel"] for one in endpoint["relabelings"]}
    (rule,) = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    assert set(re.findall(r"(\w+)!?=", rule["seriesQuery"])) <= labels
    assert set(rule["resources"]["overrides"]) <= labels
    (metric,) = of_kind(objects, "HorizontalPodAutoscaler")["spec"]["metrics"]
    wanted = metric["object"]["describedObject"]
    (label,) = [
        label
        for label, about in rule["resources"]["overrides"].items()
        if about.get("group", "") == wanted["apiVersion"].partition("/")[0]
    ]
    assert rule["resources"]["overrides"][label]["resource"] == wanted["kind"].lower()
    assert rule["name"]["as"] == metric["object"]["metric"]["name"]
    query = rule["metricsQuery"]
    for field, text in (
        ("Series", "everflow_desired_instances"),
        ("LabelMatchers", f'namespace="shop",{label}="{wanted["name"]}"'),
        ("GroupBy", label),
    ):
        query = query.replace(f"<<.{field}>>", text)
    assert query == (
        'max(everflow_desired_instances{namespace="shop",statefulset="orders"}) by (statefulset)'
    )


@pytest.mark.parametrize(
    ("values", "job"), [((), "shop/orders"), (("prometheusRule.job=mine",), "mine")]
)
def test_alerts_watch_the_pod_monitor_s_job(helm: str, values: tuple[str, ...], job: str) -> None:
    objects = rendered(helm, "podMonitor.enabled=true", "prometheusRule.enabled=true", *values)
    monitor = of_kind(objects, "PodMonitor")
    assert monitor["metadata"]["name"] == "orders"
    assert "jobLabel" not in monitor["spec"], "the job is <namespace>/<name> of the PodMonitor"
    (group,) = of_kind(objects, "PrometheusRule")["spec"]["groups"]
    (written,) = yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"]
    for rule, source in zip(group["rules"], written["rules"], strict=True):
        assert rule == source | {"expr": source["expr"].replace('"everflow"', f'"{job}"')}
    expressions = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    assert expressions["EverflowInstanceGone"] == f'up{{job="{job}"}} == 0'
    assert f'{{job="{job}"}}' in expressions["EverflowAllInstancesGone"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("streams.brokers=",), "streams.brokers must be set"),
        (("streams.applicationId=",), "streams.applicationId must be set"),
        (("replicaCont=3",), "replicaCont"),
        (("autoscaling.enable=true",), "enable"),
        (("query.enabled=true",), "query.tokenSecretName must"),
        (
            ("streams.config.drain\\.timeout\\.ms=600000",),
            "terminationGracePeriodSeconds=180 .*drain.timeout.ms=600000: .* 660 ",
        ),
        (("terminationGracePeriodSeconds=100",), "give 120 at least"),
        (("autoscaling.enabled=true", "autoscaling.kind=x"), "autoscaling.kind is hpa"),
        (("autoscaling.enabled=true", "autoscaling.kind=keda"), "autoscaling.topics must name"),
        (
            ("autoscaling.enabled=true", "autoscaling.minReplicas=5"),
            "autoscaling.minReplicas=5 is above autoscaling.maxReplicas=4",
        ),
        (
            ("autoscaling.enabled=true", "autoscaling.kind=keda", "autoscaling.minReplicas=5"),
            "autoscaling.minReplicas=5 is above autoscaling.maxReplicas=4",
        ),
        (
            ("streams.config.group\\.instance\\.id=orders",),
            "streams.config has group.instance.id, ",
        ),
        (("streams.config.num\\.stream\\.threads=2",), "set streams.threads"),
        (
            ("query.enabled=true", "query.tokenSecretName=t", "streams.config.query\\.listen=:1"),
            "set query.port",
        ),
        (
            ("streams.config.topic\\.min\\.insync\\.replicas=1",),
            "it is in streams.topic, as min.insync.replicas",
        ),
    ],
)
def test_what_is_missing_is_said(helm: str, values: tuple[str, ...], said: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        rendered(helm, *values)
    assert re.search(said, failure.value.stderr)
