"""vLLM's own OpenAI server over a model of a test's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from tests.ports import free_port
from toolwright.engines.process import kill_group, shared_memory
from toolwright.engines.vllm_worker import EXTENSION
from toolwright.models import huggingface
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
START_S = 1200.0


class Server:
    """`extended`: with what Toolwright adds, so that it takes weights; without, as anybody starts it."""

    def __init__(
        self, folder: Path, decoder: Decoder, tokenizer: Tokenizer, *, extended: bool = True
    ) -> None:
        self.folder, self.extended, self.context = folder, extended, decoder.shape.context
        huggingface.save(decoder, folder)
        tokenizer.save(folder)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.folder)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "policy"]
        command += ["--dtype", "float32", "--max-model-len", str(self.context), "--max-num-seqs", "64"]
        command += ["--enforce-eager", "--kv-cache-memory-bytes", str(256 << 20), "--disable-log-stats"]
        if self.extended:
            command += ["--worker-extension-cls", EXTENSION]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "VLLM_SERVER_DEV_MODE": str(int(self.extended)),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        self.log: IO[bytes] = (self.folder / "log.txt").open("wb")
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, env=environment, start_new_session=True
        )
        limit = time.monotonic() + START_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > limit:
                self.__exit__()
                raise RuntimeError((self.folder / "log.txt").read_text(errors="replace")[-3000:])
            time.sleep(0.3)
        return self

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=60):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def __exit__(self, *error: object) -> None:
        """The whole group, and at once: it has nothing to lose."""
        kill_group(self.process, shared_memory(self.process.pid))
        self.log.close()
