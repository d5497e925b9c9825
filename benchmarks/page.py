"""How soon a real browser shows a large run: the page as a reader sees it, not the server's answers alone.

    python benchmarks/page.py [--folder FOLDER] [--times 5] [--source PATH]…

It makes the run of benchmarks/ui.py (about 3 GB, once: FOLDER is used again if it is there). Each turn starts
`toolwright ui` and opens Chromium with an empty cache. `table` is from the address to the first row on the
screen, right after the server said that it listens; `filter` and `attempt` are from the key or click to the
rows or the turns. `…_cpu` is the processor time that Chromium and the server spent on it, which other work on
the machine hardly moves, and `requests` how many files and answers the first table took. `--source` names a
checkout of Toolwright; several take turns, so that one run of this script compares them. Medians, with the
smallest in brackets.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from ui import make_run, memory_mb, served

LIMITS = {"table": 1.0, "filter": 1.0, "attempt": 0.3, "memory_mb": 500.0}
ROWS = "main [role=row] [role=cell].c-step"
MEASURES = ("table", "table_cpu", "requests", "filter", "filter_cpu", "attempt", "attempt_cpu", "memory_mb")
PATIENCE_MS = 60_000


def cpu_seconds(*pids: int) -> float:
    """The processor time of these processes, those that ended aside."""
    found = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        found += int(fields[11]) + int(fields[12])
    return found / os.sysconf("SC_CLK_TCK")


def below(pid: int) -> list[int]:
    """The processes that this one started, and theirs."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for one in threads for child in (one / "children").read_text().split()]
    except FileNotFoundError:
        return []
    return [one for child in children for one in (child, *below(child))]


def chromium_processes(pid: int) -> list[int]:
    """Chromium's processes below this one, without the program that steers it: that one costs no page."""
    return [one for one in below(pid) if _name(one).startswith("chrom")]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except FileNotFoundError:
        return ""


@contextmanager
def chromium() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Stopwatch:
    """Seconds by the clock and of processors, of Chromium and the server together."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._wall, self._spent = time.perf_counter(), self._cpu()

    def _cpu(self) -> float:
        return cpu_seconds(self._server, *chromium_processes(os.getpid()))

    def lap(self, name: str) -> dict[str, float]:
        wall, spent = time.perf_counter(), self._cpu()
        found = {name: wall - self._wall, f"{name}_cpu": spent - self._spent}
        self._wall, self._spent = time.perf_counter(), self._cpu()
        return found


def take_turn(browser: Browser, folder: Path, source: Path) -> dict[str, float]:
    """One server and one empty browser."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with served(folder, source) as (url, pid):
        watch = Stopwatch(pid)
        page.goto(f"{url}/#/attempts?run=large", wait_until="commit")
        page.wait_for_selector(ROWS)
        found = watch.lap("table")
        found["requests"] = len(asked)
        page.get_by_label("reward from").fill("0.5")
        page.wait_for_selector("main h1 small:has-text(' of ')")
        found.update(watch.lap("filter"))
        page.locator("main [role=row] a").first.click()
        page.wait_for_selector("main .segment.policy")
        found.update(watch.lap("attempt"))
        found["memory_mb"] = memory_mb(pid, "VmHWM")
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the large run is made, and found again")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--source", type=Path, action="append", help="a checkout; several take turns")
    arguments = parser.parse_args()
    sources = arguments.source or [Path(__file__).parents[1]]
    turns: dict[Path, list[dict[str, float]]] = {source: [] for source in sources}
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as own, chromium() as browser:
        folder = arguments.folder or Path(own)
        make_run(folder, attempts=100_000, tokens=2000, steps=100)
        for _ in range(arguments.times):
            for source in sources:
                turns[source].append(take_turn(browser, folder, source))
    for source, taken in turns.items():
        print(source)
        for name in MEASURES:
            values = [turn[name] for turn in taken]
            limit = f"   at most {LIMITS[name]:g}" if name in LIMITS else ""
            print(f"  {name:<12}{statistics.median(values):8.2f} ({min(values):.2f}){limit}")
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
