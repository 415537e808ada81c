"""What the chart uses of kinds that are no Kubernetes' own: fields by the documentation of the
Prometheus operator (monitoring.coreos.com/v1) and of KEDA (keda.sh/v1alpha1), and no others."""

from typing import Any

TEXT = {"type": "string"}
WHOLE = {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}
DURATION = {"type": "string", "pattern": r"^([0-9]+(ms|[smhdwy]))+$"}


def fields(needed: dict[str, Any], **others: Any) -> dict[str, Any]:
    """An object with these fields, of which the first have to be there."""
    return {
        "type": "object",
        "properties": {**needed, **others},
        "required": list(needed),
        "additionalProperties": False,
    }


def some(items: dict[str, Any]) -> dict[str, Any]:
    """A list with one at least."""
    return {"type": "array", "items": items, "minItems": 1}


POD_MONITOR = fields(
    {
        "selector": fields({"matchLabels": TEXTS}),
        "podMetricsEndpoints": some(
            fields(
                {"port": TEXT},
                path=TEXT,
                interval=DURATION,
                relabelings=some(fields({"sourceLabels": some(TEXT), "targetLabel": TEXT})),
            )
        ),
    }
)
PROMETHEUS_RULE = fields(
    {
        "groups": some(
            fields(
                {
                    "name": TEXT,
                    "rules": some(
                        fields(
                            {"alert": TEXT, "expr": TEXT, "labels": TEXTS, "annotations": TEXTS},
                            **{"for": DURATION},
                        )
                    ),
                }
            )
        )
    }
)
POLICY = fields({"type": {"enum": ["Pods", "Percent"]}, "value": WHOLE, "periodSeconds": WHOLE})
DIRECTION = fields({"policies": some(POLICY)}, stabilizationWindowSeconds=WHOLE)
SCALED_OBJECT = fields(
    {
        "scaleTargetRef": fields({"apiVersion": TEXT, "kind": TEXT, "name": TEXT}),
        "triggers": some(
            # KEDA's metadata of a trigger are texts, numbers too.
            fields({"type": TEXT, "metadata": TEXTS}, authenticationRef=fields({"name": TEXT}))
        ),
    },
    minReplicaCount=WHOLE,
    maxReplicaCount=WHOLE,
    pollingInterval=WHOLE,
    cooldownPeriod=WHOLE,
    idleReplicaCount=WHOLE,
    advanced=fields(
        {
            "horizontalPodAutoscalerConfig": fields(
                {"behavior": fields({"scaleUp": DIRECTION, "scaleDown": DIRECTION})}
            )
        }
    ),
)
SPECS = {
    ("monitoring.coreos.com/v1", "PodMonitor"): POD_MONITOR,
    ("monitoring.coreos.com/v1", "PrometheusRule"): PROMETHEUS_RULE,
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED_OBJECT,
}
"""(apiVersion, kind) -> JSON schema of its spec."""
