"""A run of `workflow search`: from its folder to its report."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from toolwright.failures import UserError
from toolwright.observe.report import write_report
from toolwright.trainer.run_folder import RunFolder
from toolwright.workflow import config as schema
from toolwright.workflow import sites
from toolwright.workflow.aflow.folder import Folder, named
from toolwright.workflow.aflow.journal import Beginning, Journal
from toolwright.workflow.aflow.read import read
from toolwright.workflow.aflow.write import write
from toolwright.workflow.config import WorkflowConfig
from toolwright.workflow.guided import GuidedSelection
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.propose import Editor, Uniform
from toolwright.workflow.purse import Purse
from toolwright.workflow.record import FOLDER, Record
from toolwright.workflow.runner import Bench, RayBench
from toolwright.workflow.search_loop import Found, Proposer, SearchBudget, SearchRound, WorkflowSearch
from toolwright.workflow.select import AflowSelection, Selection
from toolwright.workflow.tree import schedule
from toolwright.workflow.value import Prior

if TYPE_CHECKING:
    from toolwright.workflow.policy import EditPolicy


class Hunt:
    """One configuration at work: the folder, the pool, and a search for each data set."""

    def __init__(self, config: WorkflowConfig, folder: RunFolder) -> None:
        self.config, self.folder = config, folder
        self.cache = str(folder.path.absolute() / "calls.db")
        self.purses = {name: self._purse(name) for name in config.data}
        self.sites = {
            name: sites.build(config, name, cache=self.cache, purse=self.purses[name]) for name in config.data
        }
        self.pool = ExperiencePool(config.search.pool or folder.path / "pool.db")
        self.policy: EditPolicy | None = None  # where all searches share one
        self.started = time.monotonic()

    async def go(self) -> dict[str, Record]:
        if self.config.proposer.shared:  # one policy learns from all of them, one after the other
            return {name: await self.search(name) for name in self.config.data}
        done = await asyncio.gather(*(self.search(name) for name in self.config.data))
        return dict(zip(self.config.data, done, strict=True))

    async def search(self, name: str) -> Record:
        async with AsyncExitStack() as opened:
            return await self._searched(name, opened)

    async def _searched(self, name: str, opened: AsyncExitStack) -> Record:
        site, config = self.sites[name], self.config
        bench = self._bench(name)
        opened.push_async_callback(bench.close)
        beginning = begun(config.search)
        place = self.folder.path / "workspace" / named(name) / "workflows"
        journal = Journal(place, beginning, data_set=named(name), tasks=site.tasks())
        search = WorkflowSearch(
            name=f"{name}-{config.run.seed}",
            setting=site.setting,
            kind=site.kind,
            start=beginning.start,
            carried=beginning.carried,
            selection=self._selection(site),
            proposer=await self._proposer(name, site, opened),
            runner=bench,
            pool=self.pool,
            budget=SearchBudget(config.search.runs, config.search.cost),
            seed=config.run.seed,
            limits=site.limits,
            converge=config.search.converge,
            watch=lambda search, round: self._watch(name, search, round, journal),
        )
        found = await search.go()
        held_out = await self._held_out(name, found)
        record = Record.of(search, select=config.search.select, why=found.why, held_out=held_out)
        record.save(self._file(name))
        journal.write(search, range(len(search.tree)))  # what was learned last is said of the first as well
        self._write_best(name, found.best.workflow)
        return record

    def _write_best(self, name: str, workflow: Workflow) -> None:
        """In AFlow's form, beside the rest."""
        place = self.folder.path / "best" / stem(name)
        place.mkdir(parents=True, exist_ok=True)
        for file, text in zip(("graph.py", "prompt.py"), write(workflow, data_set=named(name)), strict=True):
            (place / file).write_text(text, encoding="utf-8")

    def _purse(self, name: str) -> Purse | None:
        """Of each data set; kept in the folder, so that a search that goes on knows what it has spent."""
        cost = self.config.search.cost
        return (
            None if cost is None else Purse(cost, str(self.folder.path.absolute() / f"cost/{stem(name)}.db"))
        )

    def _bench(self, name: str) -> Bench | RayBench:
        runtime, site, purse = self.config.runtime, self.sites[name], self.purses[name]
        if runtime.name == "local":
            return Bench(site, self.pool)
        if purse is not None:
            site = sites.build(self.config, name, cache=self.cache, purse=purse.serve())
        pool = self.pool.serve(f"pool-{self.folder.path.resolve()}".replace("/", "-"))
        return RayBench(site, pool, count=runtime.workers, timeout_s=runtime.timeout_s)

    def _selection(self, site: sites.Site) -> Selection:
        search = self.config.search
        tasks = [task.id for task in site.tasks()]
        random.Random(f"{self.config.run.seed}/{site.setting}").shuffle(tasks)
        if search.select == "aflow":
            return AflowSelection(search.aflow, schedule(tasks, search.aflow.repeats))
        prior = self._prior() if search.guided.experience else None
        return GuidedSelection(search.guided, schedule(tasks, search.guided.repeats), len(tasks), prior)

    def _prior(self) -> Prior:
        """What other runs have taught; kept, so that a run that goes on begins with the same."""
        file = self.folder.path / "prior.json"
        if not file.exists():
            own = {site.setting for site in self.sites.values()}
            file.write_text(json.dumps(asdict(Prior.from_pool(self.pool, without=own))))
        return Prior(**json.loads(file.read_text()))

    async def _proposer(self, name: str, site: sites.Site, opened: AsyncExitStack) -> Proposer:
        """What it holds open is ended with `opened`."""
        own = self.config.proposer
        editor = Editor(
            self.config.search.operators or site.operators, site.prompts, site.limits, site.offers
        )
        search = f"{name}-{self.config.run.seed}"
        if own.name == "uniform":
            return Uniform(editor)
        if own.name == "chat":
            from toolwright import providers
            from toolwright.workflow.ask import Asking

            settings = sites.chat_settings("proposer.chat", own.chat)
            purse = self.purses[name]
            budget = None if purse is None else purse.open()
            chat = providers.open_chat(settings, budget=budget, cache=Path(self.cache))
            opened.push_async_callback(providers.close, chat)
            return Asking(chat, editor, self.pool, search=search, proposals=own.proposals)
        policy = self._policy(editor)
        if not own.served:
            return policy
        from toolwright.workflow.served import served

        kept = f"{self.folder.path.name}/{search}"
        return await opened.enter_async_context(
            served(policy, pool=self.pool, search=kept, samples=own.samples)
        )

    def _policy(self, editor: Editor) -> EditPolicy:
        from toolwright.workflow.policy import EditPolicy, configured

        own = self.config.proposer
        if self.policy is not None:
            self.policy.editor = editor
            return self.policy
        path = Path(own.path) if own.path else self.folder.path / "policy"
        # One with random weights would prefer whatever is short: what it has learned since is its prior.
        relative = own.path is None and not own.warm and not own.served
        trained = configured(path, own.train, seed=self.config.run.seed)
        policy = EditPolicy(trained, editor, every=own.every, relative=relative)
        if own.shared:
            self.policy = policy
        return policy

    def make_policy(self) -> None:
        """The small one that the search begins with, where none is named. Before anything else runs."""
        own, place = self.config.proposer, self.folder.path / "policy"
        if own.name != "policy" or own.path is not None or place.exists():
            return
        from toolwright.workflow.language import fresh
        from toolwright.workflow.teach import speaking

        prompts = sorted({name for site in self.sites.values() for name in site.prompts})
        seed = self.config.run.seed
        with tempfile.TemporaryDirectory(dir=self.folder.path, prefix="policy.") as partial:
            made = fresh(Path(partial) / "fresh", seed=seed, prompts=prompts)
            if own.warm:
                shutil.rmtree(self.folder.path / "warm", ignore_errors=True)  # of one that was killed
                spoken = speaking(made, self.folder.path, seed=seed, steps=own.warm)
                made = Path(shutil.copytree(spoken, Path(partial) / "spoken"))
            os.replace(made, place)  # whole or not at all

    async def _held_out(self, name: str, found: Found) -> dict[str, float]:
        """The start and the best on tasks that no candidate has seen; paid for, and outside the budget."""
        count = self.config.search.held_out
        if not count:
            return {}
        bench = Bench(sites.build(self.config, name, held_out=True, cache=self.cache), self.pool)
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
                **{f"{name}/policy/{key}": value for key, value in round.lesson.items()},
                "time/total_s": time.monotonic() - self.started,
            },
        )
        if round.number % 5 == 0:
            print(
                f"{name}: {round.runs} runs, {len(search.tree)} candidates, best {100 * round.score:.1f} % "
                f"({100 * from_start:+.1f})",
                flush=True,
            )

    def _file(self, name: str) -> Path:
        return self.folder.path / FOLDER / f"{stem(name)}.json"


