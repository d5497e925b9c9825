"""Show a folder of runs as a web page, and follow those that are going on.

Examples:
  toolwright ui                         the runs in runs/, on this machine alone
  toolwright ui FOLDER --port 9000
  toolwright ui --host 0.0.0.0 --token SECRET      for other machines; give the link to nobody else

The page only reads: nothing in the folder is changed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from toolwright.cli import CommandParser
from toolwright.failures import UserError

if TYPE_CHECKING:
    from socket import socket

PORT = 8700
DRAIN_S = 2.0
# Training comes first: the page takes what the processors have left.
NICENESS = 5


def main(argv: list[str]) -> int:
    from toolwright.ui.app import TOKEN_VARIABLE, UiApp
    from toolwright.ui.run_library import RunLibrary
    from toolwright.web import address, callers, serving

    arguments = _parser().parse_args(argv)
    folder = Path(arguments.folder)
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}: start a run first, such as `toolwright train task=sums`, "
            "or name the folder that holds your runs"
        )
    token = arguments.token or os.environ.get(TOKEN_VARIABLE) or None
    address.require_token(arguments.host, token, TOKEN_VARIABLE)
    library = RunLibrary(folder)
    with _listen(arguments.host, arguments.port) as listener:
        app = UiApp(library, callers.from_options(arguments, token))
        url = _reachable(address.url_of(listener)) + ("/" if token is None else f"/?token={quote(token)}")

        def announce() -> None:
            count = len(library.names())
            print(f"{count} run{'s' * (count != 1)} of {folder} on {url}   (Ctrl-C stops it)", flush=True)
            threading.Thread(target=library.read_ahead, daemon=True).start()
            if not arguments.no_browser:
                _open_browser(url)

        os.nice(NICENESS)
        with asyncio.Runner(loop_factory=address.new_event_loop) as runner:
            runner.run(serving.serve(app, listener, drain_s=DRAIN_S, on_start=announce))
    return 0


def _listen(host: str, port: int | None) -> socket:
    """The usual port, or any free one if that is taken and none was asked for."""
    from toolwright.web.address import bind

    try:
        return bind(host, PORT if port is None else port)
    except UserError:
        if port is not None:
            raise
        return bind(host, 0)


def _reachable(url: str) -> str:
    """The address by this machine's name, where the server listens on all of its addresses."""
    import socket

    name = f"//{socket.gethostname()}:"
    return url.replace("//0.0.0.0:", name).replace("//[::]:", name)


def _open_browser(url: str) -> None:
    """Open the page if there are windows. Elsewhere a text browser would take over the terminal."""
    windows = sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if windows and sys.stdout.isatty():
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _parser() -> argparse.ArgumentParser:
    from toolwright.web import callers

    parser = CommandParser(prog="toolwright ui", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", default="runs", metavar="FOLDER", help="the folder of runs (runs)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument(
        "--port", type=int, help=f"the port to listen on; 0 takes a free one ({PORT}, or a free one)"
    )
    parser.add_argument("--token", help="the token that callers must send; needed for other machines")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    callers.add_options(parser)
    return parser
