"""A run of `workflow search`: from its folder to its report."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import asdict, replace
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
from toolwright.workflow.search_loop import Proposer, WorkflowSearch
from toolwright.workflow.selection import FEWEST, Selection, build_selection
from toolwright.workflow.tree import Job, Proposal, schedule

LEAST_RUNS = 2 * FEWEST  # for the start and one more
TAUGHT_RUNS = 500  # of a larger budget a search learns more by itself than others can tell it


class SearchRun:
    """A run of one configuration: a search for each data set, in one folder and over one pool."""

    def __init__(self, config: WorkflowConfig) -> None:
        """Read everything that the searches need. A missing file, key, price or task is an error here."""
        self.config, search = config, config.search
        self.executors = {name: build_executor(config, name) for name in config.data}
        self.judges = {name: build_executor(config, name, "test") for name in config.data if search.held_out}
        self.beginning = begun(search)
        self.editors = {name: editor_of(config, executor) for name, executor in self.executors.items()}
        for name in search.operators:
            operator(name)
        if config.proposer.name == "chat":
            self.proposer_chat = chat_settings("proposer.chat", config.proposer.chat)

    async def go(self, folder: RunFolder) -> dict[str, Record]:
        self.folder, self.started = folder, time.monotonic()
        self.pool = ExperiencePool(self.config.search.pool or folder.path / "pool.db")
        done = await asyncio.gather(*(self.search(name) for name in self.config.data))
        return dict(zip(self.config.data, done, strict=True))

    async def search(self, name: str) -> Record:
        """Search on one data set, and judge what was found."""
        config, beginning, place = self.config, self.beginning, self.folder.path.absolute()
        cost = config.search.cost
        executor = replace(
            self.executors[name],
            cache=str(place / "calls.db"),
            cost_limit=None if cost is None else CostLimit(cost, str(place / f"cost/{stem(name)}.db")),
        )
        carried = [*beginning.carried, *portfolio_of(config, self.editors[name])]
        workspace = self.folder.path / "workspace" / named(name) / "workflows"
        journal = Journal(workspace, beginning, data_set=named(name), tasks=executor.tasks)
        async with AsyncExitStack() as opened:
            runner = self._runner(executor)
            opened.push_async_callback(runner.close)
            search = WorkflowSearch(
                name=f"{name}-{config.run.seed}",
                setting=executor.setting,
                kind=executor.kind,
                start=beginning.start,
                carried=carried,
                selection=self._selection(executor, len(carried)),
                proposer=self._proposer(name, executor, opened),
                runner=runner,
                pool=self.pool,
                runs=config.search.runs,
                seed=config.run.seed,
                limits=executor.limits,
                converge=config.search.converge,
                watch=lambda search, jobs: self._watch(name, search, jobs, journal),
            )
            await search.go()
            held_out = await self._held_out(name, search)
        record = Record.of(search, select=config.search.select, held_out=held_out)
        record.save(self._file(name))
        journal.write(search, range(len(search.tree)))  # later runs change earlier scores
        write_files(self.folder.path / "best" / stem(name), search.best.workflow, data_set=named(name))
        return record

    def _runner(self, executor: Executor) -> LocalRunner | RayRunner:
        runtime, cost_limit = self.config.runtime, executor.cost_limit
        if runtime.name == "local":
            return LocalRunner(executor, self.pool)
        if cost_limit is not None:
            executor = replace(executor, cost_limit=cost_limit.serve())
        return RayRunner(executor, self.served_pool, count=runtime.workers, timeout_s=runtime.timeout_s)

    @cached_property
    def served_pool(self) -> ExperiencePool:
        """The pool for Ray's workers. Its actor lives as long as this handle."""
        return self.pool.serve(f"pool-{uuid.uuid4().hex}")

    def _selection(self, executor: Executor, carried: int) -> Selection:
        search = self.config.search
        tasks = [task.id for task in executor.tasks]
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

    def _proposer(self, name: str, executor: Executor, opened: AsyncExitStack) -> Proposer:
        """Build the proposer. `opened` closes what it holds open."""
        own, editor, cost_limit = self.config.proposer, self.editors[name], executor.cost_limit
        if own.name == "uniform":
            return UniformProposer(editor)
        from toolwright import providers

        budget = None if cost_limit is None else cost_limit.open()
        chat = providers.open_chat(self.proposer_chat, budget=budget, cache=Path(executor.cache or ""))
        opened.push_async_callback(providers.close, chat)
        search = f"{name}-{self.config.run.seed}"
        return ChatProposer(
            chat, editor, self.pool, search=search, proposals=own.proposals, tasks=executor.tasks
        )

    async def _held_out(self, name: str, search: WorkflowSearch) -> dict[str, float]:
        """Score the start and the best on tasks that no candidate has seen, outside the budget."""
        if name not in self.judges:
            return {}
        cache = str(self.folder.path.absolute() / "calls.db")
        runner = LocalRunner(replace(self.judges[name], cache=cache), self.pool)
        runs = schedule(list(runner.tasks), 1)
        scores = {}
        try:
            for who, candidate in (("start", search.tree.start), ("best", search.best)):
                made = await runner.run(candidate.workflow, runs)
                scores[who] = fmean(payment.score for payment in made.values())
        finally:
            await runner.close()
        return scores

    def _watch(self, name: str, search: WorkflowSearch, jobs: Sequence[Job], journal: Journal) -> None:
        """Write down a round."""
        Record.of(search, select=self.config.search.select).save(self._file(name))
        journal.write(search, (job.candidate for job in jobs))
        round = search.rounds[-1]
        scores = search.scores
        from_start = scores[round.best][0] - scores[0][0]
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
        if len(search.rounds) % 5 == 1:
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
    searches = SearchRun(config)
    if config.search.pool is not None:
        ExperiencePool(config.search.pool)
    folder.begin(config, command=command)
    (folder.path / "metrics.jsonl").unlink(missing_ok=True)  # a resumed search is replayed from its pool
    with _cluster(config):
        records = asyncio.run(searches.go(folder))
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
        executor.available,
        None if executor.recorded is None else executor.recorded.programs.keys(),
    )


def listed(search: schema.SearchConfig) -> Portfolio | None:
    """The portfolio of a search: the one shipped, which AFlow's own strategy goes without, or a file."""
    if search.portfolio == "none" or (search.portfolio == "default" and search.select == "aflow"):
        return None
    if search.portfolio == "default":
        return Portfolio.load()
    return Portfolio.load(Path(search.portfolio))


def _cluster(config: WorkflowConfig) -> AbstractContextManager[object]:
    """A Ray cluster, joined or started, if the configuration uses one."""
    if config.runtime.name == "local":
        return nullcontext()
    from toolwright.runtime.session import joined

    return joined(config.runtime.address)
