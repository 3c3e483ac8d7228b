"""The dashboard in the documentation asks for metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from sonoran.llm import LLM
from tests.server.running import running

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def test_every_metric_of_the_dashboard_is_served(pair: tuple[str, str]) -> None:
    target, draft = pair
    speculative = {"method": "ssd", "model": draft}
    with LLM(target, speculative_config=speculative, max_model_len=128) as llm, running(llm) as server:
        server.ask(prompt="to be", max_tokens=12)
        _, text, _ = server.call("/metrics")
    served = set(re.findall(r"^([a-z_]+:[a-z0-9_]+)(?:\{| )", text, re.MULTILINE))
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"(?:vllm|sonoran):[a-z0-9_]+", target["expr"])
    }
    assert len(asked) > 12 and asked <= served
    labels = {name for panel in panels for name in re.findall(r"by \(([a-z]+)\)", str(panel["targets"]))}
    assert all(f'{label}="' in text for label in labels)