def stem(name: str) -> str:
    """A data set's name as that of a file."""
    return name.replace("/", "_").replace(":", "_")


def run(config: WorkflowConfig, *, command: Sequence[str]) -> Path:
    """A whole run; with `run.resume` over what was paid for already. Returns the folder."""
    folder = RunFolder.claim(config.run, made_of=(config.search.select, *config.data[:1]))
    for name in config.data:
        sites.build(config, name)  # a missing file, key or price is said before anything is written
    begun(config.search)
    if config.proposer.name == "chat":
        sites.chat_settings("proposer.chat", config.proposer.chat)
    folder.begin(config, command=command)
    (folder.path / "metrics.jsonl").unlink(missing_ok=True)  # a search that goes on is replayed from its pool
    hunt = Hunt(config, folder)
    hunt.make_policy()
    with _cluster(config):
        records = asyncio.run(hunt.go())
    write_report(folder.path)
    from toolwright.workflow.show import summary

    for name, record in records.items():
        print(summary(name, record))
    print(f"  run     {folder.path}\n  report  {folder.path / 'report.html'}")
    return folder.path


def begun(search: schema.SearchConfig) -> Beginning:
    """What a search starts from."""
    path = search.start
    if path is None:
        return Beginning(single_call())
    try:
        if (Path(path) / "graph.py").is_file():
            graph, prompt = (Path(path) / name for name in ("graph.py", "prompt.py"))
            prompts = prompt.read_text(encoding="utf-8") if prompt.is_file() else ""
            return Beginning(read(graph.read_text(encoding="utf-8"), prompts, where=str(graph)).checked())
        if Path(path).is_dir():
            return Beginning.of(Folder(path), most=search.aflow.top - 1)
        return Beginning(Workflow.from_json(Path(path).read_text(encoding="utf-8")).checked())
    except (OSError, ValueError) as error:
        raise UserError(f"search.start={path} cannot be read: {error}") from None


@contextmanager
def _cluster(config: WorkflowConfig) -> Iterator[None]:
    """Ray, where it is asked for: joined, or started for this run."""
    if config.runtime.name == "local":
        yield
        return
    from toolwright.runtime.session import joined

    with joined(config.runtime.address):
        yield
