"""One actor: the process that Ray runs, and the slot through which the driver calls it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.runtime import user_code, wire
from toolwright.runtime.host import ALONE, Identity, Pulse, Rank, RoleHost, born, free_address, identity
from toolwright.runtime.placement import ActorPlace, ActorSpec
from toolwright.runtime.timeline import Event, Stages

if TYPE_CHECKING:
    from toolwright.config import schema

NAMESPACE = "toolwright"
OURS = (UserError, InfrastructureFailure, TaskFailure)
NAME_FREE_S = 20.0  # until Ray lets a dead actor's name go
LOOK_AGAIN_S = 0.2
# Between two garbage collections. A call's attempts are fewer and gone before the next: at Python's 700 each
# of their tokens is visited several times for nothing, which takes a fifth of a step without an engine.
YOUNG_OBJECTS = 10_000


class Lost(Exception):
    """The called process is gone."""


class LostData(Exception):
    """Data was lost with the node that held it."""


class ActorRole:
    """A role of another actor, called like a local one. Only its name is stored, so that a replacement of its
    process is found as well."""

    def __init__(self, run: str, role: str, stages: Stages, limit_s: float) -> None:
        self._actor, self._role, self._stages, self._limit_s = f"{run}/{role}", role, stages, limit_s

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return partial(self._call, method)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call the method from a role's thread. If the actor dies, its replacement is asked again, except for
        a critic."""
        limit, sent = time.monotonic() + self._limit_s, wire.encode_arguments(arguments)
        with self._stages.awaiting(f"{self._role}.{method}"):
            while True:
                try:
                    handle = ray.get_actor(self._actor, NAMESPACE)
                    return wire.decode(ray.get(handle.ask.remote(self._role, method, *sent)))
                except RayTaskError as error:
                    raise _cause(error) from None
                except (RayActorError, ValueError) as error:
                    if self._role in ("critic", "process_reward") or time.monotonic() > limit:
                        raise InfrastructureFailure(
                            f"{self._role} was lost while it was asked for {method}: {first_line(error)}"
                        ) from None
                    time.sleep(LOOK_AGAIN_S)


