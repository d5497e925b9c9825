"""The Hugging Face hub: where its files are kept, whether it can be asked, and whether a token is there."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from toolwright.doctor import probe
from toolwright.doctor.checks import CHECKS
from toolwright.doctor.checks.storage import room_in
from toolwright.doctor.result import CheckResult, ok, problem, warning

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@CHECKS.register("hub", needs=["network"])
def hub() -> CheckResult:
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    there = next((folder for folder in (home, *home.parents) if folder.exists()), home)
    if not there.is_dir():
        return problem(f"HF_HOME={home} cannot be a folder: {there} is a file", "export HF_HOME=FOLDER")
    room = room_in(there, remedy="make room, or export HF_HOME=FOLDER")
    if room.status == "problem":  # of downloads alone: models in folders need no hub
        return warning(room.text, room.remedy)
    has_token = any(map(os.environ.get, TOKENS)) or (home / "token").is_file()
    text = f"files in {home}, {'a token' if has_token else 'no token'}"
    offline = [name for name in OFFLINE if os.environ.get(name, "").upper() in ("1", "TRUE", "YES", "ON")]
    if offline:
        return ok(f"{text}, {offline[0]} is set: only local files are used")
    if any(name.lower() in ("https_proxy", "all_proxy") and value for name, value in os.environ.items()):
        return ok(f"{text}, reached through the proxy")
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    host, port = endpoint.hostname or "?", endpoint.port or (80 if endpoint.scheme == "http" else 443)
    if why := probe.refusal(host, port):
        return warning(
            f"{text}, and {host} is out of reach: {why}",
            "without internet export HF_HUB_OFFLINE=1 and use folders; behind a proxy export HTTPS_PROXY",
        )
    return ok(f"{text}, {host} answers")
