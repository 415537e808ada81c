"""The stores of a real instance, read by a client over TLS with a token while it runs."""

from pathlib import Path
from typing import Any

import pytest
import trustme

from everflow import StreamsBuilder, TimeWindows, Topology, Windowed, serdes
from everflow.client import QueryClient, QueryUnavailableError
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TOKEN = "0123456789abcdef0123456789abcdef"


def topology(source: str) -> Topology:
    builder = StreamsBuilder()
    records = builder.stream(source, key=serdes.string(), value=serdes.string()).group_by_key()
    records.count(store="counts")
    records.windowed_by(TimeWindows.of_size(1_000).grace(0)).count(store="windows")
    return builder.build()


def test_a_client_reads_the_committed(app: Application, cluster: Cluster, tmp_path: Path) -> None:
    source = cluster.topic("in", 3)
    authority, certificate, key = (tmp_path / name for name in ("ca", "certificate", "key"))
    made = trustme.CA()
    made.cert_pem.write_to_path(str(authority))
    issued = made.issue_cert("127.0.0.1", "localhost")
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    token = tmp_path / "token"
    token.write_text(TOKEN)
    settings: dict[str, Any] = {
        "query_listen": "127.0.0.1:0",
        "query_token_file": str(token),
        "query_ssl_certificate_location": str(certificate),
        "query_ssl_key_location": str(key),
    }
    records = [text(f"k{n % 7}", "v", 1_000 * (1 + n // 70), n % 3) for n in range(210)]
    with app.running(topology(source), **settings) as streams:
        cluster.write(source, records)
        app.until_processed(streams, source)
        assert streams.query_address is not None
        with QueryClient(
            streams.query_address, token=TOKEN, ca=str(authority), timeout=30, patience=30
        ) as client:
            rows = list(client.range("counts"))
            assert sum(count for _, count in rows) == 210
            assert {key for key, _ in rows} == {f"k{n}" for n in range(7)}
            windows = list(client.fetch_all("windows", 3_000, 3_000))
            assert {window for window, _ in windows} == {
                Windowed(f"k{n}", 3_000, 4_000) for n in range(7)
            }
            assert sum(count for _, count in windows) == 70
            assert [store.name for store in client.stores()] == ["counts", "windows"]
            address = streams.query_address
    with (
        QueryClient(address, token=TOKEN, ca=str(authority), patience=0) as late,
        pytest.raises(QueryUnavailableError),
    ):
        late.stores()
