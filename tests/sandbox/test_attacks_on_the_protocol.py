"""Code that wants to answer in somebody's place, and callers who want to be somebody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .attack import Attack, proofs
from .conftest import needs_isolation
from .pieces import CLOSED_CHANNEL, CLOSED_DESCRIPTORS, EXPECTED_ANSWERS, SECRET_NAMES
from .served import Server

pytestmark = needs_isolation

COUNT = """
import os
held = []
for number in range(1024):
    try: os.fstat(number); held.append(number)
    except OSError: pass
print('BREACH' if held[3:] else '', held)
"""
# What a zygote tells its worker: that each of its children has ended with exit code 99.
SAY_THAT_IT_ENDED = """
import os, socket, struct, time
for descriptor in range(3, 64):
    try: kind = socket.socket(fileno=os.dup(descriptor)).type
    except OSError: continue
    for child in range(1, 60 if kind == socket.SOCK_SEQPACKET else 1):
        os.write(descriptor, struct.pack('<BIidq', 1, child, 99 << 8, 0, 0))
time.sleep(0.3)
print('honest')
"""
# What a worker tells the server: the answers to all calls.
ANSWER_FOR_THE_WORKER = """
import json, os, socket, struct, time
forged = json.dumps({'status': 'ok', 'stdout': 'BREACH', 'exit_code': 0}).encode()
for descriptor in range(3, 64):
    try: kind = socket.socket(fileno=os.dup(descriptor)).type
    except OSError: continue
    for call in range(1, 100 if kind == socket.SOCK_STREAM else 1):
        os.write(descriptor, struct.pack('<IBI', len(forged), 6, call) + forged)
time.sleep(0.3)
print('honest')
"""
# What the first process of a run tells the worker of the program below it.
REPORT_FOR_THE_READER = """
import base64, json, os, socket
forged = json.dumps({'status': 0, 'files': {'f': base64.b64encode(b'BREACH').decode()}}).encode()
for descriptor in range(3, 64):
    try:
        channel = socket.socket(fileno=descriptor)
        channel.send(forged); channel.shutdown(socket.SHUT_WR)
    except OSError: pass
print('honest')
"""
ANSWER_ANOTHER_CELL = """
import os, struct, time
for number in range(3, 64):
    try: os.write(number, struct.pack('<IBI', 7, 0, 6) + b'BREACH')
    except OSError: pass
time.sleep(3)  # so that it is read before the cell's own answer comes
"""


def say_that_it_ended(server: Server, _: Path) -> dict[str, Any]:
    answer = server.run(SAY_THAT_IT_ENDED)
    return {**answer, "value": "BREACH" if answer["exit_code"] == 99 else ""}


def report_for_the_reader(server: Server, _: Path) -> dict[str, Any]:
    return server.run(REPORT_FOR_THE_READER, fetch=["f"])


def answer_another_cell(server: Server, _: Path) -> dict[str, Any]:
    with server.session() as honest, server.session() as forger:
        honest.cell("kept = 41")
        answer = forger.cell(ANSWER_ANOTHER_CELL)
        if answer["status"] == "killed":
            assert forger.ask("1")[0] == 410
            assert honest.cell("kept + 1")["value"] == "42"
        return answer


def guess_a_sessions_name(server: Server, _: Path) -> dict[str, Any]:
    """Another caller's session, and every short number as a name."""
    with server.session() as session:
        session.cell("private = 'BREACH'")
        answers = [
            server.ask("POST", f"/sessions/{number}/run", {"code": "private"}) for number in range(1, 60)
        ]
    return next((told for code, told in answers if code == 200 and told["value"]), answers[0][1])


test_it_fails, _, test_without_them_it_succeeds = proofs(
    [
        Attack("hold open descriptors", COUNT, (CLOSED_DESCRIPTORS,), "[0, 1, 2]"),
        Attack("answer for the worker", ANSWER_FOR_THE_WORKER, (CLOSED_DESCRIPTORS,), "honest"),
        Attack("say that it has ended", say_that_it_ended, (CLOSED_DESCRIPTORS,), "honest"),
        Attack("report for the reader of files", report_for_the_reader, (CLOSED_CHANNEL,), '"files": {}'),
        Attack("answer another cell", answer_another_cell, (EXPECTED_ANSWERS,), "wrote to the channel"),
        Attack("guess a session's name", guess_a_sessions_name, (SECRET_NAMES,), "there is no session"),
    ]
)


def test_a_session_does_not_see_anothers_variables(server: Server) -> None:
    with server.session() as one, server.session() as other:
        one.cell("private = 'mine'; open('f', 'w').write('x')")
        assert other.cell("import os; ('private' in globals(), os.listdir('.'))")["value"] == "(False, [])"
