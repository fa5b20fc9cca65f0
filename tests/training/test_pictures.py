"""Pictures in folders and columns: training gets what numpy makes of a file, or it is named."""

from __future__ import annotations

import io
import os
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from edgegossip.recipe import DataSection
from edgegossip.training.data import locate, open_data
from edgegossip.types import ConfigError, DataError

NFC = "fra\u00eeche"
NFD = unicodedata.normalize("NFD", NFC)


def section(folder: Path, **keys) -> DataSection:
    return DataSection(**{"name": "image-folder", "dir": str(folder), "partition": "local", **keys})


def opened(folder: Path, **keys):
    return open_data(section(folder, **keys))


def everything(part):
    return part.take(np.arange(len(part)))


def put(path: Path, image: Image.Image | None = None, **how) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or Image.new("RGB", (4, 3), (9, 8, 7))).save(path, **how)
    return path


# -- kinds of pictures, each with what training should get of it ----------------------------------

Pixels = np.ndarray  # uint8[height, width, 3]: random colours that a picture is made of


def luma(rgb: Pixels) -> np.ndarray:
    """ITU-R 601 in 16 bits of fraction, as Pillow's manual has it."""
    weights = np.array([19595, 38470, 7471])
    return ((rgb.astype(np.int64) @ weights + 0x8000) >> 16).astype(np.uint8)


def colours(grey: np.ndarray) -> Pixels:
    return np.repeat(grey[..., None], 3, axis=2)


def on_white(rgb: Pixels, alpha: np.ndarray) -> Pixels:
    a = alpha[..., None] / 255.0
    return np.rint(rgb * a + 255.0 * (1.0 - a)).astype(np.uint8)


@dataclass(frozen=True)
class Kind:
    suffix: str
    save: Callable[[Path, Pixels], None]
    expected: Callable[[Pixels], Pixels]


def saved(make: Callable[[Pixels], Image.Image], **how) -> Callable[[Path, Pixels], None]:
    return lambda path, rgb: put(path, make(rgb), **how) and None


def palette(rgb: Pixels) -> Image.Image:
    image = Image.fromarray(rgb[..., 0] % 8, "P")
    image.putpalette(TABLE.ravel().tolist())
    return image


def sideways(path: Path, rgb: Pixels) -> None:
    image = Image.fromarray(np.rot90(rgb).copy())  # turned by 90 degrees to the left; 6: turn it back
    exif = image.getexif()
    exif[0x0112] = 6
    put(path, image, format="PNG", exif=exif)


TABLE = np.random.default_rng(0).integers(0, 256, (8, 3)).astype(np.uint8)
SEEN = np.array([0, 255, 128, 7, 255, 255, 30, 90], np.uint8)  # of the palette's entries
rgb_image = Image.fromarray
KINDS = {
    "colour": Kind("png", saved(rgb_image), lambda rgb: rgb),
    "wrong suffix": Kind("jpg", saved(rgb_image, format="PNG"), lambda rgb: rgb),
    "sideways": Kind("png", sideways, lambda rgb: rgb),
    "grey": Kind("PNG", saved(lambda rgb: Image.fromarray(rgb[..., 0])), lambda rgb: colours(rgb[..., 0])),
    "one bit": Kind(
        "png",
        saved(lambda rgb: Image.fromarray((rgb[..., 0] > 99) * np.uint8(255)).convert("1", dither=Image.Dither.NONE)),
        lambda rgb: colours((rgb[..., 0] > 99) * np.uint8(255)),
    ),
    "palette": Kind("gif", saved(palette), lambda rgb: TABLE[rgb[..., 0] % 8]),
    "transparent palette": Kind(
        "png",
        saved(palette, transparency=SEEN.tobytes()),
        lambda rgb: on_white(TABLE[rgb[..., 0] % 8], SEEN[rgb[..., 0] % 8]),
    ),
    "alpha": Kind(
        "png",
        saved(lambda rgb: Image.fromarray(np.dstack([rgb, rgb[..., 0]]))),
        lambda rgb: on_white(rgb, rgb[..., 0]),
    ),
    "grey and alpha": Kind(
        "png",
        saved(lambda rgb: Image.fromarray(rgb[..., :2].copy(), "LA")),
        lambda rgb: on_white(colours(rgb[..., 0]), rgb[..., 1]),
    ),
    "cmyk": Kind(
        "tif",
        saved(lambda rgb: Image.fromarray(np.dstack([rgb, rgb[..., 0]]), "CMYK")),
        lambda rgb: np.rint((255.0 - rgb) * (255.0 - rgb[..., :1]) / 255.0).astype(np.uint8),
    ),
}
_WHOLE = io.BytesIO()
Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3)).astype(np.uint8)).save(_WHOLE, "PNG")
CUT_OFF = _WHOLE.getvalue()[:150]
JUNK: dict[str, bytes] = {
    ".DS_Store": b"\0\0\0\1Bud1",
    "Thumbs.db": b"\xd0\xcf\x11\xe0",
    "notes.txt": b"two cats",
    "labels.csv": b"a,b\n",
    "._0.png": b"\0\5\x16\7",
    "__MACOSX/._0.jpg": b"\0\5\x16\7",
    "@eaDir/0.jpg": b"a thumbnail",
    ".cache/x.png": b"",
    "empty": b"",
}


