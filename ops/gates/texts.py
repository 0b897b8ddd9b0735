"""Is this text, or garbage?"""

import math
import unicodedata
from collections import Counter

REPLACEMENT = "\ufffd"
# A token boundary inside a multi-byte character may cost one replacement character at the end of an answer.
ODD_SHARE = 0.03
# Bits a character over the whole answer. English and source code have 4.0 to 4.8; "!!!!" has 0, two alternating
# characters have 1. Short answers have less by nature, hence a low bound and a minimum length.
MIN_ENTROPY_BITS = 2.2
MIN_LENGTH = 24
PERIOD_SHARE = 0.9
MAX_PERIOD = 8


def complaint(text: str) -> str:
    """Say why `text` looks like the output of a broken model; empty when it does not.

    A model that repeats a phrase is weak, not broken (the recorded tiny model does, generate_eagle3_step3.json), so
    only loops of a few characters count.
    """
    if not text.strip():
        return "empty"
    odd = sum(character == REPLACEMENT or _control(character) for character in text)
    if odd > max(1, ODD_SHARE * len(text)):
        return f"{odd} of {len(text)} characters are undecodable or control characters"
    if len(text) < MIN_LENGTH:
        return ""
    period = loop(text)
    if period:
        return f"{text[-period:]!r} again and again"
    bits = entropy_bits(text)
    if bits < MIN_ENTROPY_BITS:
        return f"{bits:.1f} bits of entropy a character (text has 4 and more)"
    return ""


def entropy_bits(text: str) -> float:
    """Return the Shannon entropy of the characters, bits a character."""
    counts = Counter(text).values()
    return -math.fsum(n / len(text) * math.log2(n / len(text)) for n in counts)


def loop(text: str) -> int:
    """Return the period of a text that is one short piece repeated, 0 when it is not."""
    for period in range(1, MAX_PERIOD + 1):
        pairs = len(text) - period
        if pairs >= 4 * period and sum(map(str.__eq__, text, text[period:])) > PERIOD_SHARE * pairs:
            return period
    return 0


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Return how many tokens two outputs share from the start."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _control(character: str) -> bool:
    return unicodedata.category(character) == "Cc" and character not in "\n\r\t"
