"""Compares mathematical answers by math-verify, in sandboxed processes that have it loaded.

Loading it takes seconds and comparing takes milliseconds. So one session per worker loads it with the first
comparison, and a fork of the session compares. A fork that takes too long is killed; the next one is as warm.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import Any

import orjson

from toolwright.failures import InfrastructureFailure
from toolwright.sandbox.jobs import Jobs
from toolwright.sandbox.pool import Pool
from toolwright.sandbox.queue import SessionSlot

_LOAD_LIMIT_S = 300.0  # on a busy machine
_TRIES = 3  # a lost session is opened again
_MOST_CALLS = 200  # of one fork: its caches grow
# The LaTeX parser builds its tables as it goes. These examples spare the forks that work.
_ORDINARY = r"""
7|-3.5|0.333|1,000|50\%|x|\frac{1}{2}|-\frac{3}{4}|\dfrac{12}{5}|\tfrac{1}{3}|\frac{x+1}{x-1}|\frac12
\sqrt{2}|3\sqrt{13}|\sqrt[3]{4}|\frac{\sqrt{3}}{2}|2+\sqrt{5}|\pi|\frac{\pi}{6}|2\pi r|\frac{2\pi}{3}|e^{2}
1\frac{1}{2}|e^{i\pi}|x^2+2x+1|(x+1)^2|(x-1)(x+1)|2^{10}|10^{-3}|x_1|a+b|ab|-x|2(x+y)|\left(x+1\right)^3|x^{\frac{1}{2}}|3x^2y|n!
\sin(x)|\cos 30^\circ|\tan\theta|\log_2 8|\ln(x)|90^\circ|\binom{5}{2}|\sum_{i=1}^{n} i|\int_0^1 x dx|\infty
\{1,2,3\}|\{1,2\}|(1,2)|(0,1]|[0,\infty)|(-\infty,2)\cup(3,\infty)|\left(\frac{1}{2},3\right)|1,2|\emptyset
x=5|y=2x+1|x>3|x \le 2|2<x<5|x\in[0,1]|a=1,b=2|\pm 2|3+4i||x||\text{yes}|\$5|5\text{ cm}|1.5\times 10^{3}|3:4
\begin{pmatrix}1&2\\3&4\end{pmatrix}|\begin{pmatrix}1\\2\end{pmatrix}|\overline{AB}|f(x)=x^2|\lfloor x\rfloor
"""
_LOAD = """
import gc, json, logging, os, signal
try:
    from math_verify import parse, verify
except ImportError:
    raise SystemExit("judging mathematics needs the package math-verify on the server")
logging.disable(logging.WARNING)

def equal(expected, found):
    expected, found = (parse(text, parsing_timeout=None) for text in (expected, found))
    return verify(expected, found, timeout_seconds=None)

class Fork:
    def __init__(self):
        self.calls = 0
        questions, self.questions = os.pipe()
        self.answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.questions)
            os.close(self.answers)
            try:
                self.serve(os.fdopen(questions), answers)
            finally:
                os._exit(2)
        os.close(questions)
        os.close(answers)
        self.questions = os.fdopen(self.questions, "w")

    def serve(self, questions, answers):
        for line in questions:
            expected, found, seconds = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # processor time, after which the fork is ended
            try:
                code = b"0" if equal(expected, found) else b"1"
            except Exception as error:
                os.write(2, repr(error).encode()[:1000])
                code = b"2"
            signal.setitimer(signal.ITIMER_PROF, 0)
            os.write(answers, code)

    def ask(self, *question):
        self.calls += 1
        try:
            print(json.dumps(question), file=self.questions, flush=True)
        except BrokenPipeError:
            pass
        return os.read(self.answers, 1)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.answers)
        try:
            self.questions.close()
        except BrokenPipeError:
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

fork = None
def compare(*question):
    global fork
    fork = fork or Fork()
    try:
        answer = fork.ask(*question)
    except BaseException:  # the interrupt of a cell that takes too long
        fork.end()
        fork = None
        raise
    if answer and fork.calls < most_calls:
        return int(answer)
    ended, fork = fork.end(), None
    return int(answer) if answer else ended

signal.signal(signal.SIGPROF, signal.SIG_DFL)
for text in ordinary:
    equal(f"${text}$", f"\\\\boxed{{{text}}}")
gc.collect()
gc.freeze()
"""


@dataclass(eq=False)
class _Session:
    """A session: its slot in a worker, the task that loads it, and how many comparisons it has."""

    slot: SessionSlot
    loading: asyncio.Task[bytes | None]
    calls: int = 0


class ExpressionSessions:
    """Warm sessions, at most one per worker, opened when needed and again when lost."""

    def __init__(self, pool: Pool, jobs: Jobs, count: int) -> None:
        self._pool, self._jobs, self._count = pool, jobs, count
        self._sessions: list[_Session] = []

    async def compare(
        self, expected: str, found: str, *, timeout_s: float, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """The result of a run whose standard output is `True` or `False`."""
        # The limit of the fork comes first, so that the session need not be interrupted.
        cell = {"code": f"compare({expected!r}, {found!r}, {timeout_s})", "timeout_s": 2 * timeout_s + 1}
        for _ in range(_TRIES):
            session = self._free()
            session.calls += 1
            try:
                result = _read(await asyncio.shield(session.loading))
                loaded = result["status"] == "ok"
                if loaded:
                    result = _read(await self._pool.run_cell(session.slot, dict(cell), deadline_s))
            finally:
                session.calls -= 1
            lost = result["status"] == "killed"
            if session in self._sessions and (lost or not loaded):
                self._sessions.remove(session)
                self._pool.close_session(session.slot)
            if not lost:
                return _as_run(result) if loaded else result
        raise InfrastructureFailure("no worker can compare expressions at the moment; try again")

    def _free(self) -> _Session:
        least = min(self._sessions, key=lambda session: session.calls, default=None)
        if least is not None and (least.calls == 0 or len(self._sessions) >= self._count):
            return least
        slot = self._pool.open_session(self._jobs.session())
        ordinary = [text for line in _ORDINARY.splitlines() for text in line.split("|") if text]
        code = f"ordinary, most_calls = {ordinary!r}, {_MOST_CALLS}\n{_LOAD}"
        load = {"code": code, "timeout_s": _LOAD_LIMIT_S}
        loading = asyncio.ensure_future(self._pool.run_cell(slot, load, None))
        self._sessions.append(_Session(slot, loading))
        return self._sessions[-1]


def _read(answer: bytes | None) -> dict[str, Any]:
    return {"status": "killed"} if answer is None else orjson.loads(answer)


def _as_run(result: dict[str, Any]) -> dict[str, Any]:
    """The result of a comparison, from the answer of the fork or from how it ended."""
    value = result.pop("value", None)
    if result["status"] != "ok" or value is None:
        return result
    code = int(value)
    if code in (0, 1):
        return {**result, "stdout": f"{code == 0}\n", "exit_code": 0}
    if code == -signal.SIGPROF:
        return {**result, "status": "timeout", "reason": "the comparison passed its time limit"}
    return {**result, "status": "error", "exit_code": code}