@st.composite
def trees(draw):
    """Pictures by their paths below a class, with what they are made of; what else lies about; and
    perhaps one that is cut off."""
    names = st.sampled_from(["ant", "bee", NFC, NFD, "\u00d6l", "x.png"])
    classes = draw(st.lists(names, min_size=2, max_size=3, unique_by=composed))
    below = st.sampled_from(["", "2023/", "2024/a/", "ant/"])
    kinds, sizes = st.sampled_from(sorted(KINDS)), st.tuples(st.integers(1, 6), st.integers(1, 6))
    alike = draw(sizes) if draw(st.booleans()) else None
    pictures = [
        (name, draw(below), f"{k}", draw(kinds), alike or draw(sizes), draw(st.integers(0, 99)))
        for name in classes
        for k in range(draw(st.integers(1, 4)))
    ]
    where = st.sampled_from(["", *(f"{name}/" for name in classes)])
    junk = draw(st.lists(st.tuples(where, st.sampled_from(sorted(JUNK)))))
    return pictures, junk, alike, draw(st.booleans()), draw(st.one_of(st.none(), st.integers(0, len(pictures) - 1)))


def composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def order(path: str) -> list[str]:
    return [composed(part) for part in path.split("/")]


@settings(max_examples=60, deadline=None)
@given(tree=trees(), grey=st.booleans())
def test_training_gets_what_numpy_makes_of_any_folders(tmp_path_factory, tree, grey) -> None:
    pictures, junk, alike, with_train, cut_off = tree
    root = tmp_path_factory.mktemp("tree")
    top = root / "train" if with_train else root
    expected: dict[str, tuple[str, Pixels]] = {}
    for name, below, stem, kind, (height, width), seed in pictures:
        rgb = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
        path = f"{name}/{below}{stem}.{KINDS[kind].suffix}"
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind].save(top / path, rgb)
        expected[path] = composed(name), KINDS[kind].expected(rgb)
    for where, what in junk:
        (top / where / what).parent.mkdir(parents=True, exist_ok=True)
        if what != "empty":
            (top / where / what).write_bytes(JUNK[what])
        elif where:
            (top / where / what).mkdir(exist_ok=True)
    params = {"grey": grey, **({} if alike else {"size": [4, 5]})}
    if cut_off is not None:
        spoilt = top / list(expected)[cut_off]
        spoilt.write_bytes(CUT_OFF)
        with pytest.raises(DataError, match=re.escape(f"{spoilt} cannot be read as a picture")):
            opened(root, params=params)
        return
    data = opened(root, params=params)
    found, labels = everything(data.train)
    assert len(found) == len(expected)
    names = sorted({name for name, _ in expected.values()})
    assert data.about.names == tuple(names)
    for got, label, path in zip(found, labels, sorted(expected, key=order), strict=True):
        name, pixels = expected[path]
        assert names[label] == name, path
        if grey:
            pixels = luma(pixels)
        if not alike:
            pixels = np.asarray(Image.fromarray(pixels).resize((5, 4), Image.Resampling.BILINEAR))
        made = got[0] if grey else got.transpose(1, 2, 0)
        assert np.abs(made.astype(int) - pixels.astype(int)).max() <= 1, path  # 1: rounding of alpha and of inks
    account = data.train.account()
    assert sum(account["folders"].values()) == sum(account["pictures"].values()) == len(found)
    assert set(account["skipped"]) <= {
        "hidden",
        "__MACOSX/",
        "@eaDir/",
        ".txt (no picture)",
        ".csv (no picture)",
        ".db (no picture)",
    }


