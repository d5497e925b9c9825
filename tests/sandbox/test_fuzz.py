"""Noise: random bytes as body, code and input. No 500, no hang."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import needs_isolation
from .served import Server

pytestmark = needs_isolation

PATHS = [
    "/run", "/run/batch", "/run/long-batch", "/judge", "/judge/batch", "/judge/long-batch", "/run_code",
    "/sessions", "/sessions/x/run",
]  # fmt: skip
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner)
)
names = st.sampled_from(
    [
        "code",
        "runs",
        "solution",
        "type",
        "submissions",
        "files",
        "fetch",
        "stdin",
        "timeout_s",
        "language",
        "tests",
    ]
)
bodies = st.dictionaries(names, values, max_size=6)


def answered_well(server: Server, path: str, body: object) -> None:
    code, _ = server.ask("POST", path, body, timeout=30)
    assert code in (200, 404, 413, 422), (path, code, body)


def check_noise(server: Server, path: str, noise: bytes, body: dict[str, object]) -> None:
    answered_well(server, path, noise)
    if path != "/sessions":
        answered_well(server, path, body)


def check_code(server: Server, code: str, stdin: str) -> None:
    result = server.run(code, stdin=stdin, timeout_s=2)
    assert result["status"] in ("ok", "error", "timeout", "memory")


@given(path=st.sampled_from(PATHS), noise=st.binary(max_size=300), body=bodies)
@QUICK
def test_random_bodies_never_break_the_server(
    server: Server, path: str, noise: bytes, body: dict[str, object]
) -> None:
    check_noise(server, path, noise, body)


@given(code=st.text(max_size=200), stdin=st.text(max_size=200))
@QUICK
def test_random_code_and_input_never_break_the_server(server: Server, code: str, stdin: str) -> None:
    if not any("\ud800" <= letter <= "\udfff" for letter in code + stdin):
        check_code(server, code, stdin)


@pytest.mark.slow
@given(path=st.sampled_from(PATHS), noise=st.binary(max_size=2000), body=bodies)
@LONG
def test_many_random_bodies_never_break_the_server(
    server: Server, path: str, noise: bytes, body: dict[str, object]
) -> None:
    check_noise(server, path, noise, body)


@pytest.mark.slow
@given(code=st.text(max_size=2000), stdin=st.text(max_size=2000))
@LONG
def test_much_random_code_and_input_never_break_the_server(server: Server, code: str, stdin: str) -> None:
    if not any("\ud800" <= letter <= "\udfff" for letter in code + stdin):
        check_code(server, code, stdin)


def test_half_a_request_and_broken_http_hurt_nobody(server: Server) -> None:
    import socket
    from urllib.parse import urlsplit

    place = urlsplit(server.url)
    draw = random.Random(3)
    for number in range(30):
        with socket.create_connection((place.hostname, place.port), 5) as connection:
            if number % 2:
                connection.sendall(b"POST /run HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{")
            else:
                connection.sendall(draw.randbytes(draw.randrange(200)))
    assert server.run("print(1)")["stdout"] == "1\n"


def schema_cases(server: Server, examples: int) -> Iterator[None]:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import Phase

    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    for operation in schema.get_all_operations():

        @given(case=operation.ok().as_strategy())
        @settings(
            max_examples=examples,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            derandomize=True,
        )
        def holds(case: object) -> None:
            response = case.call(timeout=30)  # type: ignore[attr-defined]
            assert response.status_code < 500, response.text
            case.validate_response(  # type: ignore[attr-defined]
                response, checks=[schemathesis.checks.not_a_server_error, response_fits(schemathesis)]
            )

        holds()
        yield


def response_fits(schemathesis: object) -> object:
    from schemathesis.specs.openapi.checks import response_schema_conformance

    return response_schema_conformance


def test_the_server_keeps_to_its_openapi_document(server: Server) -> None:
    assert len(list(schema_cases(server, 8))) == 14


@pytest.mark.slow
def test_the_server_keeps_to_its_openapi_document_at_length(server: Server) -> None:
    assert len(list(schema_cases(server, 60))) == 14
