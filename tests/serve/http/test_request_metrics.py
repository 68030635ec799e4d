from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import one_policy, router, serving

from steppe.errors import UserError
from steppe.serve.http.request_metrics import AccessLog


def samples(served):
    text = served.get("/metrics").body.decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_requests_by_route_and_rewards(tmp_path):
    with serving(router(tmp_path), tmp_path) as served:
        for number in range(20):
            served.infer(id=f"r{number}")
            served.post("/v2/models/pole/feedback", {"id": f"r{number}", "reward": 0.5})
        served.post("/v2/models/pole/infer", b"{")
        values = samples(served)
    infer = ("operation", "infer")
    assert values["steppe_serve_request_duration_seconds_count", infer, ("status", "200")] == 20
    assert values["steppe_serve_request_duration_seconds_bucket", ("le", "+Inf"), infer, ("status", "200")] == 20
    assert values["steppe_serve_request_duration_seconds_count", infer, ("status", "400")] == 1
    routes = [("branch", name) for name in "ab"]
    pole = ("router", "pole")
    assert sum(values["steppe_serve_route_requests_total", route, pole] for route in routes) == 20
    assert sum(values["steppe_serve_route_feedback_total", route, pole] for route in routes) == 20
    assert sum(values["steppe_serve_route_reward", route, pole] for route in routes) == pytest.approx(10)
    assert sum(values["steppe_serve_route_probability", route, pole] for route in routes) == pytest.approx(1)
    assert max(values["steppe_serve_route_best", route, pole] for route in routes) == 1
    assert values["steppe_serve_ledger_up",] == 1
    assert "steppe_serve_open_episodes" in {name for name, *_ in values}


def test_the_metrics_follow_promtools_rules(two):
    two.infer()
    families = list(text_string_to_metric_families(two.get("/metrics").body.decode()))
    own = [family for family in families if family.name.startswith("steppe_")]
    assert len(own) > 15
    for family in own:
        assert family.documentation
        assert all(character.islower() or character == "_" for character in family.name)
        names = {sample.name for sample in family.samples}
        # These endings belong to certain types; the parser removes them from the name of a counter.
        if family.type == "counter":
            assert names == {f"{family.name}_total"} or not names
        elif family.type != "histogram":
            assert not family.name.endswith(("_total", "_sum", "_count", "_bucket")), family.name
        assert not {"gauge", "counter", "histogram"} & set(family.name.split("_"))
        assert not {"ms", "milliseconds", "minutes", "mb", "kb"} & set(family.name.split("_"))


def test_every_metric_of_the_dashboard_exists(two):
    from pathlib import Path

    two.infer()
    dashboard = json.loads((Path(__file__).parents[3] / "docs" / "grafana" / "steppe-serving.json").read_text())
    told = {name for name, *_ in samples(two)}
    asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", []))
    words = {
        word for word in "".join(c if c.isalnum() or c == "_" else " " for c in asked).split() if "steppe_" in word
    }
    assert words
    # Nothing was rewarded here, so there is no mean yet.
    assert words - told <= {"steppe_serve_route_mean_reward", "steppe_serve_policy_mean_reward"}


def test_the_access_log_has_one_json_object_for_each_request(tmp_path):
    log = tmp_path / "access.jsonl"
    with serving(one_policy(tmp_path), tmp_path, access_log=log) as served:
        served.infer()
        served.infer()
        served.get("/nothing?token=secret")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 200, 404]
    assert lines[0]["operation"] == "infer"
    assert lines[0]["policy"] == "pole"
    assert lines[0]["client"] == "127.0.0.1"
    assert 0 < lines[0]["milliseconds"] < 10_000
    assert "secret" not in log.read_text()


def test_an_access_log_that_cannot_be_written_fails_at_once(tmp_path):
    with pytest.raises(UserError, match="choose another file"):
        AccessLog(tmp_path / "nothing" / "log")


def test_the_state_of_the_endpoint_is_plain_values(two):
    two.infer()
    stands = two.get("/standing").json
    assert stands["endpoint"]["routers"][0]["branches"][0]["name"] == "a"
    assert stands["server"]["latency"]["p50"] > 0
    assert stands["server"]["is_draining"] is False
