"""An `Observation` as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from everflow.observe.figures import COUNTER, FIGURES, Figure
from everflow.observe.observation import Observation

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(seen: Observation, figures: Sequence[Figure] = FIGURES) -> bytes:
    """The text of `/metrics`; a figure without a value is left out."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Looked(seen, figures))
    return generate_latest(registry)


class _Looked(Collector):
    def __init__(self, seen: Observation, figures: Sequence[Figure]) -> None:
        self._seen, self._figures = seen, figures

    def collect(self) -> Iterator[Metric]:
        for figure in self._figures:
            family = _family(figure)
            for labels, value in figure.read(self._seen):
                family.add_metric((self._seen.client_id, *labels), value)
            if family.samples:
                yield family


def _family(figure: Figure) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if figure.kind == COUNTER else GaugeMetricFamily
    return kind(figure.name, figure.text, labels=("client_id", *figure.labels))
