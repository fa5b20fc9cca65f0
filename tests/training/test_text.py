"""Texts as token ids: tokenisers, AG News, sentence lengths."""

import zlib

import numpy as np
import pytest

from edgegossip.recipe import DataSection
from edgegossip.training.data import describe, locate, open_data
from edgegossip.training.data.text import (
    HASHED,
    HashedWords,
    class_of,
    encode,
    sentences_of,
    tokeniser_of,
)
from edgegossip.types import DataError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
PIECES = [*SPECIAL, "un", "##aff", "##able", "cafe", "the", ",", ".", "##s", "run", "1", "##2"]


def test_hashed_words_need_no_file_and_never_change():
    tokeniser = HashedWords()
    first = [4 + zlib.crc32(w) % (HASHED - 4) for w in (b"don", b"'", b"t", b"stop", b"!")]
    assert tokeniser.ids("Don't") + tokeniser.ids("STOP!") == first
    assert tokeniser.ids("") == []
    assert encode(["Hello, world"], tokeniser, 6).take(np.array([0])).tolist() == [[2, 2422, 582, 275, 3, 0]]


def test_lists_have_one_length():
    texts = ["one two three", "", "a " * 50]
    made = encode(texts, HashedWords(), 5)
    ids = made.take(np.array([2, 1, 0]))
    assert ids.dtype == np.int64 and ids.shape == (3, 5) and made.stored.dtype == np.uint16
    assert ids[1].tolist() == [2, 3, 0, 0, 0]
    assert ids[0, 0] == 2 and ids[0, 4] == 3 and len(set(ids[0, 1:4])) == 1
    assert ids[2, 4] == 3


@pytest.fixture(params=["vocab.txt", "tokenizer.json"])
def vocabulary(request, tmp_path):
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(PIECES) + "\n")
    if request.param != "vocab.txt":
        made = pytest.importorskip("tokenizers").BertWordPieceTokenizer(str(file))
        made.save(str(tmp_path / request.param))
        file.unlink()
    return tmp_path


def test_word_pieces_are_the_longest_of_the_vocabulary(vocabulary):
    tokeniser = tokeniser_of(vocabulary)
    names = dict(enumerate(PIECES))

    def pieces(word):
        return [names[k] for k in tokeniser.ids(word)]

    assert pieces("Unaffable,") == ["un", "##aff", "##able", ","]
    assert pieces("Café.the") == ["cafe", ".", "the"]
    assert pieces("runs12") == ["[UNK]"]
    assert pieces("12") == ["1", "##2"]
    assert pieces("un" * 60) == ["[UNK]"]
    ids = encode(["the runs"], tokeniser, 6).take(np.array([0]))[0]
    assert [names[k] for k in ids] == ["[CLS]", "the", "run", "##s", "[SEP]", "[PAD]"]


def test_transformers_tokenises_the_same(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    theirs = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    ours = tokeniser_of(tmp_path)
    text = "Unaffable, the CAFÉ runs 12. caf\u00e9s\tun-run the the\u4e00run  xyz!"
    wanted = theirs(text, truncation=True, max_length=20, padding="max_length")["input_ids"]
    assert encode([text], ours, 20).take(np.array([0]))[0].tolist() == wanted


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n", r"no \[PAD\]"),
        ("vocab.txt", "x\n" + "\n".join(SPECIAL), r"\[PAD\] must have id 0, not 1"),
        ("tokenizer.json", "{", "no tokeniser"),
        ("tokenizer.json", '{"model": {"type": "WordPiece", "vocab": {"a": "b"}}}', "no tokeniser"),
    ],
)
def test_vocabularies_that_do_not_fit_are_refused(tmp_path, file, text, message):
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=message):
        tokeniser_of(tmp_path)


def test_sentences_of_a_text():
    text = 'One two\nthree. "Is it?" he said!  Yes...  (No.)\n\nA heading\n \nv. 1.5 stays'
    assert list(sentences_of(text)) == [
        "One two three.",
        '"Is it?',
        "he said!",
        "Yes...",
        "(No.)",
        "A heading",
        "v.",
        "1.5 stays",
    ]


