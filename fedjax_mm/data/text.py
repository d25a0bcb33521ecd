"""From strings to rows of hashed ids, without a vocabulary to learn or to ship."""

import itertools
import unicodedata
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

VOCABULARY = 4096
"""Ids are below it; 0 is padding."""
LENGTH = 32
"""Ids of a text; further ones are cut off."""
GRAM = 3


def is_text(values: np.ndarray) -> bool:
    """Whether a modality's inputs are strings, which are read as ids."""
    return values.dtype.kind == "U"


def hash_text(strings: Iterable[str]) -> np.ndarray:
    """Ids of each text's words, then of the character 3-grams of its words, each in the order of the text.

    A text is Unicode-normalised (NFKC) and lower-cased. Its words are the runs of letters, marks, numbers and symbols
    of any script; a word of fewer than three characters has no 3-gram. An id is a hash (CRC-32) into 1..4095, the same
    on every machine; a word and an equal 3-gram have different ones. Words come first so that what is cut off is
    3-grams before words.

    Args:
        strings: n texts.

    Returns:
        Int32 `[n, 32]`, 0 behind the last id; all 0 for a text without words.

    Example:
        >>> hash_text(["Red car"])[0, :5].tolist()
        [3948, 3280, 109, 1215, 0]
    """
    texts = list(strings)
    ids = np.zeros((len(texts), LENGTH), np.int32)
    for row, text in zip(ids, texts, strict=True):
        found = list(itertools.islice(_tokens(str(text)), LENGTH))
        row[: len(found)] = [1 + zlib.crc32(token.encode("utf-8", "replace")) % (VOCABULARY - 1) for token in found]
    return ids


def _tokens(text: str) -> Iterator[str]:
    normal = unicodedata.normalize("NFKC", text).lower()
    words = "".join(c if unicodedata.category(c)[0] in "LMNS" else " " for c in normal).split()
    for word in words:
        yield f"word {word}"
    for word in words:
        for start in range(len(word) - GRAM + 1):
            yield f"gram {word[start : start + GRAM]}"
