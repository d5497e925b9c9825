"""One actor as the driver knows it: where it sits, which process it is by now, and how it is asked."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.runtime.host import Identity, Pulse, Rank, RoleHost, born, free_address
from toolwright.runtime.placement import ActorSpec
from toolwright.runtime.timeline import Event, Stages

if TYPE_CHECKING:
    from toolwright.config import schema

NAMESPACE = "toolwright"
OURS = (UserError, InfrastructureFailure, TaskFailure)
NAME_FREE_S = 20.0  # until Ray lets a dead actor's name go
LOOK_AGAIN_S = 0.2


class Lost(Exception):
    """The process that was asked is gone."""


class LostData(Exception):
    """What was to be read went down with the node that kept it."""


class ActorRole:
    """A role of another actor, by its name: only strings are kept, so a new process is found as well."""

    def __init__(self, run: str, role: str, stages: Stages, limit_s: float) -> None:
        self.name, self.role, self.stages, self.limit_s = f"{run}/{role}", role, stages, limit_s

    def ask(self, method: str, *arguments: Any) -> Any:
        """From a role's thread. What is only asked is asked again of its successor; a critic has none."""
        limit = time.monotonic() + self.limit_s
        with self.stages.awaiting(f"{self.role}.{method}"):
            while True:
                try:
                    handle = ray.get_actor(self.name, NAMESPACE)
                    return ray.get(handle.ask.remote(self.role, method, *arguments))
                except RayTaskError as error:
                    raise _cause(error) from None
                except (RayActorError, ValueError) as error:
                    if self.role == "critic" or time.monotonic() > limit:
                        raise InfrastructureFailure(
                            f"{self.role} was lost while it was asked for {method}: {_first_line(error)}"
                        ) from None
                    time.sleep(LOOK_AGAIN_S)


@ray.remote(concurrency_groups={"watch": 4})  # type: ignore[call-overload]
class Actor(RoleHost):
    """A host as Ray runs it; it is watched from threads of their own, whatever its roles are doing."""

    def __init__(self, run: str, who: str, limit_s: float) -> None:
        super().__init__(who)
        self._run, self._limit_s = run, limit_s
        self._begun = asyncio.Event()

    async def start(
        self, members: str, names: Sequence[str], brief: Any, moved: Mapping[str, str], rank: Rank
    ) -> Identity:
        return await self.open(members, names, brief, self._colleague, moved, rank)

    async def meeting_place(self) -> str:
        """For the first of a role's ranks."""
        return free_address(ray.util.get_node_ip_address())

    def _colleague(self, role: str) -> ActorRole:
        return ActorRole(self._run, role, self.stages, self._limit_s)

    async def begin(self) -> None:
        """From now on it may be asked by anybody."""
        gc.freeze()  # what it was built of lasts as long as its process: no collection need look at it
        self._begun.set()

    async def ask(self, role: str, method: str, *arguments: Any) -> Any:
        await self._begun.wait()
        return await super().ask(role, method, *arguments)

    async def ask_early(self, role: str, method: str, *arguments: Any) -> Any:
        return await super().ask(role, method, *arguments)

    async def close(self) -> None:
        await super().close()

    @ray.method(concurrency_group="watch")
    async def pulse(self) -> Pulse:  # type: ignore[override]
        return super().pulse()

    @ray.method(concurrency_group="watch")
    async def stacks(self) -> str:  # type: ignore[override]
        return super().stacks()

    @ray.method(concurrency_group="watch")
    async def drain(self) -> list[Event]:  # type: ignore[override]
        return super().drain()