def test_classes_are_those_of_the_task():
    wanted = {
        4: None,
        5: 0,
        8: 0,
        9: 1,
        12: 1,
        13: 2,
        16: 2,
        17: 3,
        20: 3,
        21: 4,
        25: 4,
        26: 5,
        28: 5,
        29: None,
    }
    for words, label in wanted.items():
        assert class_of("word " * words) == label
        assert class_of("word , " * words + "--") == label  # marks are no words


def written(folder, texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return DataSection(name="sentence-length", dir=str(folder))


def test_sentence_length(tmp_path):
    rng = np.random.default_rng(0)
    sentences = [" ".join(f"w{rng.integers(90)}" for _ in range(n)) + "." for n in rng.integers(3, 32, 900)]
    half = {"a.txt": " ".join(sentences[:500]), "b.txt": "\n\n".join(sentences[400:])}
    section = written(tmp_path / "both", half)
    data = open_data(section)
    assert describe(section).shape == (48,) and data.about.classes == 6
    kept = {s for s in sentences if class_of(s) is not None}
    assert len(data.train) + len(data.test) == len(kept)  # each once
    assert 0.05 < len(data.test) / len(kept) < 0.16
    for part in (data.train, data.test):
        ids = part.inputs.take(np.arange(len(part)))
        words = (ids != 0).sum(1) - 3  # [CLS], the stop, [SEP]
        lows, highs = np.array([5, 9, 13, 17, 21, 26]), np.array([8, 12, 16, 20, 25, 28])
        assert (words >= lows[part.labels]).all() and (words <= highs[part.labels]).all()
    # A sentence is a test example on every board, whichever texts lie there.
    alone = open_data(written(tmp_path / "one", {"b.txt": half["b.txt"]}))

    def rows(part):
        return {bytes(r) for r in part.inputs.take(np.arange(len(part)))}

    assert rows(alone.test) <= rows(data.test) and not rows(alone.test) & rows(data.train)


def test_folders_without_texts_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"it has no text files \(\*\.txt\); set data\.dir"):
        locate(DataSection(name="sentence-length", dir=str(tmp_path)))
    with pytest.raises(DataError, match="it has no train.csv and test.csv"):
        locate(DataSection(name="ag-news", dir=str(tmp_path)))
    section = written(tmp_path, {"short.txt": "Too short. Yes."})
    with pytest.raises(DataError, match="too few sentences"):
        open_data(section)


ARTICLES = '"3","Wall St. ""Bears""","Reuters - Short-sellers,\\seeing green."\n"1","A","B"\n'


def test_ag_news(tmp_path):
    folder = tmp_path / "ag_news_csv"
    folder.mkdir()
    (folder / "train.csv").write_text(ARTICLES)
    (folder / "test.csv").write_text('"4","Sci","Tech"\n')
    section = DataSection(name="ag-news", dir=str(tmp_path))
    locate(section)
    data = open_data(section)
    assert data.about.shape == (128,) and data.about.classes == 4
    assert data.train.labels.tolist() == [2, 0] and data.test.labels.tolist() == [3]
    text = 'Wall St. "Bears" Reuters - Short-sellers, seeing green.'
    wanted = encode([text, "A B"], HashedWords(), 128).take(np.arange(2))
    np.testing.assert_array_equal(data.train.inputs.take(np.arange(2)), wanted)


@pytest.mark.parametrize("line", ['"5","a","b"', '"1","a"', '"x","a","b"', ""])
def test_damaged_articles_are_named(tmp_path, line):
    (tmp_path / "test.csv").write_text('"4","Sci","Tech"\n')
    (tmp_path / "train.csv").write_text(ARTICLES + line + "\n" if line else "")
    with pytest.raises(DataError, match=r"train\.csv(, line 3: a line is| has no articles)"):
        open_data(DataSection(name="ag-news", dir=str(tmp_path)))
