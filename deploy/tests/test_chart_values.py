"""The chart's values and their schema: all of them are in it, and what is misspelt is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/everflow"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
ADDED_BY_HELM = {"global"}


def objects(schema: dict[str, Any], values: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each object of the schema whose keys are the chart's, with the values that it is of."""
    if "properties" in schema and isinstance(values, dict):
        yield schema, values
        for key, inner in schema["properties"].items():
            yield from objects(inner, values.get(key))


def refusal(**changed: Any) -> str:
    """What is said of the chart's values with ``changed`` in them."""
    with pytest.raises(jsonschema.ValidationError) as failure:
        jsonschema.validate({**VALUES, **changed}, SCHEMA)
    return str(failure.value.message)


def test_the_schema_is_one_and_takes_the_charts_own_values() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)


def test_the_schema_has_the_keys_of_the_values_and_no_others() -> None:
    found = list(objects(SCHEMA, VALUES))
    assert len(found) > 8
    for schema, values in found:
        assert set(schema["properties"]) - ADDED_BY_HELM == set(values)
        assert schema["additionalProperties"] is False


def test_a_misspelt_value_is_refused_wherever_it_stands() -> None:
    assert "'replicaCont' was unexpected" in refusal(replicaCont=3)
    assert "'enable' was unexpected" in refusal(query={**VALUES["query"], "enable": True})
    assert "'applicationID'" in refusal(streams={"applicationID": "orders"})


def test_a_value_of_another_type_is_refused() -> None:
    assert "'integer'" in refusal(replicaCount="three")
    assert "'boolean'" in refusal(staticMembership="no")
    assert "minimum" in refusal(terminationGracePeriodSeconds=10)


def test_settings_and_what_is_kubernetes_own_are_free() -> None:
    streams = {**VALUES["streams"], "config": {"a.b": 1, "c": "x", "d": True}}
    tolerations = [{"key": "spot", "operator": "Exists"}]
    changed = {"streams": streams, "tolerations": tolerations, "podLabels": {"team": "shop"}}
    jsonschema.validate({**VALUES, **changed, "global": {}}, SCHEMA)
