"""deploy/monitoring asks for series that the server has, and its alert rules pass promtool."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tools.make_reference import render_full_page

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
SERIES = re.compile(r"\b(?:vllm:|sglang:|eyas_|http_)\w+")


def expressions():
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return found, [rule["expr"] for rule in group["rules"]]


def test_every_series_exists():
    series = set(re.findall(r"(?m)^([a-z0-9_:]+)(?=[{ ])", render_full_page().decode()))
    known = {name for name in series if not name.startswith("#")}
    panels, rules = expressions()
    assert len(panels) > 20
    assert len(rules) > 8
    labeled_only = {"http_requests_total", "vllm:admission_rejections_total"}  # have samples after the first response
    for expression in (*panels, *rules):
        assert set(SERIES.findall(expression)) <= known | labeled_only | {"eyas_rounds_total"}, expression


def test_every_rule_is_tested():
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    tests = yaml.safe_load((MONITORING / "alerts_test.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in group["rules"]}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
@pytest.mark.parametrize("check", [("check", "alerts.yaml"), ("test", "alerts_test.yaml")])
def test_rules(check):
    command, file = check
    done = subprocess.run(["promtool", command, "rules", file], cwd=MONITORING, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