@ray.remote(concurrency_groups={"watch": 4})  # type: ignore[call-overload]
class Actor(RoleHost):
    """A host as Ray runs it. Supervision uses threads of its own, so that it works whatever the roles are
    doing."""

    def __init__(self, run: str, who: str, limit_s: float) -> None:
        super().__init__(who)
        self._run, self._limit_s = run, limit_s
        self._begun = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="role")

    async def start(
        self, builder: str, names: Sequence[str], role_config: Any, moved: Mapping[str, str], rank: Rank
    ) -> Identity:
        """Build the roles. A user's mistake is raised here, because Ray would hide it in a constructor."""
        found = user_code.relocated(role_config, user_code.arrive(moved))
        await self._in_thread(self.build, builder, names, found, self._remote_role, rank)
        return identity()

    async def meeting_place(self) -> str:
        """Return an address at which the other ranks can meet this one."""
        return free_address(ray.util.get_node_ip_address())

    def _remote_role(self, role: str) -> ActorRole:
        return ActorRole(self._run, role, self.stages, self._limit_s)

    async def begin(self) -> None:
        """Start to accept calls from any other actor."""
        gc.freeze()  # what it was built of lasts as long as its process: no collection need look at it
        gc.set_threshold(YOUNG_OBJECTS)
        self._begun.set()

    async def ask(self, role: str, method: str, *arguments: Any) -> Any:
        await self._begun.wait()
        return await self.ask_early(role, method, *arguments)

    async def ask_early(self, role: str, method: str, *arguments: Any) -> Any:
        """Call a role's method, even before `begin`: async methods on this event loop, others in the roles'
        thread."""
        work = getattr(self.roles[role], method)
        with self.stages.stage(f"{role}.{method}"):
            if inspect.iscoroutinefunction(work):
                return wire.encode(await work(*wire.decode_arguments(arguments)))
            return await self._in_thread(lambda: wire.encode(work(*wire.decode_arguments(arguments))))

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

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
    """An actor as the driver knows it. `on_start` names what is done with each new process of it."""

    def __init__(
        self,
        run: str,
        spec: ActorSpec,
        place: ActorPlace,
        config: schema.Runtime,
        *,
        builder: str,
        role_config: Any,
        moved: Mapping[str, str],
    ) -> None:
        self.run, self.spec, self.place, self.config = run, spec, place, config
        self.builder, self.role_config, self.moved = builder, role_config, moved
        self.on_start: dict[str, Callable[[ActorSlot], None]] = {}
        self.incarnation = 0
        self.identity: Identity | None = None
        self.last: tuple[float, Pulse] | None = None  # when it last answered, and what
        self.rank = ALONE
        self.waits: list[str] = []  # for what the driver waits of it
        self._handle: Any = None
        self._fresh = False  # created, and not opened
        self._lock = threading.Lock()
        self._ready, self._retired = threading.Event(), False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def described(self) -> str:
        who = self.identity
        return f"{self.name} (pid {who.pid} on {who.host})" if who else self.name

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    def open(
        self,
        then: Callable[[ActorSlot], None] | None = None,
        *,
        guard: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Start a process, run `on_start` and `then` with it, and put it to work. `guard` is held meanwhile,
        so that the data it is given does not change."""
        with self._lock:
            if self._retired:
                raise Lost("it was retired")
            self.create()
            self.incarnation += 1
            self._fresh = False
        limit = self.config.start_timeout_s
        try:
            self.identity = self.result(
                self._handle.start.remote(
                    self.builder, list(self.spec.roles), self.role_config, dict(self.moved), self.rank
                ),
                limit,
            )
            with guard or nullcontext():
                for prepare in [*self.on_start.values(), *([then] if then else [])]:
                    prepare(self)
                self.result(self._handle.begin.remote(), limit)
                self.last = None
                self._ready.set()
        except TimeoutError:
            raise Lost(f"it did not start within runtime.start_timeout_s={limit:g} s") from None

    def create(self) -> None:
        """Create an empty process if there is none. `open` fills it."""
        if not self._fresh:
            self._handle, self._fresh = self._created(), True

    def meeting_place(self) -> str:
        limit = self.config.start_timeout_s
        try:
            return str(self.result(self._handle.meeting_place.remote(), limit))
        except TimeoutError:
            raise Lost(f"{self.name} did not start within runtime.start_timeout_s={limit:g} s") from None

    def _created(self) -> Any:
        spec, give_up = self.spec, time.monotonic() + NAME_FREE_S
        place = self.place
        if place.group is not None:
            where: Any = PlacementGroupSchedulingStrategy(
                place.group, placement_group_bundle_index=place.bundle
            )
        else:
            where = NodeAffinitySchedulingStrategy(node_id=place.node or "", soft=False)
        while True:
            try:
                return Actor.options(  # type: ignore[attr-defined]
                    name=f"{self.run}/{spec.name}",
                    namespace=NAMESPACE,
                    num_cpus=spec.cpus,
                    num_gpus=spec.gpus,
                    scheduling_strategy=where,
                    max_concurrency=1000,
                    max_restarts=0,
                ).remote(self.run, spec.name, self.config.start_timeout_s)
            except ValueError:  # the name is still that of the one before
                if time.monotonic() > give_up:
                    raise
                time.sleep(LOOK_AGAIN_S)

    def send(self, role: str, method: str, *arguments: Any, returns: int = 1, early: bool = False) -> Any:
        """Call a method and return the reference of its answer, or one reference for each of several."""
        call = self._handle.ask_early if early else self._handle.ask
        return call.options(num_returns=returns).remote(role, method, *arguments)

    def ask(self, role: str, method: str, *arguments: Any, returns: int = 1) -> Any:
        """Call a method and return its answer. If it returns several objects, only the first is fetched."""
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
        with _our_errors():
            return ray.get(ref, timeout=limit_s)

    async def received(self, ref: Any) -> Any:
        with _our_errors():
            return await ref

    def pulse(self) -> Any:
        return self._handle.pulse.remote()

    def stacks(self, limit_s: float) -> str:
        """Return the stacks of the actor's threads, if it still answers."""
        try:
            return str(ray.get(self._handle.stacks.remote(), timeout=limit_s))
        except Exception:
            return ""

    def drain(self) -> Any:
        return self._handle.drain.remote()

    def close_roles(self) -> Any:
        return self._handle.close.remote()

    def give_up(self, incarnation: int) -> bool:
        """Stop using this process. Returns True if it was the current one."""
        with self._lock:
            if self._retired or incarnation != self.incarnation or not self._ready.is_set():
                return False
            self._ready.clear()
            return True

    def await_ready(self, limit_s: float) -> None:
        if not self._ready.wait(limit_s) or self._retired:
            raise InfrastructureFailure(
                f"{self.name} was lost and has not come back within runtime.start_timeout_s={limit_s:g} s"
            )

    def end(self) -> None:
        """End the process for certain, even if it is frozen."""
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

    def retire(self) -> None:
        """End the process for good. This slot never gets another."""
        with self._lock:
            self._retired = True
        self._ready.set()  # whoever waits for it sees that it has retired
        self._ready.clear()
        self.end()


def open_all(slots: Iterable[ActorSlot], pool: Executor) -> None:
    """Open all slots at the same time, because ranks wait for each other. Raises the first error."""
    opened = {pool.submit(slot.open): slot for slot in slots}
    for future in as_completed(opened):
        try:
            future.result()
        except Lost as error:
            raise Lost(f"{opened[future].name} could not start: {error}") from None


def kill(pid: int, when_born: str) -> None:
    """Send SIGKILL, which a stopped process cannot ignore, but never to a process that reuses the id."""
    if when_born and born(pid) == when_born:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _kill_there(who: Identity, handle: Any) -> None:
    """Kill a process of another node by a task of Ray's, without waiting for it."""
    nodes = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerHostname"] == who.host]
    for node in nodes:
        where = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        ray.remote(kill).options(num_cpus=0, scheduling_strategy=where).remote(who.pid, who.born)


@contextmanager
def _our_errors() -> Iterator[None]:
    """Translate Ray's errors into ours, so that the driver can tell the cases apart."""
    try:
        yield
    except GetTimeoutError:
        raise TimeoutError from None
    except RayTaskError as error:
        raise _cause(error) from None
    except RayActorError as error:
        raise Lost(first_line(error)) from None
    except ObjectLostError as error:
        raise LostData(first_line(error)) from None


def _cause(error: RayTaskError) -> BaseException:
    """Return the original error if it is one of ours, else Ray's own."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, OURS):
        return cause
    if isinstance(cause, ObjectLostError):
        return LostData(first_line(error))
    if isinstance(cause, RayActorError) or isinstance(error, RayActorError):
        return Lost(first_line(error))
    return error


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "died" in line.lower() or "exit" in line.lower()]
    return (causes or lines or [type(error).__name__])[0][:200]
