"""What is checked before instances are started elsewhere, as processes or on other hosts.

Each of them would say the same, some seconds later and again and again.
"""

from __future__ import annotations

from collections.abc import Mapping

from everflow.cli.program import put_current_folder_on_path
from everflow.cli.program_source import module_and_name, require_name
from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.kafka.client_settings import check_clients

OWN_OF_AUTOSCALE = {
    "group.instance.id": "instances come and go, and no two may have the same",
    "state.dir": "--folder says where each has its own",
    "http.listen": "each has an address of its own, which is said when it starts",
}


def checked(target: str, settings: Mapping[str, object]) -> StreamsConfig:
    """ConfigError, TopologyError: what no instance could run with."""
    put_current_folder_on_path()
    require_name(*module_and_name(target))
    config = StreamsConfig(**settings)
    check_clients(config)
    return config


def require_none_of(own: Mapping[str, str], settings: Mapping[str, object], who: str) -> None:
    """ConfigError for a setting that ``who`` gives each instance itself; ``own``: key -> why."""
    for key, why in own.items():
        if key in settings:
            raise ConfigError(f"{key} cannot be set for {who}: {why}.")