class ActorSlot:
    """`memory`: what a new process must be told before it is of use, by name."""

    def __init__(
        self,
        run: str,
        post: ActorSpec,
        config: schema.Runtime,
        *,
        members: str,
        brief: Any,
        moved: Mapping[str, str],
        group: Any = None,
        bundle: int = 0,
        node: str | None = None,
    ) -> None:
        self.run, self.post, self.config = run, post, config
        self.members, self.brief, self.moved = members, brief, moved
        self.group, self.bundle, self.node = group, bundle, node
        self.memory: dict[str, Callable[[ActorSlot], None]] = {}
        self.incarnation = 0
        self.identity: Identity | None = None
        self.last: tuple[float, Pulse] | None = None  # when it was last heard, and what it said
        self.rank = Rank()
        self.waits: list[str] = []  # for what the driver waits of it
        self._handle: Any = None
        self._fresh = False  # created, and not opened
        self._lock = threading.Lock()
        self._ready, self._left = threading.Event(), False

    @property
    def name(self) -> str:
        return self.post.name

    @property
    def described(self) -> str:
        who = self.identity
        return f"{self.name} (pid {who.pid} on {who.host})" if who else self.name

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    @property
    def left(self) -> bool:
        return self._left

    def open(
        self,
        then: Callable[[ActorSlot], None] | None = None,
        *,
        guard: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Starts a process, tells it what it has to know, and puts it to work. That what it is told does not
        change meanwhile is `guard`'s to see to."""
        with self._lock:
            if self._left:
                raise Lost("it is not wanted any more")
            self.create()
            self.incarnation += 1
            self._fresh = False
        limit = self.config.start_timeout_s
        try:
            self.identity = self.result(
                self._handle.start.remote(
                    self.members, list(self.post.roles), self.brief, dict(self.moved), self.rank
                ),
                limit,
            )
            with guard or nullcontext():
                for tell in [*self.memory.values(), *([then] if then else [])]:
                    tell(self)
                self.result(self._handle.begin.remote(), limit)
                self.last = None
                self._ready.set()
        except TimeoutError:
            raise Lost(f"it did not start within runtime.start_timeout_s={limit:g} s") from None

    def create(self) -> None:
        """A process that holds nothing yet; `open` makes one where there is none."""
        if not self._fresh:
            self._handle, self._fresh = self._created(), True

    def meeting_place(self) -> str:
        limit = self.config.start_timeout_s
        try:
            return str(self.result(self._handle.meeting_place.remote(), limit))
        except TimeoutError:
            raise Lost(f"{self.name} did not start within runtime.start_timeout_s={limit:g} s") from None

    def _created(self) -> Any:
        post, give_up = self.post, time.monotonic() + NAME_FREE_S
        if self.group is not None:
            where: Any = PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=self.bundle
            )
        else:
            where = NodeAffinitySchedulingStrategy(node_id=self.node or "", soft=False)
        while True:
            try:
                return Actor.options(  # type: ignore[attr-defined]
                    name=f"{self.run}/{post.name}",
                    namespace=NAMESPACE,
                    num_cpus=post.cpus,
                    num_gpus=post.gpus,
                    scheduling_strategy=where,
                    max_concurrency=1000,
                    max_restarts=0,
                ).remote(self.run, post.name, self.config.start_timeout_s)
            except ValueError:  # the name is still that of the one before
                if time.monotonic() > give_up:
                    raise
                time.sleep(LOOK_AGAIN_S)

    def send(self, role: str, method: str, *arguments: Any, returns: int = 1, early: bool = False) -> Any:
        """The reference of the answer; of each of them where there are several."""
        call = self._handle.ask_early if early else self._handle.ask
        return call.options(num_returns=returns).remote(role, method, *arguments)

    def ask(self, role: str, method: str, *arguments: Any, returns: int = 1) -> Any:
        """The answer. Of several only the first is fetched; the others stay where they are."""
        refs = self.send(role, method, *arguments, returns=returns)
        with self.awaited(f"{role}.{method}"):
            if returns == 1:
                return self.result(refs)
            return (self.result(refs[0]), *refs[1:])

    @contextmanager
    def awaited(self, what: str) -> Iterator[None]:
        self.waits.append(what)
        try:
            yield
        finally:
            self.waits.remove(what)

    def result(self, ref: Any, limit_s: float | None = None) -> Any:
        try:
            return ray.get(ref, timeout=limit_s)
        except GetTimeoutError:
            raise TimeoutError from None
        except RayTaskError as error:
            raise _cause(error) from None
        except RayActorError as error:
            raise Lost(_first_line(error)) from None
        except ObjectLostError as error:
            raise LostData(_first_line(error)) from None

    async def received(self, ref: Any) -> Any:
        try:
            return await ref
        except RayTaskError as error:
            raise _cause(error) from None
        except RayActorError as error:
            raise Lost(_first_line(error)) from None
        except ObjectLostError as error:
            raise LostData(_first_line(error)) from None

    def pulse(self) -> Any:
        return self._handle.pulse.remote()

    def stacks(self, limit_s: float) -> str:
        """Where it is, if it can still answer that."""
        try:
            return str(ray.get(self._handle.stacks.remote(), timeout=limit_s))
        except Exception:
            return ""

    def drain(self) -> Any:
        return self._handle.drain.remote()

    def farewell(self) -> Any:
        return self._handle.close.remote()

    def give_up(self, incarnation: int) -> bool:
        """Whether this process was the present one; if so, it is not any more."""
        with self._lock:
            if self._left or incarnation != self.incarnation or not self._ready.is_set():
                return False
            self._ready.clear()
            return True

    def await_ready(self, limit_s: float) -> None:
        if not self._ready.wait(limit_s) or self._left:
            raise InfrastructureFailure(
                f"{self.name} was lost and has not come back within runtime.start_timeout_s={limit_s:g} s"
            )

    def end(self) -> None:
        """The process is gone afterwards, even one that is frozen and hears nothing."""
        self._fresh = False
        if self._handle is None:
            return
        with suppress(Exception):
            ray.kill(self._handle, no_restart=True)
        who = self.identity
        if who is None:
            return
        if who.host == socket.gethostname():
            kill(who.pid, who.born)
        else:
            with suppress(Exception):
                _kill_there(who, self._handle)

    def leave(self) -> None:
        """For good: nobody takes this seat again."""
        with self._lock:
            self._left = True
        self._ready.set()  # whoever waits for it hears that it has left
        self._ready.clear()
        self.end()


def open_all(seats: Iterable[ActorSlot], pool: Executor) -> None:
    """All at once, since ranks wait for each other; what goes wrong first is raised."""
    opened = {pool.submit(seat.open): seat for seat in seats}
    for future in as_completed(opened):
        try:
            future.result()
        except Lost as error:
            raise Lost(f"{opened[future].name} could not start: {error}") from None


def kill(pid: int, when_born: str) -> None:
    """SIGKILL, which a stopped process cannot ignore; never to another that has its number by now."""
    if when_born and born(pid) == when_born:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _kill_there(who: Identity, handle: Any) -> None:
    """On another node: a task of Ray's does it, and nobody waits for that."""
    nodes = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerHostname"] == who.host]
    for node in nodes:
        where = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        ray.remote(kill).options(num_cpus=0, scheduling_strategy=where).remote(who.pid, who.born)


def _cause(error: RayTaskError) -> BaseException:
    """What was raised, if it is one of ours; else all that Ray tells about it."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, OURS):
        return cause
    if isinstance(cause, ObjectLostError):
        return LostData(_first_line(error))
    if isinstance(cause, RayActorError) or isinstance(error, RayActorError):
        return Lost(_first_line(error))
    return error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "died" in line.lower() or "exit" in line.lower()]
    return (told or lines or [type(error).__name__])[0][:200]