@pytest.mark.parametrize("kind", ["colour", "transparent palette"])
def test_a_kind_of_picture_is_read_alike_from_a_column(tmp_path, kind) -> None:
    import datasets

    rgb = np.random.default_rng(3).integers(0, 256, (3, 4, 3)).astype(np.uint8)
    made = tmp_path / f"x.{KINDS[kind].suffix}"
    KINDS[kind].save(made, rgb)
    features = datasets.Features({"image": datasets.Image(), "y": datasets.Value("int64")})
    rows = {"image": [{"bytes": made.read_bytes(), "path": None}] * 2, "y": [0, 1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "set"))
    data = opened(tmp_path / "set", name="huggingface", params={"target": "y"})
    pixels = KINDS[kind].expected(rgb)
    expected = pixels.transpose(2, 0, 1)
    found, labels = everything(data.train)
    assert found.shape == (2, *expected.shape)
    assert np.abs(found[1].astype(int) - expected).max() <= 1
    assert labels.tolist() == [0, 1]


def test_a_part_without_the_target_is_named(tmp_path) -> None:
    import datasets

    parts = {"train": {"a": [1.0, 2.0], "y": [0, 1]}, "test": {"a": [1.0]}}
    made = datasets.DatasetDict({name: datasets.Dataset.from_dict(rows) for name, rows in parts.items()})
    made.save_to_disk(str(tmp_path / "set"))
    with pytest.raises(DataError, match="test has no column y; it has a"):
        opened(tmp_path / "set", name="huggingface", params={"target": "y"})


def test_a_column_of_masks_is_a_target_as_it_is_stored(tmp_path) -> None:
    import datasets

    classes = np.arange(12, dtype=np.uint8).reshape(3, 4) % 3
    mask = Image.fromarray(classes, "P")
    mask.putpalette(TABLE.ravel().tolist())
    features = datasets.Features({"image": datasets.Image(), "mask": datasets.Image()})
    rows = {"image": [Image.new("RGB", (4, 3))] * 2, "mask": [mask, Image.fromarray(classes)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path))
    data = opened(tmp_path, name="huggingface", params={"target": "mask"})
    assert (data.about.shape, data.about.target, data.about.classes) == ((3, 3, 4), "places", 3)
    assert everything(data.train).targets.tolist() == [classes.tolist()] * 2


