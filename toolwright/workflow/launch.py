"""A run of `workflow search`: from its folder to its report."""

from __future__ import annotations

import asyncio
import fcntl
import json
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from statistics import fmean

from toolwright.failures import UserError
from toolwright.observe.report import write_report
from toolwright.trainer.run_folder import RunFolder
from toolwright.workflow import config as schema
from toolwright.workflow.aflow.folder import Folder, Journal, SearchStart, named
from toolwright.workflow.aflow.write import write_files
from toolwright.workflow.config import WorkflowConfig
from toolwright.workflow.executors import CostLimit, Executor, build_executor, chat_settings
from toolwright.workflow.operators import operator
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.portfolio import Portfolio, read_workflow, reason_of
from toolwright.workflow.prior import Prior
from toolwright.workflow.program import single_call
from toolwright.workflow.proposers import ChatProposer, Editor, UniformProposer
from toolwright.workflow.record import FOLDER, Record, summary
from toolwright.workflow.runners import LocalRunner, RayRunner
from toolwright.workflow.search_loop import Proposer, SearchBudget, SearchResult, SearchRound, WorkflowSearch
from toolwright.workflow.selection import FEWEST, Selection, build_selection
from toolwright.workflow.tree import Proposal, schedule

LEAST_RUNS = 2 * FEWEST  # for the start and one more
TAUGHT_RUNS = 500  # of a larger budget a search learns more by itself than others can tell it


