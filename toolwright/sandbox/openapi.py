"""The OpenAPI document, from the same types that validate requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import toolwright
from toolwright.sandbox import codejudge, fusion, requests

_REFERENCE = "#/components/schemas/{model}"
_PROBLEMS = {
    "401": "no token, or a wrong one",
    "403": "a web page of another site",
    "413": "the body is too large",
    "415": "the body is not sent as application/json",
    "421": "a host name that is not the server's",
    "422": "the body does not fit the schema",
    "429": "the queue is full; retry after Retry-After",
    "503": "the server is starting or stopping",
}
_BODIES: dict[str, tuple[str, tuple[type[BaseModel], ...], tuple[type[BaseModel], ...]]] = {
    "/run": (
        "Run code",
        (requests.RunRequest, codejudge.Submission),
        (requests.RunResult, codejudge.SubmissionResult),
    ),
    "/run/batch": (
        "Run many",
        (requests.BatchRequest, codejudge.BatchSubmission),
        (requests.BatchResult, codejudge.BatchSubmissionResult),
    ),
    "/run/long-batch": (
        "Run many, patiently",
        (codejudge.BatchSubmission,),
        (codejudge.BatchSubmissionResult,),
    ),
    "/judge": (
        "Judge code by what it prints",
        (requests.JudgeRequest, codejudge.Submission),
        (requests.JudgeResult, codejudge.Judged),
    ),
    "/judge/batch": ("Judge many", (codejudge.BatchSubmission,), (codejudge.BatchJudged,)),
    "/judge/long-batch": ("Judge many, patiently", (codejudge.BatchSubmission,), (codejudge.BatchJudged,)),
    "/run_code": ("SandboxFusion's way to run code", (fusion.RunCodeRequest,), (fusion.RunCodeResponse,)),
    "/sessions": ("Open a session", (requests.SessionRequest,), (requests.SessionOpened,)),
    "/sessions/{id}/run": ("Run a cell", (requests.CellRequest,), (requests.CellResult,)),
}
_READS = {
    "/health": "Whether the server can take work",
    "/ping": "Whether the server is there",
    "/status": "Queue, workers, sessions, languages and the isolation in force",
}


def document() -> dict[str, Any]:
    """Version 3.1."""
    models = {model for _, bodies, results in _BODIES.values() for model in (*bodies, *results)}
    models.add(requests.RefusedRequest)
    modes = [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)]
    _, definitions = models_json_schema(modes, ref_template=_REFERENCE)  # type: ignore[arg-type]
    paths: dict[str, Any] = {path: {"post": _post(path, *parts)} for path, parts in _BODIES.items()}
    paths["/sessions/{id}"] = {"delete": _close()}
    for path, summary in _READS.items():
        paths[path] = {
            "get": {
                "summary": summary,
                "responses": {"200": _json({}), **_problems("401", "403", "421", "503")},
            }
        }
    paths["/metrics"] = {
        "get": {
            "summary": "For Prometheus",
            "responses": {
                "200": {"description": "metrics", "content": {"text/plain": {"schema": {"type": "string"}}}},
                **_problems("401", "403", "421"),
            },
        }
    }
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


def _reference(models: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    references = [{"$ref": _REFERENCE.format(model=model.__name__)} for model in models]
    return references[0] if len(references) == 1 else {"anyOf": references}


def _json(schema: dict[str, Any], description: str = "done") -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _problems(*codes: str) -> dict[str, Any]:
    texts = {**_PROBLEMS, "404": "no such session", "410": "the session is lost"}
    return {code: _json(_reference((requests.RefusedRequest,)), texts[code]) for code in codes}


def _post(
    path: str, summary: str, bodies: tuple[type[BaseModel], ...], results: tuple[type[BaseModel], ...]
) -> Any:
    operation: dict[str, Any] = {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _reference(bodies)}}},
        "responses": {"200": _json(_reference(results)), **_problems(*_PROBLEMS)},
    }
    if "{id}" in path:
        operation["parameters"] = _name()
        operation["responses"] |= _problems("404", "410")
    return operation


def _close() -> dict[str, Any]:
    closed = {"type": "object", "properties": {"closed": {"type": "boolean"}}, "required": ["closed"]}
    return {
        "summary": "End a session",
        "parameters": _name(),
        "responses": {"200": _json(closed), **_problems("401", "403", "404", "410", "421", "503")},
    }


def _name() -> list[dict[str, Any]]:
    return [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