def test_pictures_of_a_column_that_cannot_be_one_set_are_named_by_row(tmp_path) -> None:
    import datasets

    def stored(name: str, images: list, **params):
        features = datasets.Features({"image": datasets.Image(), "y": datasets.Value("int64")})
        part = datasets.Dataset.from_dict(
            {"image": images, "y": [k % 2 for k in range(len(images))]}, features=features
        )
        part.save_to_disk(str(tmp_path / name))
        return opened(tmp_path / name, name="huggingface", params={"target": "y", **params})

    small, large = Image.new("L", (4, 3)), Image.new("RGB", (8, 8), (200, 0, 0))
    with pytest.raises(DataError, match=r"row 2: column image is 8x8 and .* row 1: .* is 4x3: say"):
        stored("sizes", [small, large])
    assert stored("both", [small, large], size=5).about.shape == (3, 5, 5)
    whole = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (60, 60, 3)).astype(np.uint8)
    Image.fromarray(noise).save(whole, "JPEG")
    cut = {"bytes": whole.getvalue()[:900], "path": None}
    with pytest.raises(DataError, match=r"row 2: column image cannot be read as a picture"):
        stored("cut", [Image.fromarray(noise), cut])
    with pytest.raises(DataError, match=r"row 2: column image holds nothing"):
        stored("none", [small, None])
    with pytest.raises(ConfigError, match="did you mean size"):
        stored("keys", [small, small], sise=3)
    image = datasets.Image()
    kinds = datasets.Features({"x": datasets.Value("float32"), "many": datasets.Sequence(image), "one": image})
    rows = {"x": [1.0, 2.0], "many": [[small], [large]], "one": [small, small]}
    datasets.Dataset.from_dict(rows, features=kinds).save_to_disk(str(tmp_path / "lists"))
    with pytest.raises(DataError, match="a list or a picture is an input by itself"):
        opened(tmp_path / "lists", name="huggingface", params={"columns": ["x", "one"]})
    with pytest.raises(ConfigError, match=r"data\.params\.size: no column of .* holds pictures"):
        opened(tmp_path / "lists", name="huggingface", params={"columns": ["x"], "size": 3})


# -- what no picture says by itself ----------------------------------------------------------------


@pytest.fixture
def pair(tmp_path):
    """Two classes of one picture each."""
    for name in ("ant", "bee"):
        put(tmp_path / name / "0.png")
    return tmp_path


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (np.array([[7, 40000]], np.int32), "7 to 40000"),
        (np.array([[0, 0.5]], np.float32), "0 to 0.5"),
        (np.array([[0, 4095]], np.uint16), "0 to 4095"),
    ],
)
def test_numbers_of_more_than_8_bits_need_a_range(pair, values, shown) -> None:
    put(pair / "bee" / "1.tiff", Image.fromarray(values))
    with pytest.raises(DataError, match=rf"bee/1\.tiff has {shown} in more than 8 bits.*data\.params\.range"):
        opened(pair, params={"size": 2})


def test_a_range_says_what_is_black_and_white(tmp_path) -> None:
    levels = np.array([[1000, 2000, 3000, 4000, 9000]])
    put(tmp_path / "a" / "0.tiff", Image.fromarray(levels.astype(np.int32)))
    put(tmp_path / "b" / "0.tiff", Image.fromarray(levels.astype(np.float32)))
    put(tmp_path / "b" / "1.png", Image.fromarray(levels.astype(np.uint16)))
    data = opened(tmp_path, params={"range": [2000, 4000], "grey": True})
    assert everything(data.train).inputs[:, 0, 0].tolist() == [[0, 0, 128, 255, 255]] * 3
    put(tmp_path / "b" / "2.png", Image.new("L", (5, 1)))
    with pytest.raises(DataError, match=r"b/2\.png has 8 bits a channel"):
        opened(tmp_path, params={"range": [2000, 4000]})
    put(tmp_path / "b" / "2.png", Image.fromarray(levels.astype(np.uint16)))
    put(tmp_path / "b" / "3.tiff", Image.fromarray(np.full((1, 5), np.nan, np.float32)))
    with pytest.raises(DataError, match=r"b/3\.tiff holds a NaN"):
        opened(tmp_path, params={"range": [2000, 4000]})
    with pytest.raises(ConfigError, match="say true or false"):
        opened(tmp_path, params={"grey": "no"})
    for wrong in ([1], [2, 1], "16", [0, float("inf")], [True, 2]):
        with pytest.raises(ConfigError, match=r"data\.params\.range = .* say \[black, white\]"):
            opened(tmp_path, params={"range": wrong})


@pytest.mark.parametrize("kind", ["gif", "tiff"])
def test_a_picture_of_several_frames_is_refused(pair, kind) -> None:
    frames = [Image.new("RGB", (4, 3), (k, 0, 0)) for k in (0, 255)]
    put(pair / "bee" / f"1.{kind}", frames[0], save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match=rf"bee/1\.{kind} has several frames"):
        opened(pair)