class SearchRun:
    """A run of one configuration: its folder, its pool, and a search for each data set."""

    def __init__(self, config: WorkflowConfig, folder: RunFolder) -> None:
        self.config, self.folder = config, folder
        self.cache = str(folder.path.absolute() / "calls.db")
        self.cost_limits = {name: self._cost_limit(name) for name in config.data}
        self.executors = {
            name: build_executor(config, name, cache=self.cache, cost_limit=self.cost_limits[name])
            for name in config.data
        }
        self.pool = ExperiencePool(config.search.pool or folder.path / "pool.db")
        self.started = time.monotonic()

    async def go(self) -> dict[str, Record]:
        done = await asyncio.gather(*(self.search(name) for name in self.config.data))
        return dict(zip(self.config.data, done, strict=True))

    async def search(self, name: str) -> Record:
        """Search on one data set, and judge what was found."""
        executor, config = self.executors[name], self.config
        beginning = begun(config.search)
        carried = [*beginning.carried, *portfolio_of(config, editor_of(config, executor))]
        place = self.folder.path / "workspace" / named(name) / "workflows"
        journal = Journal(place, beginning, data_set=named(name), tasks=executor.tasks())
        async with AsyncExitStack() as opened:
            bench = self._bench(name)
            opened.push_async_callback(bench.close)
            search = WorkflowSearch(
                name=f"{name}-{config.run.seed}",
                setting=executor.setting,
                kind=executor.kind,
                start=beginning.start,
                carried=carried,
                selection=self._selection(executor, len(carried)),
                proposer=await self._proposer(name, executor, opened),
                runner=bench,
                pool=self.pool,
                budget=SearchBudget(config.search.runs, config.search.cost),
                seed=config.run.seed,
                limits=executor.limits,
                converge=config.search.converge,
                watch=lambda search, round: self._watch(name, search, round, journal),
            )
            found = await search.go()
            held_out = await self._held_out(name, found)
        record = Record.of(search, select=config.search.select, why=found.why, held_out=held_out)
        record.save(self._file(name))
        journal.write(search, range(len(search.tree)))  # later runs change earlier scores
        write_files(self.folder.path / "best" / stem(name), found.best.workflow, data_set=named(name))
        return record

    def _cost_limit(self, name: str) -> CostLimit | None:
        """The cost limit of a data set; a resumed search reads from its file what was spent."""
        cost, file = self.config.search.cost, self.folder.path.absolute() / f"cost/{stem(name)}.db"
        return None if cost is None else CostLimit(cost, str(file))

    def _bench(self, name: str) -> LocalRunner | RayRunner:
        runtime, executor, cost_limit = self.config.runtime, self.executors[name], self.cost_limits[name]
        if runtime.name == "local":
            return LocalRunner(executor, self.pool)
        if cost_limit is not None:
            executor = build_executor(self.config, name, cache=self.cache, cost_limit=cost_limit.serve())
        return RayRunner(executor, self.served_pool, count=runtime.workers, timeout_s=runtime.timeout_s)

    @cached_property
    def served_pool(self) -> ExperiencePool:
        """The pool for Ray's workers. Its actor lives as long as this handle."""
        return self.pool.serve(f"pool-{uuid.uuid4().hex}")

    def _selection(self, executor: Executor, carried: int) -> Selection:
        search = self.config.search
        tasks = [task.id for task in executor.tasks()]
        random.Random(f"{self.config.run.seed}/{executor.setting}").shuffle(tasks)
        taught = search.select == "guided" and search.runs <= TAUGHT_RUNS
        prior = self._prior(executor.kind) if taught else None
        if executor.recorded is not None:
            most = min(search.guided.repeats, executor.recorded.repeats)
            search = search.model_copy(update={"guided": search.guided.model_copy(update={"repeats": most})})
        return build_selection(search, tasks, carried=carried, prior=prior)

    def _prior(self, kind: str) -> Prior:
        """The value's prior from other runs, for a data set of this kind; saved, so that a resumed run begins
        with the same."""
        file = self.folder.path / f"prior_{kind}.json"
        if not file.exists():
            own = {executor.setting for executor in self.executors.values()}
            file.write_text(json.dumps(asdict(Prior.from_pool(self.pool, kind, without=own))))
        return Prior(**json.loads(file.read_text()))

    async def _proposer(self, name: str, executor: Executor, opened: AsyncExitStack) -> Proposer:
        """Build the proposer. `opened` closes what it holds open."""
        own = self.config.proposer
        editor = editor_of(self.config, executor)
        search = f"{name}-{self.config.run.seed}"
        if own.name == "uniform":
            return UniformProposer(editor)
        from toolwright import providers

        settings = chat_settings("proposer.chat", own.chat)
        cost_limit = self.cost_limits[name]
        budget = None if cost_limit is None else cost_limit.open()
        chat = providers.open_chat(settings, budget=budget, cache=Path(self.cache))
        opened.push_async_callback(providers.close, chat)
        return ChatProposer(
            chat, editor, self.pool, search=search, proposals=own.proposals, tasks=executor.tasks()
        )

    async def _held_out(self, name: str, found: SearchResult) -> dict[str, float]:
        """Score the start and the best on tasks that no candidate has seen, outside the budget."""
        count = self.config.search.held_out
        if not count:
            return {}
        bench = LocalRunner(build_executor(self.config, name, held_out=True, cache=self.cache), self.pool)
        runs = schedule(list(bench.tasks), 1)
        scores = {}
        try:
            for who, candidate in (("start", found.tree.start), ("best", found.best)):
                made = await bench.run(candidate.workflow, runs)
                scores[who] = fmean(payment.score for payment in made.values())
        finally:
            await bench.close()
        return scores

    def _watch(self, name: str, search: WorkflowSearch, round: SearchRound, journal: Journal) -> None:
        Record.of(search, select=self.config.search.select).save(self._file(name))
        journal.write(search, (job.candidate for job in round.jobs))
        best, start = search.tree[round.best], search.tree.start
        from_start = search.selection.score(best)[0] - search.selection.score(start)[0]
        self.folder.metrics.append(
            len(search.rounds),
            {
                f"{name}/best": round.score,
                f"{name}/gain": from_start,
                f"{name}/runs": round.runs,
                f"{name}/cost": round.cost,
                f"{name}/candidates": len(search.tree),
                "time/total_s": time.monotonic() - self.started,
            },
        )
        if round.number % 5 == 0:
            found = f"{len(search.tree)} candidate{'s' * (len(search.tree) > 1)}"
            print(
                f"{name}: {round.runs} runs, {found}, best {100 * round.score:.1f} % "
                f"({100 * from_start:+.1f})",
                flush=True,
            )

    def _file(self, name: str) -> Path:
        return self.folder.path / FOLDER / f"{stem(name)}.json"


