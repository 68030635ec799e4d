from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from served import router, serving

PROGRAM = Path(sys.executable).with_name("schemathesis")
TOKEN = "a-token-of-enough-letters"


def test_the_document_names_the_served_models(two):
    document = two.get("/openapi.json").json
    infer = document["paths"]["/v2/models/{model}/infer"]
    assert infer["parameters"][0]["schema"]["enum"] == ["pole", "a", "b"]
    tensor = document["components"]["schemas"]["InferRequest"]["properties"]["inputs"]["items"]["properties"]
    assert tensor["name"] == {"const": "observation"}
    assert "security" not in document


def test_every_path_of_the_document_exists(two):
    for path, methods in two.get("/openapi.json").json["paths"].items():
        version = two.get("/v2/models/b").json["versions"][-1]
        real = path.replace("{model}", "b").replace("{version}", version)
        for method in {"get", "post"} & methods.keys():
            assert two.ask(method.upper(), real).status in (200, 400), path


@pytest.mark.timeout(900)
def test_schemathesis_finds_no_errors(tmp_path):
    if not PROGRAM.exists():
        pytest.skip("schemathesis is not installed; pip install schemathesis")
    shown = {"Authorization": f"Bearer {TOKEN}"}
    with serving(router(tmp_path), tmp_path, token=TOKEN) as served:
        # A schema cannot say that a shape must fit its numbers, or that an id must have been answered.
        words = ["run", f"{served.url}/openapi.json", "--exclude-checks", "positive_data_acceptance"]
        # An unloaded endpoint rightly answers 503.
        words += ["--exclude-path-regex", "/unload$"]
        words += ["--max-examples", "20", "--phases", "examples,coverage,fuzzing", "--seed", "1", "--no-color"]
        words += [
            "--generation-database",
            "none",
            "--request-timeout",
            "60",
            "--header",
            f"Authorization: Bearer {TOKEN}",
        ]
        found = subprocess.run(
            [str(PROGRAM), *words], capture_output=True, text=True, timeout=800, check=False, cwd=tmp_path
        )
        assert found.returncode == 0, found.stdout[-6000:]
        assert served.get("/standing", **shown).json["server"]["failed"] == 0
