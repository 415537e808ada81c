"""Sends the figures of `/metrics` as OpenTelemetry metrics: OTLP over HTTP, now and then.

The optional packages ``opentelemetry-sdk`` and ``opentelemetry-exporter-otlp-proto-http`` send, on
a thread of theirs: an endpoint that is away costs a line in the log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from everflow.errors import ConfigError
from everflow.observe.figures import COUNTER, FIGURES, Figure
from everflow.observe.observation import Observation

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

log = logging.getLogger("everflow")

EXTRA = "pip install 'everflow[opentelemetry]'"
SETTING = "otel.exporter.otlp.metrics.endpoint"
ATTEMPT_S = 10.0
END_MS = 3_000
SENDERS_LOG = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


class OtlpExport:
    """Sends from its making until `close`. ``endpoint``: a URL with its path; ``interval_ms``:
    between two requests. Headers and certificates are in OpenTelemetry's variables of the
    environment, as they may be secrets. ``observe`` is called on the sender's thread, once or a few
    times for each request. ConfigError where the packages are missing."""

    def __init__(
        self,
        endpoint: str,
        interval_ms: int,
        observe: Callable[[], Observation],
        application_id: str,
        client_id: str,
        version: str,
    ) -> None:
        try:
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise ConfigError(
                f"{SETTING} = {endpoint!r} needs packages that are not installed "
                f"({error.name}): {EXTRA}"
            ) from error
        self._observe = observe
        reader = PeriodicExportingMetricReader(
            _exporter(endpoint, interval_ms),
            export_interval_millis=interval_ms,
            export_timeout_millis=ATTEMPT_S * 1000,
        )
        about = {
            "service.name": application_id,
            "service.instance.id": client_id,
            "service.version": version,
        }
        self._provider = MeterProvider(
            metric_readers=[reader], resource=Resource.create(about), shutdown_on_exit=False
        )
        meter = self._provider.get_meter("everflow", version)
        for figure in FIGURES:
            kind = (
                meter.create_observable_counter
                if figure.kind == COUNTER
                else meter.create_observable_gauge
            )
            kind(figure.name, callbacks=[self._reader_of(figure)], description=figure.text)

    def close(self) -> None:
        """Send the last figures, if the endpoint takes them within some seconds. Never raises."""
        try:
            self._provider.shutdown(timeout_millis=END_MS)
        except Exception:  # its own, of any kind: the instance ends in order
            log.debug("The OpenTelemetry exporter did not end in order", exc_info=True)

    def _reader_of(self, figure: Figure) -> Callable[[Any], Iterable[Any]]:
        from opentelemetry.metrics import Observation as Observed

        def read(_: Any) -> Iterable[Any]:
            seen = self._observe()
            for labels, value in figure.read(seen):
                if not math.isnan(value):  # what is not known is not sent
                    named = dict(zip(figure.labels, labels, strict=True))
                    yield Observed(value, {"client_id": seen.client_id, **named})

        return read


def _exporter(endpoint: str, interval_ms: int) -> MetricExporter:
    """One that says once that the endpoint is away, and once that it is back."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import MetricExportResult

    logging.getLogger(SENDERS_LOG).setLevel(logging.CRITICAL)  # it says the same for each attempt

    class Exporter(OTLPMetricExporter):
        failed = False

        def export(self, *arguments: Any, **named: Any) -> MetricExportResult:
            result = super().export(*arguments, **named)
            fails = result is not MetricExportResult.SUCCESS
            if fails and not self.failed:
                log.warning(
                    "The figures cannot be sent to %s (%s): tried again every %g s, and "
                    "processing goes on",
                    endpoint,
                    SETTING,
                    interval_ms / 1000,
                )
            elif self.failed and not fails:
                log.info("The figures are sent to %s again", endpoint)
            self.failed = fails
            return result

    return Exporter(endpoint=endpoint, timeout=ATTEMPT_S)