def stem(name: str) -> str:
    """A data set's name as a file name."""
    return name.replace("/", "_").replace(":", "_")


def run(config: WorkflowConfig, *, command: Sequence[str]) -> Path:
    """Run a whole search, or resume one with `run.resume`. Returns the run folder."""
    if config.search.runs < LEAST_RUNS:
        raise UserError(
            f"search.runs={config.search.runs}: a search compares at least two workflows, and each needs "
            f"{FEWEST} runs; set search.runs={LEAST_RUNS} or more"
        )
    folder = RunFolder.claim(config.run, made_of=(config.search.select, *config.data[:1]))
    for name in config.data:
        # A missing file, key, price or task is reported before anything is written.
        for held_out in (False, True) if config.search.held_out else (False,):
            build_executor(config, name, held_out=held_out).tasks()
    begun(config.search)
    listed(config.search)
    if config.search.pool is not None:
        ExperiencePool(config.search.pool)
    for name in config.search.operators:
        operator(name)
    if config.proposer.name == "chat":
        chat_settings("proposer.chat", config.proposer.chat)
    folder.create()
    with _locked(folder.path):
        folder.begin(config, command=command)
        (folder.path / "metrics.jsonl").unlink(missing_ok=True)  # a resumed search is replayed from its pool
        hunt = SearchRun(config, folder)
        with _cluster(config):
            records = asyncio.run(hunt.go())
        write_report(folder.path)
    for name, record in records.items():
        print(summary(name, record))
    print(f"  run     {folder.path}\n  report  {folder.path / 'report.html'}")
    return folder.path


def begun(search: schema.SearchConfig) -> SearchStart:
    """Read what a search starts from: `search.start`, or a single call."""
    path = search.start
    if path is None:
        return SearchStart(single_call())
    try:
        if Path(path).is_dir() and not (Path(path) / "graph.py").is_file():
            return SearchStart.of(Folder(path), most=search.aflow.top - 1)
        return SearchStart(read_workflow(Path(path)))
    except (OSError, ValueError, UserError) as error:
        raise UserError(f"search.start: {reason_of(error)}") from None


def portfolio_of(config: WorkflowConfig, editor: Editor) -> list[Proposal]:
    """The portfolio's workflows for a data set: as many as half of the budget pays a few runs for."""
    portfolio = listed(config.search)
    found = portfolio.usable(editor) if portfolio is not None else []
    return found[: max(0, config.search.runs // (2 * FEWEST) - 1)]


def editor_of(config: WorkflowConfig, executor: Executor) -> Editor:
    """The edits that a search of a data set may make."""
    portfolio = listed(config.search)
    return Editor(
        config.search.operators or executor.operators,
        {**executor.prompts, **(portfolio.prompts if portfolio is not None else {})},
        executor.limits,
        executor.offers,
        None if executor.recorded is None else executor.recorded.programs.keys(),
    )


def listed(search: schema.SearchConfig) -> Portfolio | None:
    """The portfolio of a search: the one shipped, which AFlow's own strategy goes without, or a file."""
    if search.portfolio == "none" or (search.portfolio == "default" and search.select == "aflow"):
        return None
    if search.portfolio == "default":
        return Portfolio.load()
    return Portfolio.load(Path(search.portfolio))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from searching in this folder. The lock ends with this process."""
    with (folder / "search.lock").open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"the search in {folder} is still running: wait for it, or end it first"
            ) from None
        yield


@contextmanager
def _cluster(config: WorkflowConfig) -> Iterator[None]:
    """Join or start a Ray cluster, if the configuration uses one."""
    if config.runtime.name == "local":
        yield
        return
    from toolwright.runtime.session import joined

    with joined(config.runtime.address):
        yield