def test_of_a_cameras_two_pictures_in_one_file_the_first_is_taken(tmp_path) -> None:
    frames = [Image.new("RGB", (4, 3), (k, k, k)) for k in (10, 200)]
    put(tmp_path / "0.jpg", frames[0], format="MPO", save_all=True, append_images=frames[1:])
    put(tmp_path / "1.jpg")
    assert everything(opened(tmp_path).train).inputs[0].max() < 20


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("size", [None, [9, 14]])
def test_a_jpeg_is_what_pillow_makes_of_it(tmp_path, mode, grey, size) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (9, 14, 3)).astype(np.uint8)
    file = put(tmp_path / "0.jpg", Image.fromarray(noise).convert(mode), quality=90)
    with Image.open(file) as image:
        expected = np.asarray(image.convert("L" if grey else "RGB"))
    data = opened(tmp_path, params={"grey": grey, **({} if size is None else {"size": size})})
    (found,) = everything(data.train).inputs
    assert np.array_equal(found[0] if grey else found.transpose(1, 2, 0), expected)


def test_a_photo_on_its_side_is_decoded_as_large_as_it_is_needed(tmp_path) -> None:
    """A JPEG may be decoded at a fraction of its size, and this one is turned after that."""
    steps = np.repeat(np.arange(64, dtype=np.uint8)[None] * 4, 512, 0).repeat(8, 1)  # bright to the right
    image = Image.fromarray(np.rot90(steps).copy())
    exif = image.getexif()
    exif[0x0112] = 6
    put(tmp_path / "0.jpg", image, exif=exif, quality=95)
    put(tmp_path / "1.png", Image.fromarray(steps))
    turned, plain = everything(opened(tmp_path, params={"size": [2, 64], "grey": True}).train).inputs
    assert np.abs(turned.astype(int) - plain).max() <= 4


@pytest.mark.parametrize("local", [True, False])
def test_pictures_that_are_cut_off_are_named_before_anybody_trains(tmp_path, local) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (48, 48, 3)).astype(np.uint8)
    for k in range(8):
        put(tmp_path / "ant" / f"{k}.jpg", Image.fromarray(noise))
        put(tmp_path / "bee" / f"{k}.png", Image.fromarray(noise))
    for file in ("ant/5.jpg", "bee/2.png"):
        (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:700])
    (tmp_path / "bee" / "7.png").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        opened(tmp_path, partition="local" if local else "iid", params={"size": 8})
    for file in ("ant/5.jpg", "bee/2.png", "bee/7.png"):
        assert str(tmp_path / file) in str(caught.value)


def test_pictures_of_several_sizes_need_one_that_is_said(pair) -> None:
    put(pair / "bee" / "1.png", Image.new("RGB", (40, 30)))
    with pytest.raises(DataError, match=r"bee/1\.png is 40x30 and .*ant/0\.png is 4x3: say .* data\.params\.size"):
        opened(pair)
    assert opened(pair, params={"size": 4}).train.account()["sizes"] == "4x3 to 40x30, 2 different"
    (pair / "bee" / "1.png").unlink()
    for name in ("ant", "bee"):
        put(pair / "set" / "train" / name / "0.png")
        put(pair / "set" / "test" / name / "0.png", Image.new("RGB", (5, 3)))
    with pytest.raises(DataError, match=r"pictures are \[3, 4\] in .*train and \[3, 5\] in .*test: say"):
        opened(pair / "set")


def test_a_share_of_pictures_is_normalised_by_its_own(tmp_path) -> None:
    for k in range(10):
        put(tmp_path / "ant" / f"{k}.png", Image.new("L", (4, 3), k))
        put(tmp_path / "bee" / f"{k}.png", Image.new("L", (4, 3), 10 * k))
    data = opened(tmp_path, normalise="board", test_share=0.3, params={"grey": True})
    inputs = everything(data.train).inputs
    assert data.about.mean == pytest.approx([inputs.mean()])
    assert data.about.std == pytest.approx([inputs.std()])


