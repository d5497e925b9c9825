"""An attack, what stops it, and the proof that it is this and nothing else.

An attack is played against a whole server, where it must fail; against servers that have only one of the
things said to stop it, where it must fail as well; and against one that has none of them, where it must
succeed. So a layer that vanishes is noticed, and so is an attack that never worked.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from toolwright.sandbox.layers import NAMESPACES
from toolwright.sandbox.local import _stop_with_parent

from .served import Server

ROOT = str(Path(__file__).resolve().parents[2])
AS_ROOT = os.geteuid() == 0
# On the host, runs are another user only when the server is root: an ordinary user has no other to give them.
OTHER_USER = ("user",) if AS_ROOT else ()
ONLY_ROOT = "" if AS_ROOT else "an ordinary user could not do this harm, were it not stopped"
_SERVERS_KEPT = 2


@dataclass(frozen=True)
class Piece:
    """A few lines of ours that no option takes away, and the code that takes away exactly those.

    `worker` is run in a worker before its zygotes are forked, `server` in the server before it starts.
    """

    name: str
    worker: str = ""
    server: str = ""


Stop = str | Piece  # the name of a layer, or a piece


@dataclass(frozen=True)
class Attack:
    """Code, or a scene of several calls, that gets `BREACH` into its answer when it succeeds."""

    name: str
    play: str | Callable[[Server, Path], dict[str, Any]]
    stopped_by: tuple[Stop, ...]  # each of these alone stops it
    says: str  # what the answer of a whole server shows
    also: tuple[Stop, ...] = ()  # taken away from all servers, the whole one too
    skip: str = ""

    @property
    def stops(self) -> frozenset[Stop]:
        """All that has to be gone for it to succeed."""
        return frozenset({*self.stopped_by, *self.also})

    def played(self, server: Server, place: Path) -> dict[str, Any]:
        """The answer. `place` is a private folder of the host with a secret in it."""
        place.chmod(0o700)
        diary = place / "diary"
        diary.write_text("BREACH dear diary")
        diary.chmod(0o600)
        if callable(self.play):
            return self.play(server, place)
        return server.run(filled(self.play, server, place), timeout_s=60)


def filled(code: str, server: Server, place: Path) -> str:
    return code.replace("{place}", str(place)).replace("{pid}", str(server.pid))


def breached(answer: dict[str, Any]) -> bool:
    """In what it printed or got, that is: a traceback shows the code, and with it the word."""
    return "BREACH" in json.dumps([answer.get(name) for name in ("stdout", "value", "files")])


def name_of(stop: Stop) -> str:
    return stop if isinstance(stop, str) else stop.name


@contextlib.contextmanager
def served_without(stops: frozenset[Stop], *options: str) -> Iterator[Server]:
    """A server that lacks these layers and pieces and nothing else."""
    names = {stop for stop in stops if isinstance(stop, str)}
    if "user" in names and not AS_ROOT:
        names |= NAMESPACES.keys()  # an ordinary user gets the others only inside that one
    layers = ",".join(sorted(f"-{name}" for name in names)) or "full"
    pieces = [stop for stop in stops if isinstance(stop, Piece)]
    prelude = f"import sys; sys.path.insert(0, {ROOT!r})\n"
    in_worker = prelude + "".join(piece.worker + "\n" for piece in pieces)
    in_server = prelude + "".join(piece.server + "\n" for piece in pieces)
    start = (
        f"{in_server}\nfrom toolwright.sandbox import pool\npool._BOOT = {in_worker!r} + pool._BOOT\n"
        "from toolwright.cli.sandbox import main\nsys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", start, "serve", "--port", "0", f"--isolation={layers}", *options],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_stop_with_parent,
        env={**os.environ, "SANDBOX_TEST_SECRET": "the-server-knows"},
    )
    assert process.stdout is not None
    try:
        yield Server(process.stdout.readline().removeprefix("serving on ").strip(), pid=process.pid)
    finally:
        process.terminate()
        process.wait(120)
        process.stdout.close()


class Weakened:
    """Servers without this or that, the last few of them kept for the attacks that follow."""

    def __init__(self) -> None:
        self._open: OrderedDict[frozenset[Stop], tuple[Server, contextlib.ExitStack]] = OrderedDict()

    def server(self, stops: frozenset[Stop]) -> Server:
        if stops not in self._open:
            stack = contextlib.ExitStack()
            options = ("--workers", "1", "--preload", "")
            self._open[stops] = (stack.enter_context(served_without(stops, *options)), stack)
        self._open.move_to_end(stops)
        while len(self._open) > _SERVERS_KEPT:
            self._open.popitem(last=False)[1][1].close()
        return self._open[stops][0]

    def close(self) -> None:
        for _, stack in self._open.values():
            stack.close()


def case(*values: Any, without: Iterable[Stop], id: str) -> Any:
    """For a test that needs this server. All such are left to one process, which starts it once."""
    lacking = sorted(map(name_of, without))
    marks = [pytest.mark.xdist_group(f"sandbox without {', '.join(lacking)}")] if lacking else []
    return pytest.param(*values, id=id, marks=marks)


def proofs(attacks: list[Attack]) -> tuple[Callable[..., None], ...]:
    """Three tests over a table of attacks."""

    def skip_where_it_must(attack: Attack) -> None:
        if attack.skip:
            pytest.skip(attack.skip)

    @pytest.mark.parametrize("attack", [case(one, without=one.also, id=one.name) for one in attacks])
    def stopped(attack: Attack, server: Server, weakened: Weakened, tmp_path: Path) -> None:
        skip_where_it_must(attack)
        whole = weakened.server(frozenset(attack.also)) if attack.also else server
        answer = attack.played(whole, tmp_path)
        assert not breached(answer), answer
        assert attack.says in json.dumps(answer, ensure_ascii=False), answer

    # In this order tests that need the same server stand side by side.
    pairs = [(attack, stop) for attack in attacks for stop in attack.stopped_by if len(attack.stopped_by) > 1]
    pairs.sort(key=lambda pair: sorted(map(name_of, pair[0].stops - {pair[1]})))
    naked = sorted(attacks, key=lambda attack: sorted(map(name_of, attack.stops)))

    @pytest.mark.parametrize(
        ("attack", "stop"),
        [case(a, s, without=a.stops - {s}, id=f"{a.name}-{name_of(s)}") for a, s in pairs],
    )
    def alone(attack: Attack, stop: Stop, weakened: Weakened, tmp_path: Path) -> None:
        skip_where_it_must(attack)
        others = attack.stops - {stop}
        if "user" in others and stop in NAMESPACES and not AS_ROOT:
            pytest.skip(f"an ordinary user gets no {stop} namespace without a user namespace")
        answer = attack.played(weakened.server(others), tmp_path)
        assert not breached(answer), answer

    @pytest.mark.parametrize("attack", [case(one, without=one.stops, id=one.name) for one in naked])
    def without(attack: Attack, weakened: Weakened, tmp_path: Path) -> None:
        skip_where_it_must(attack)
        answer = attack.played(weakened.server(attack.stops), tmp_path)
        assert breached(answer), answer

    return stopped, alone, without
