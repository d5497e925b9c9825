"""The OpenAPI document, from the same types that validate requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import toolwright
from toolwright.sandbox import codejudge as judge
from toolwright.sandbox import fusion
from toolwright.sandbox import requests as own

_REFERENCE = "#/components/schemas/{model}"
_PROBLEMS = {
    "401": "no token, or a wrong one",
    "403": "a web page of another site",
    "404": "no such session",
    "410": "the session is lost",
    "413": "the body is too large",
    "415": "the body is not sent as application/json",
    "421": "a host name that is not the server's",
    "422": "the body does not fit the schema",
    "429": "the queue is full; retry after Retry-After",
    "503": "the server is starting or stopping",
}
_OF_SESSIONS = ("404", "410")
_Models = tuple[type[BaseModel], ...]
_BATCH: tuple[_Models, _Models] = (judge.BatchSubmission,), (judge.BatchJudged,)
# Path: summary, request bodies, results.
_POST: dict[str, tuple[str, _Models, _Models]] = {
    "/run": ("Run code", (own.RunRequest, judge.Submission), (own.RunResult, judge.SubmissionResult)),
    "/run/batch": (
        "Run many",
        (own.BatchRequest, judge.BatchSubmission),
        (own.BatchResult, judge.BatchSubmissionResult),
    ),
    "/run/long-batch": ("Run many, patiently", _BATCH[0], (judge.BatchSubmissionResult,)),
    "/judge": (
        "Judge code by what it prints",
        (own.JudgeRequest, judge.Submission),
        (own.JudgeResult, judge.Judged),
    ),
    "/judge/batch": ("Judge many", *_BATCH),
    "/judge/long-batch": ("Judge many, patiently", *_BATCH),
    "/run_code": ("SandboxFusion's way to run code", (fusion.RunCodeRequest,), (fusion.RunCodeResponse,)),
    "/sessions": ("Open a session", (own.SessionRequest,), (own.SessionOpened,)),
    "/sessions/{id}/run": ("Run a cell", (own.CellRequest,), (own.CellResult,)),
}
_GET = {
    "/health": "Whether the server can take work",
    "/ping": "Whether the server is there",
    "/status": "Queue, workers, sessions, languages and the isolation in force",
}


def document() -> dict[str, Any]:
    """Version 3.1."""
    models = {model for _, bodies, results in _POST.values() for model in (*bodies, *results)}
    models.add(own.RefusedRequest)
    modes = [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)]
    _, definitions = models_json_schema(modes, ref_template=_REFERENCE)  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for path, (summary, bodies, results) in _POST.items():
        problems = [code for code in _PROBLEMS if "{id}" in path or code not in _OF_SESSIONS]
        body = {"requestBody": {"required": True, "content": _json(_reference(bodies))}}
        paths[path] = {"post": _operation(path, summary, _json(_reference(results)), problems) | body}
    closed = {"type": "object", "properties": {"closed": {"type": "boolean"}}, "required": ["closed"]}
    problems = ["401", "403", "404", "410", "421", "503"]
    paths["/sessions/{id}"] = {
        "delete": _operation("/sessions/{id}", "End a session", _json(closed), problems)
    }
    for path, summary in _GET.items():
        paths[path] = {"get": _operation(path, summary, _json({}), ["401", "403", "421", "503"])}
    text = {"text/plain": {"schema": {"type": "string"}}}
    paths["/metrics"] = {"get": _operation("/metrics", "For Prometheus", text, ["401", "403", "421"])}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Toolwright sandbox", "version": toolwright.__version__},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(path: str, summary: str, content: dict[str, Any], problems: Sequence[str]) -> dict[str, Any]:
    refused = _json(_reference((own.RefusedRequest,)))
    responses = {"200": {"description": "done", "content": content}}
    responses |= {code: {"description": _PROBLEMS[code], "content": refused} for code in problems}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if "{id}" in path:
        name = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [name]
    return operation


def _reference(models: _Models) -> dict[str, Any]:
    references = [{"$ref": _REFERENCE.format(model=model.__name__)} for model in models]
    return references[0] if len(references) == 1 else {"anyOf": references}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