# -- folders that may not be meant so --------------------------------------------------------------


def test_val_is_the_test_set_where_there_is_no_test(pair) -> None:
    for part in ("Train", "val"):
        for name in ("ant", "bee"):
            put(pair / "set" / part / name / "0.png")
    data = opened(pair / "set")
    assert (len(data.train), len(data.test)) == (2, 2)
    put(pair / "set" / "test" / "ant" / "0.png")
    data = opened(pair / "set")
    assert len(data.test) == 1
    assert data.train.account()["skipped"] == {"val/ (the test set is test/)": 2}


def test_what_is_passed_over_is_counted_once(pair) -> None:
    for name in ("ant", "bee", ".thumbs"):
        put(pair / "set" / name / "0.png")
    assert opened(pair / "set").train.account()["skipped"] == {"hidden": 1}
    for k in range(3):
        put(pair / "loose" / f"{k}.png")
    (pair / "loose" / "cat").mkdir()
    assert opened(pair / "loose", target="none").train.account()["skipped"] == {"cat/ (no pictures)": 1}


Change = Callable[[Path], object]
DOUBTFUL: dict[str, tuple[Change, str]] = {
    "a stray picture": (lambda root: put(root / "9.png"), r"/9\.png lies in no folder of a class"),
    "an empty class": (lambda root: (root / "cat").mkdir(), r"/cat would be a class and holds no pictures"),
    "junk alone": (lambda root: put(root / "cat" / ".x.png"), r"/cat would be a class and holds no pictures"),
    "upper and lower case": (lambda root: put(root / "Bee" / "0.png"), r"folders 'Bee' and 'bee' would be two classes"),
    "a space": (lambda root: put(root / "bee " / "0.png"), r"folders 'bee' and 'bee ' would be two classes"),
    "decomposed": (
        lambda root: [put(root / name / "0.png") for name in (NFC, NFD)],
        r"has two folders 'fraîche', written 'frai\\u0302che' and 'fra\\xeeche'",
    ),
    "no picture": (
        lambda root: (root / "bee" / "1.jpg").write_text("<html>"),
        r"bee/1\.jpg cannot be read as a picture",
    ),
    "of a phone": (
        lambda root: (root / "bee" / "1.HEIC").write_bytes(b"\0\0\0 ftypheic"),
        r"bee/1\.HEIC cannot be read",
    ),
    "a dead link": (lambda root: (root / "bee" / "1.png").symlink_to("away.png"), r"bee/1\.png is no file, or a link"),
    "a loop": (
        lambda root: (root / "bee" / "again").symlink_to(root / "bee"),
        r"bee/again is the folder .*bee once more",
    ),
    "one class twice": (lambda root: (root / "cat").symlink_to(root / "bee"), r"/cat is the folder .*bee once more"),
    "a test set alone": (lambda root: put(root / "test" / "bee" / "0.png"), r"/test is there, and no train/ beside it"),
    "beside train": (lambda root: put(root / "train" / "bee" / "0.png"), r"ant/0\.png lies beside train/"),
    "a pipe": (lambda root: os.mkfifo(root / "bee" / "1.png"), r"bee/1\.png is no file"),
    "not in UTF-8": (
        lambda root: os.mkdir(os.fsencode(root) + b"/caf\xe9"),
        r"has a folder 'caf\\udce9', whose name is not",
    ),
}


@pytest.mark.parametrize("what", sorted(DOUBTFUL))
def test_what_is_doubtful_is_refused_by_its_name(pair, what) -> None:
    assert len(opened(pair).train) == 2
    change, message = DOUBTFUL[what]
    change(pair)
    with pytest.raises(DataError, match=message):
        opened(pair)


def test_folders_are_looked_at_before_anything_is_started(pair) -> None:
    locate(section(pair))
    put(pair / "9.png")
    with pytest.raises(DataError, match="lies in no folder"):
        locate(section(pair, partition="iid"))


