"""One generation request: what was asked, what it will say, and how far it is."""

import asyncio
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from . import physics, text

HEALTH_PREFIX = "HEALTH_CHECK"


@dataclass
class Request:
    """Token 1 comes with the prefill; the others over ``steps`` verify steps (or one a decode)."""

    rid: str
    prompt: Sequence[int]
    max_new_tokens: int
    temperature: float
    streaming: bool
    pieces: Sequence[str]
    accepted: Sequence[int]
    speculative: bool
    cached: int = 0
    finish: str = "length"
    arrived_at: float = 0.0
    admitted_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0
    received: float = field(default_factory=time.time)
    noise: float = 1.0
    progress: float = 0.0
    rate: float = 1.0
    counted_steps: int = 0
    counted_tokens: int = 0
    queued: bool = False
    started: bool = False
    done: bool = False
    aborted: str | None = None
    cut: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _all_ids: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Prepared here, while time is still to pass: nothing is left to do between the last token and the answer.
        self._all_ids = [text.token_id(piece) for piece in self.pieces]
        end = 1
        for accepted in self.accepted:
            end += accepted + 1
            self._ends.append(min(end, len(self.pieces)))

    @property
    def tokens(self) -> int:
        return len(self.pieces)

    @property
    def health_probe(self) -> bool:
        return self.rid.startswith(HEALTH_PREFIX)

    def steps_done(self) -> int:
        if not self.started or not self.accepted:
            return 0
        if self.done and self.aborted is None:
            return len(self.accepted)
        share = self.progress / max(1, self.tokens - 1)
        return min(len(self.accepted), int(share * len(self.accepted) + 1e-9))

    def visible(self) -> int:
        """Return the tokens produced so far: whole verify steps, so speculation shows several at once."""
        if not self.started:
            return 0
        steps = self.steps_done()
        return self._ends[steps - 1] if steps else 1

    def text(self, tokens: int) -> str:
        return "".join(self.pieces[:tokens])

    def ids(self, tokens: int) -> list[int]:
        return self._all_ids[:tokens]

    def correct_drafts(self) -> int:
        return sum(self.accepted[: self.steps_done()])

    def histogram(self, draft_tokens: int) -> list[int]:
        done = self.accepted[: self.steps_done()]
        top = max(done, default=0)
        counts = [0] * max(1, min(draft_tokens, top + 1))
        for accepted in done:
            counts[min(accepted, len(counts) - 1)] += 1
        return counts


def new_rid() -> str:
    return uuid.uuid4().hex


def write_pieces(
    prompt: Sequence[int], count: int, temperature: float, branch: str | None, garbage: str | None, nonce: str
) -> list[str]:
    """Return the ``count`` pieces of the answer; the same prompt at temperature 0 always has the same."""
    name = text.fingerprint(prompt)
    source: Iterator[str]
    if garbage == "empty":
        return [""] * count
    if garbage:
        source = text.garbage(garbage, name)
    elif temperature > 0:
        source = text.sampled(name, nonce)
    else:
        source = text.greedy(name, branch)
    return list(islice(source, count))


def stop_early(pieces: list[str], stops: Sequence[str]) -> tuple[list[str], str | None]:
    """Cut after the first piece that completes a stop string; return which one it was."""
    written = ""
    for index, piece in enumerate(pieces):
        written += piece
        for stop in stops:
            if stop and stop in written:
                return pieces[: index + 1], stop
    return pieces, None


def draw_steps(seed: str, chances: Sequence[float], tokens: int, speculative: bool) -> list[int]:
    """Return accepted drafts for each step that follows the first token."""
    if tokens <= 1:
        return []
    if not speculative:
        return [0] * (tokens - 1)
    return physics.draw_accepted(random.Random(seed), chances, tokens - 1)
