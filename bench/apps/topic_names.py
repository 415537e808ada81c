"""How the harness tells a topology its topics: `everflow run` passes no arguments."""

from __future__ import annotations

INPUT_TOPIC_VARIABLE = "BENCH_INPUT_TOPIC"
OUTPUT_TOPIC_VARIABLE = "BENCH_OUTPUT_TOPIC"
