"""A client that a generator makes from the description in the tree: it submits, reads, lists, resizes and cancels a job, and
what it makes of every message is the message again.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.main import Service
from tests.integration.service.conftest import TOKEN, make_settings
from tests.integration.service.serving import serving

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "reference" / "openapi.json"
NAME = "headway_generated_client"
SCALARS: dict[str, Any] = {"integer": 3, "number": 1.5, "boolean": True, "string": "word", "null": None}
AT = "2026-11-22T01:36:49.691549+00:00"
DEEP = 6
"""Messages that hold themselves end here."""
Schema = dict[str, Any]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The package that the generator has made; a part of the description that it cannot do is an error."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "settings.yaml").write_text("post_hooks: []\n")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", str(DOCUMENT)]
    options = ["--config", "settings.yaml", "--output-path", NAME, "--meta", "none", "--fail-on-warning"]
    subprocess.run([*command, *options], cwd=folder, check=True, timeout=120)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(NAME)
    finally:
        sys.path.remove(str(folder))
        for module in [name for name in sys.modules if name.split(".")[0] == NAME]:
            del sys.modules[module]


def of(package: Any, path: str) -> Any:
    """A module of the client, or something in it."""
    module, _, name = path.partition(":")
    found = importlib.import_module(f"{package.__name__}.{module}")
    return getattr(found, name) if name else found


@pytest.mark.slow
def test_a_job_from_its_submission_to_its_end(
    client: Any, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    service = Service(make_settings(database_url, redis_url, f"file://{tmp_path}/storage"))
    models = of(client, "models")
    with serving(service.app()) as base:
        known = client.AuthenticatedClient(base, token=TOKEN, raise_on_unexpected_status=True)
        with known:
            spec = models.JobSpec(
                name="generated", run="python -V", elastic=models.Elastic(min_=1, max_=8), priority=70
            )
            made = of(client, "api.jobs.submit_job").sync(client=known, body=spec)
            assert made.state is models.JobState.PENDING
            assert (made.spec.priority, made.spec.elastic.max_) == (70, 8)
            read = of(client, "api.jobs.get_job").sync("generated", client=known)
            assert read.id == made.id
            assert read.to_dict() == of(client, "api.jobs.get_job").sync(made.id, client=known).to_dict()
            page = of(client, "api.jobs.list_jobs").sync(client=known, live=True, limit=5)
            assert [one.id for one in page.items] == [made.id]
            request = models.ResizeRequest(slots=4)
            resized = of(client, "api.jobs.resize_job").sync(made.id, client=known, body=request)
            assert resized.pinned_size == 4
            gone = of(client, "api.jobs.cancel_job").sync(
                made.id, client=known, body=models.CancelRequest(force=True)
            )
            assert (gone.state, gone.reason) == (models.JobState.CANCELLED, models.Reason.USER_REQUEST)
            missing = of(client, "api.jobs.get_job").sync("no-such-job", client=known)
            assert (type(missing), missing.code) == (models.Problem, "not_found")
            wrong = models.JobSpec(name="generated", run="")
            refused = of(client, "api.jobs.submit_job").sync(client=known, body=wrong)
            assert "run" in refused.errors[0].field


def instance(schema: Schema, schemas: dict[str, Schema], variant: int, depth: int = 0) -> Any:
    """A value with every field; of alternatives the one with this number, or the last."""
    if "$ref" in schema:
        return instance(schemas[schema["$ref"].rpartition("/")[2]], schemas, variant, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][min(variant, len(schema["enum"]) - 1)]
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        number = min(variant, len(alternatives) - 1) if depth < DEEP else len(alternatives) - 1
        return instance(alternatives[number], schemas, variant, depth + 1)
    kind = schema.get("type")
    if kind == "array":
        each = schema.get("prefixItems") or [schema["items"]][: depth < DEEP]
        return [instance(one, schemas, variant, depth + 1) for one in each]
    if kind == "object":
        fields = schema.get("properties", {})
        made = {name: instance(one, schemas, variant, depth + 1) for name, one in fields.items()}
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and not fields and depth < DEEP:
            made["key"] = instance(more, schemas, variant, depth + 1)
        return made
    if schema.get("format") == "date-time":
        return AT
    return SCALARS[kind] if kind is not None else None


def class_of(models: Any, name: str) -> Any:
    """The class of a component: the generator leaves out what Python allows in no name."""
    wanted = "".join(letter for letter in name if letter.isalnum()).lower()
    return next(getattr(models, one) for one in dir(models) if one.lower() == wanted)


def test_every_message_is_the_same_after_a_way_through_the_client(client: Any) -> None:
    schemas: dict[str, Schema] = json.loads(DOCUMENT.read_text())["components"]["schemas"]
    models = of(client, "models")
    objects = {name: one for name, one in schemas.items() if one.get("type") == "object"}
    assert len(objects) > 100
    for name, schema in objects.items():
        for variant in range(4):
            message = instance(schema, schemas, variant)
            assert class_of(models, name).from_dict(dict(message)).to_dict() == message, name