@pytest.mark.parametrize("what", ["an empty class", "upper and lower case"])
def test_a_declared_class_is_meant(pair, what) -> None:
    DOUBTFUL[what][0](pair)
    names = ["Bee", "ant", "bee", "cat"]
    assert opened(pair, labels=names).about.names == tuple(names)


def test_names_are_composed_in_folders_and_in_labels(tmp_path) -> None:
    for board, (written, declared) in enumerate([(NFD, NFC), (NFC, NFD)]):
        put(tmp_path / f"{board}" / written / "0.png")
        put(tmp_path / f"{board}" / "x" / "0.png")
        data = opened(tmp_path / f"{board}", labels=["x", declared])
        assert data.about.names == ("x", NFC)
        assert everything(data.train).targets.tolist() == [1, 0]
    with pytest.raises(ConfigError, match="names 'fraîche' twice"):
        opened(tmp_path / "0", labels=["x", NFC, NFD])


@pytest.mark.parametrize("written", [NFC, NFD])
@pytest.mark.parametrize("labels", [[], ["y", NFC], ["y", NFD]])
def test_names_are_composed_in_columns(tmp_path, written, labels) -> None:
    import datasets

    words = [written, "y"] * 9
    (tmp_path / "train.csv").write_text("x,k\n" + "".join(f"{i},{word}\n" for i, word in enumerate(words)))
    kinds = datasets.Features({"x": datasets.Value("float32"), "k": datasets.ClassLabel(names=["y", written])})
    rows = {"x": np.arange(18.0), "k": [1, 0] * 9}
    datasets.Dataset.from_dict(rows, features=kinds).save_to_disk(str(tmp_path / "set"))
    for name, folder in (("csv", tmp_path), ("huggingface", tmp_path / "set")):
        data = opened(folder, name=name, labels=labels, params={"target": "k"})
        assert set(data.about.names) == {"y", NFC}
        assert data.about.names[everything(data.train).targets[0]] == NFC


@pytest.mark.parametrize(("train", "test"), [("Training", "Testing"), ("TRAIN", "valid")])
def test_other_names_of_the_two_parts(tmp_path, train, test) -> None:
    for part in (train, test):
        for name in ("ant", "bee"):
            put(tmp_path / part / name / "deep" / "0.png")
    data = opened(tmp_path)
    assert (data.about.names, len(data.train), len(data.test)) == (("ant", "bee"), 2, 2)
    assert opened(tmp_path, labels=[train, test]).about.names == (train, test)


def test_a_class_of_the_test_set_alone_must_be_declared(tmp_path) -> None:
    for path in ("train/ant", "train/bee", "test/ant", "test/cat"):
        put(tmp_path / path / "0.png")
    with pytest.raises(DataError, match=r"test/cat is a class without pictures to train on"):
        opened(tmp_path)
    assert opened(tmp_path, labels=["ant", "bee", "cat"]).about.classes == 3


def test_one_folder_around_the_classes_is_no_class(pair) -> None:
    put(pair / "all" / "ant" / "0.png")
    put(pair / "all" / "bee" / "0.png")
    for name in ("ant", "bee"):
        (pair / name / "0.png").unlink()
        (pair / name).rmdir()
    with pytest.raises(DataError, match=r"/all is the only class, .* set data\.dir = .*/all"):
        opened(pair)
    assert opened(pair, target="none").about.classes == 0


@pytest.mark.parametrize("key", ["train_examples", "test_examples"])
def test_the_first_examples_in_the_order_of_classes_are_no_sample(tmp_path, key) -> None:
    for part in ("train", "test"):
        for name in ("ant", "bee"):
            for k in range(3):
                put(tmp_path / part / name / f"{k}.png")
    with pytest.raises(DataError, match="the first 3 of 6 examples are all of one class"):
        opened(tmp_path, **{key: 3})
    assert len(getattr(opened(tmp_path, **{key: 4}), key.split("_")[0])) == 4
