"""Texts as lists of token ids: two data sets, and the tokenisers that they can have.

    ag-news           Zhang, Zhao, LeCun 2015: 120,000 training and 7,600 test articles of 4
                      classes, from train.csv and test.csv as their authors publish them
    sentence-length   a class for the number of words in a sentence, from any text: 5-8, 9-12,
                      13-16, 17-20, 21-25 and 26-28 words (Conneau and Kiela 2018, SentLen)

Ids are those of a WordPiece vocabulary where data.dir has one (vocab.txt, or tokenizer.json of
transformers), else of `HashedWords`, which needs no file and is the same on every board. A list
begins with a classification token, ends with a separator, and id 0 fills it up.
"""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgegossip.files import read_text
from edgegossip.training.data.base import DataSet, Description, Examples, Inputs
from edgegossip.training.data.folders import data_root
from edgegossip.types import DataError, HostError

PADDING = 0
HASHED = 8192  # ids of `HashedWords`
_AG_NEWS = ("train.csv", "test.csv")
_LENGTHS = ((5, 8), (9, 12), (13, 16), (17, 20), (21, 25), (26, 28))  # words of a class
_TEST_EVERY = 10  # of as many sentences one is a test example
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")
_VOCABULARIES = ("tokenizer.json", "vocab.txt")


class HashedWords:
    """Gives every word, and every other sign, the id 4 + CRC-32 of its lower-case UTF-8 modulo
    8,188.

    Words that share an id are one word to a model. There is nothing to learn, so boards with texts
    of their own agree."""

    classify, separate = 2, 3

    def ids(self, word: str) -> list[int]:
        """Tokenise what stands between spaces."""
        found = _TOKEN.findall(word.lower())
        return [4 + zlib.crc32(token.encode("utf-8", "replace")) % (HASHED - 4) for token in found]


class WordPieces:
    """Gives the ids of a vocabulary as BERT has it, by the package tokenizers."""

    def __init__(self, source: Path) -> None:
        """Read vocab.txt, or tokenizer.json. Raises HostError without tokenizers, and DataError for
        a vocabulary without BERT's special tokens, or whose [PAD] is not 0."""
        try:
            from tokenizers import BertWordPieceTokenizer, Tokenizer
        except ImportError:
            raise HostError(f"{source} needs the package tokenizers: pip install transformers") from None
        self._tokenizer: Any
        try:
            if source.suffix == ".json":
                self._tokenizer = Tokenizer.from_file(str(source))
            else:
                tokens = [t for t in _text(source).splitlines() if not (t.startswith("[") and t.endswith("]"))]
                lower = all(token == token.lower() for token in tokens)
                self._tokenizer = BertWordPieceTokenizer(str(source), lowercase=lower)
        except DataError:
            raise
        except Exception as error:  # its own is nothing more special
            raise DataError(f"{source} is no tokeniser of transformers: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        special = {token: self._tokenizer.token_to_id(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")}
        for token, number in special.items():
            if number is None:
                raise DataError(f"{source}: the vocabulary has no {token}")
        if special["[PAD]"] != PADDING:
            raise DataError(f"{source}: [PAD] must have id 0, not {special['[PAD]']}")
        self.classify, self.separate = special["[CLS]"], special["[SEP]"]

    def ids(self, word: str) -> list[int]:
        """Tokenise what stands between spaces."""
        return list(self._tokenizer.encode(word, add_special_tokens=False).ids)


def tokeniser_of(folder: Path) -> HashedWords | WordPieces:
    """Choose the vocabulary that lies in a folder, else `HashedWords`. Raises as `WordPieces`
    does."""
    found = next((folder / name for name in _VOCABULARIES if (folder / name).is_file()), None)
    return HashedWords() if found is None else WordPieces(found)


