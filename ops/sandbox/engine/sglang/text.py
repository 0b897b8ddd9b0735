"""Prompts in, plausible text out: a tiny deterministic tokenizer and a greedy pseudo-language.

The same prompt always gives the same text. A speculative server parts from the plain one at a token between 26 and
500 (measured range on a GPU), and then goes on just as plausibly.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Sequence

TOKEN = re.compile(r"\n+|[ \t]+(?=\s)|[ ]?[A-Za-z]{1,7}|[ ]?\d{1,3}|[ ]?[^\sA-Za-z\d]{1,2}|\s+")
WORD_LIST = (
    "the a of to and in is for with on as are this that by from it be or an at which each when not only one all "
    "server request token batch cache model layer weight memory kernel graph stream queue worker process thread "
    "function value result list index count total state error check test step draft target verify accept length "
    "rate time limit buffer block page table entry field path file line block return call write read load store "
    "first second next last new old same other small large fast slow short long right left open close start stop "
    "keeps moves holds takes gives makes uses needs shows adds sends waits runs ends begins follows becomes stays "
    "data code text word number point order part kind way case set group side level rule name form size turn "
    "because while after before until since although where then so if once again often always never still also "
    "simple common useful exact stable careful separate single double whole complete available known different"
)
CODE_LIST = "def return for in if else self None True import class raise with as not is len range items append assert"
WORDS = WORD_LIST.split()
CODE = CODE_LIST.split()
PUNCTUATION = (",", ".", ":", ";", " (", ")", " =", " +", " ->", "\n", "\n\n", "\n    ")
VOCABULARY = tuple(
    dict.fromkeys(
        [*(f" {w}" for w in WORDS), *(f" {w.capitalize()}" for w in WORDS), *(f" {w}" for w in CODE), *PUNCTUATION]
    )
)
FIRST_ID = 1000
IDS = {piece: FIRST_ID + i for i, piece in enumerate(VOCABULARY)}
GARBAGE_REPEAT, GARBAGE_REPLACEMENT = "!", "\ufffd"


def tokenize(text: str) -> list[int]:
    """Return token ids of ``text``: known pieces have fixed ids, others a stable hash."""
    return [token_id(piece) for piece in TOKEN.findall(text)]


def token_id(piece: str) -> int:
    known = IDS.get(piece)
    if known is not None:
        return known
    return 20000 + int.from_bytes(hashlib.blake2s(piece.encode(), digest_size=4).digest(), "big") % 140000


def fingerprint(ids: Sequence[int]) -> str:
    return hashlib.blake2s(",".join(map(str, ids)).encode(), digest_size=8).hexdigest()


def divergence(prompt: str, branch: str) -> int:
    """Return the token at which the speculative output of ``prompt`` leaves the plain one (26 ... 500)."""
    return random.Random(f"diverge:{prompt}:{branch}").randint(26, 500)


def greedy(prompt: str, branch: str | None = None) -> Iterator[str]:
    """Yield pieces without end; ``branch`` (the speculation settings) makes them part at ``divergence``."""
    part_at = divergence(prompt, branch) if branch is not None else None
    source = _pieces(random.Random(f"text:{prompt}"))
    position = 0
    while True:
        if position == part_at:
            source = _pieces(random.Random(f"text:{prompt}:{branch}"))
        yield next(source)
        position += 1


def sampled(prompt: str, nonce: str) -> Iterator[str]:
    """Yield pieces for a temperature above zero: other text for each ``nonce``."""
    return _pieces(random.Random(f"sample:{prompt}:{nonce}"))


def garbage(kind: str, prompt: str) -> Iterator[str]:
    """Yield what a broken server says: one piece again and again, replacement characters, or noise."""
    generator = random.Random(f"garbage:{prompt}")
    while True:
        if kind == "repeat":
            yield GARBAGE_REPEAT
        elif kind == "replacement":
            yield GARBAGE_REPLACEMENT
        else:
            yield generator.choice((GARBAGE_REPLACEMENT, "\x00", "\u00c3\u00a9", " \u0e01", "<|", "}{", "0x"))


def _pieces(generator: random.Random) -> Iterator[str]:
    while True:
        writer = _code_line if generator.random() < 0.2 else _sentence
        yield from writer(generator)


def _sentence(generator: random.Random) -> Iterator[str]:
    yield f" {generator.choice(WORDS).capitalize()}"
    for _ in range(generator.randint(6, 16)):
        yield f" {generator.choice(WORDS)}"
        if generator.random() < 0.08:
            yield ","
    yield "."
    if generator.random() < 0.25:
        yield "\n\n"


def _code_line(generator: random.Random) -> Iterator[str]:
    yield "\n    "
    yield f" {generator.choice(('if', 'for', 'return', 'with', 'assert'))}"
    yield f" {generator.choice(WORDS)}"
    yield generator.choice((" =", " +", " (", " ->"))
    yield f" {generator.choice(WORDS)}"
    yield generator.choice((":", ")"))
