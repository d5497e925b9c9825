"""vLLM in a process of its own: one loop that reads requests and decodes one token of every sequence."""

from __future__ import annotations

import dataclasses
import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from toolwright.engines import Sampling
from toolwright.engines.turns import seed_at, stopped
from toolwright.failures import UserError, nearest
from toolwright.models.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class PendingTurn:
    """A turn that has no answer yet."""

    number: int
    sampling: Sampling
    ends: frozenset[int]


class Loop:
    """Handles all pending requests between two steps of the engine, so weights change between tokens
    and never within one."""

    def __init__(self, wire: Connection, settings: dict[str, Any]) -> None:
        self.wire = wire
        self.engine = build(settings["arguments"])
        self.engine.collective_rpc("toolwright_whole_distribution")
        self.tokenizer = Tokenizer.load(Path(settings["arguments"]["model"]))
        self.turns: dict[str, PendingTurn] = {}
        self.version = 0

    def run(self) -> None:
        while True:
            while self.wire.poll(0 if self.turns else None):
                what, number, *arguments = self.wire.recv()
                if what == "close":
                    return
                self._answer(what, number, arguments)
            if self.turns:
                for output in self.engine.step():
                    self._heard(output)

    def _answer(self, what: str, number: int, arguments: list[Any]) -> None:
        try:
            answer = getattr(self, what)(number, *arguments)
        except Exception as error:
            self.wire.send(("failed", number, f"vLLM failed to {what}: {type(error).__name__}: {error}"))
        else:
            if answer is not None:
                self.wire.send(("done", number, answer))

    # The requests. One without a return value is answered later or not at all.

    def generate(self, number: int, prompt: list[int], sampling: Sampling, ends: list[int]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=seed_at(sampling.seed, len(prompt)),
            max_tokens=sampling.max_tokens,
            stop_token_ids=ends,
            ignore_eos=True,  # the tokens that end a turn are ours to say
            logprobs=0,  # of what was sampled, and no others
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE if sampling.stop else RequestOutputKind.FINAL_ONLY,
        )
        self.engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        self.turns[str(number)] = PendingTurn(number, sampling, frozenset(ends))

    def abort(self, number: int) -> None:
        if self.turns.pop(str(number), None) is not None:
            self.engine.abort_request([str(number)])

    def under_way(self, number: int) -> list[int]:
        return [turn.number for turn in self.turns.values()]

    def load(self, number: int, note: str, version: int) -> list[dict[str, Any]]:
        """Take new weights, and drop what the old ones computed; sequences under way start again."""
        if self.engine.is_sleeping():
            self.engine.wake_up(["weights"])
        answers = self.engine.collective_rpc("toolwright_load", args=(note,))
        if self.engine.is_sleeping():
            self.engine.wake_up(["kv_cache"])
        self.engine.reset_prefix_cache(reset_running_requests=True)
        self.version = version
        return answers

    def rest(self, number: int) -> bool:
        """Memory of the GPU given back, weights included: the next ones to come take their place."""
        for turn in list(self.turns.values()):
            self.abort(turn.number)
            self.wire.send(("failed", turn.number, "vLLM was put to sleep during a turn"))
        self.engine.reset_prefix_cache()
        self.engine.sleep(level=2)
        return True

    def _heard(self, output: Any) -> None:
        turn = self.turns.get(output.request_id)
        if turn is None:
            return
        said = output.outputs[0]
        tokens = list(said.token_ids)
        stop = None
        if output.finished and not tokens:
            del self.turns[output.request_id]
            why = f"vLLM ended a turn without a token: {said.finish_reason}"
            self.wire.send(("failed", turn.number, why))
            return
        if output.finished:
            stop = "eos" if tokens[-1] in turn.ends else "length"
        if stop != "eos" and turn.sampling.stop and stopped(self.tokenizer, tokens, turn.sampling.stop):
            stop = "stop"
        if stop is None:
            return
        log_probs = [row[token].logprob for row, token in zip(said.logprobs, tokens, strict=True)]
        if not output.finished:
            self.engine.abort_request([output.request_id])
        del self.turns[output.request_id]
        self.wire.send(("done", turn.number, (tokens, log_probs, stop, self.version)))


def build(arguments: dict[str, Any]) -> Any:
    """vLLM's engine in this process; `arguments` are those of its `EngineArgs`."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    known = {field.name for field in dataclasses.fields(EngineArgs)}
    for name in arguments:
        if name not in known:
            raise UserError(f"engine.params.{name}: vLLM has no such argument; {nearest(name, known)}")
    return LLMEngine.from_engine_args(EngineArgs(**arguments))


def main() -> None:
    wire = Connection(int(sys.argv[1]))
    _, number, settings = wire.recv()
    try:
        loop = Loop(wire, settings)
    except UserError as error:
        wire.send(("refused", number, str(error)))
        return
    except Exception as error:
        wire.send(("failed", number, f"vLLM did not start: {type(error).__name__}: {error}"))
        raise
    import vllm

    wire.send(("done", number, {"version": vllm.__version__}))
    with suppress(EOFError):  # the parent is gone
        loop.run()


if __name__ == "__main__":
    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(sys.exc_info()[0] is not None))  # its threads and libraries may take their time, or hang