@dataclass(frozen=True, slots=True)
class Tokens(Inputs):
    """Holds the ids of many texts, stored as small as they can be."""

    stored: NDArray[Any]  # [n, length]

    def __len__(self) -> int:
        return len(self.stored)

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of these texts, int64[len(indices), length]."""
        return self.stored[indices].astype(np.int64)


def encode(texts: Sequence[str], tokeniser: HashedWords | WordPieces, length: int) -> Tokens:
    """Tokenise texts into lists of `length` ids; what is longer is cut before its separator."""
    known: dict[str, list[int]] = {}
    ids = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(ids, texts, strict=True):
        found = [tokeniser.classify]
        for word in text.split():
            if word not in known:
                known[word] = tokeniser.ids(word)
            found += known[word]
            if len(found) >= length:
                break
        found = [*found[: length - 1], tokeniser.separate]
        row[: len(found)] = found
    return Tokens(ids.astype(np.uint16) if ids.max(initial=0) < 1 << 16 else ids)


def locate(name: str, folder: str) -> None:
    """Raise DataError unless the files of the data set are there."""
    _folder(name, folder)


def load(name: str, folder: str, about: Description) -> DataSet:
    """Read a data set and tokenise it. Raises DataError for missing or unreadable files."""
    path = _folder(name, folder)
    tokeniser, length = tokeniser_of(path), about.shape[0]
    parts = _ag_news(path) if name == "ag-news" else _sentences(path)
    train, test = (Examples(np.array(labels, np.int64), encode(texts, tokeniser, length)) for texts, labels in parts)
    return DataSet(name, about, train, test)


_Part = tuple[list[str], list[int]]  # texts and labels


def _text(path: Path) -> str:
    """The text of a file. Raises DataError, with the line, for bytes that are no text."""
    try:
        return read_text(path)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _ag_news(path: Path) -> list[_Part]:
    return [_articles(path / file) for file in _AG_NEWS]


def _articles(path: Path) -> _Part:
    texts, labels = [], []
    rows = csv.reader(io.StringIO(_text(path)), strict=True)
    try:
        for row in rows:
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                raise ValueError("a line is a class from 1 to 4, a title and a description")
            texts.append(f"{row[1]} {row[2]}".replace("\\", " "))  # which stands for a new line
            labels.append(int(row[0]) - 1)
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path}, line {rows.line_num}: {error}") from error
    if not labels:
        raise DataError(f"{path} has no articles")
    return texts, labels


def _sentences(path: Path) -> list[_Part]:
    """Each sentence once, in the order of the files' names. Whether it is a test example depends
    on its own words, so no sentence trains on one board and tests another."""
    train: _Part = [], []
    test: _Part = [], []
    seen = set()
    for file in _texts(path):
        for sentence in sentences_of(_text(file)):
            label = class_of(sentence)
            if label is None or sentence in seen:
                continue
            seen.add(sentence)
            is_test = zlib.crc32(sentence.encode("utf-8")) % _TEST_EVERY == 0
            texts, labels = test if is_test else train
            texts.append(sentence)
            labels.append(label)
    if not train[0] or not test[0]:
        raise DataError(f"{path}: too few sentences of 5 to 28 words in its text files")
    return [train, test]


def sentences_of(text: str) -> Iterator[str]:
    """Cut a text after each full stop, exclamation or question mark that a space follows, and at
    empty lines; spaces become single ones."""
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in _SENTENCE_END.split(paragraph):
            words = sentence.split()
            if words:
                yield " ".join(words)


def class_of(sentence: str) -> int | None:
    """Find the class of a sentence by its words: what stands between spaces and has a letter or a
    digit. None for fewer than 5, or more than 28."""
    words = sum(any(c.isalnum() for c in word) for word in sentence.split())
    return next((k for k, (low, high) in enumerate(_LENGTHS) if low <= words <= high), None)


def _texts(path: Path) -> list[Path]:
    return sorted(p for p in path.glob("*.txt") if p.name not in _VOCABULARIES) if path.is_dir() else []


def _folder(name: str, folder: str) -> Path:
    root = data_root(folder)
    for path in (root / name, root / "ag_news_csv", root):
        if name == "ag-news" and all((path / file).is_file() for file in _AG_NEWS):
            return path
        if name == "sentence-length" and path.name != "ag_news_csv" and _texts(path):
            return path
    wanted = "train.csv and test.csv" if name == "ag-news" else "text files (*.txt)"
    raise DataError(f"data set {name} is not in {root}: it has no {wanted}; set data.dir to a folder that has them")
