"""The encoder of DistilBERT: sizes, padding, folders of transformers, learning in fp32 and int8."""

import json
import re

import pytest
import torch
from torch.nn import functional as F

from edgegossip import int8
from edgegossip.int8 import layers
from edgegossip.modelfile import write_model
from edgegossip.recipe import ModelSection
from edgegossip.training import models
from edgegossip.types import ConfigError, UsageError

SMALL = {"layers": 2, "dim": 32, "heads": 4, "hidden": 64, "vocabulary": 50, "length": 16}


def build(classes=3, tokens=10, **params):
    torch.manual_seed(0)
    return models.build(ModelSection("distilbert", params=SMALL | params), (tokens,), classes)


def folder_of(model, path, **more):
    """A folder as transformers' save_pretrained writes it, of fp32 tensors."""
    path.mkdir(exist_ok=True)
    settings = {
        "model_type": "distilbert",
        "n_layers": 2,
        "dim": 32,
        "n_heads": 4,
        "hidden_dim": 64,
        "vocab_size": 50,
        "max_position_embeddings": 16,
    }
    (path / "config.json").write_text(json.dumps(settings | more))
    write_model(
        path / "model.safetensors", {name: t.numpy() for name, t in model.state_dict().items()}, {"format": "pt"}
    )
    return path


def ids_of(batch=4, tokens=10):
    ids = torch.randint(1, 50, (batch, tokens), generator=torch.Generator().manual_seed(1))
    ids[1, 6:] = 0
    return ids


def test_names_and_shapes_are_those_of_transformers():
    shapes = {name: tuple(p.shape) for name, p in build().state_dict().items()}
    block = "distilbert.transformer.layer.1."
    for name, shape in {
        "distilbert.embeddings.word_embeddings.weight": (50, 32),
        "distilbert.embeddings.position_embeddings.weight": (16, 32),
        "distilbert.embeddings.LayerNorm.bias": (32,),
        block + "attention.q_lin.weight": (32, 32),
        block + "attention.out_lin.bias": (32,),
        block + "sa_layer_norm.weight": (32,),
        block + "ffn.lin1.weight": (64, 32),
        block + "ffn.lin2.weight": (32, 64),
        block + "output_layer_norm.weight": (32,),
        "pre_classifier.weight": (32, 32),
        "classifier.weight": (3, 32),
    }.items():
        assert shapes[name] == shape
    assert len(shapes) == 4 + 2 * 16 + 4


def test_the_defaults_are_distilbert_base():
    with torch.device("meta"):
        model = models.build(ModelSection("distilbert"), (128,), 2)
    assert sum(p.numel() for p in model.parameters()) == 66_955_010


def test_transformers_gives_the_same_logits(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.DistilBertConfig(
        vocab_size=50,
        max_position_embeddings=16,
        n_layers=2,
        dim=32,
        n_heads=4,
        hidden_dim=64,
        num_labels=3,
    )
    torch.manual_seed(4)
    theirs = transformers.DistilBertForSequenceClassification(config).eval()
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.2)
    theirs.save_pretrained(tmp_path)
    ours = build(weights=str(tmp_path)).eval()
    ids = ids_of()
    wanted = theirs(input_ids=ids, attention_mask=(ids != 0).long()).logits
    torch.testing.assert_close(ours(ids), wanted, rtol=0, atol=1e-5)


def test_a_folder_of_weights_is_the_model_that_was_saved(tmp_path):
    saved = build().eval()
    with torch.no_grad():
        for p in saved.parameters():
            p.normal_(std=0.1)
    folder = folder_of(saved, tmp_path / "whole")
    same = models.build(ModelSection("distilbert", params={"weights": str(folder)}), (10,), 3).eval()
    assert torch.equal(same(ids_of()), saved(ids_of()))
    encoder = folder_of(saved.distilbert, tmp_path / "encoder")  # whose names have no prefix
    other = build(classes=5, weights=str(encoder)).eval()
    assert torch.equal(other.distilbert(ids_of()), saved.distilbert(ids_of()))
    assert other.classifier.weight.shape == (5, 32)
    other = build(classes=5, weights=str(folder)).eval()
    assert torch.equal(other.pre_classifier.weight, saved.pre_classifier.weight)
    assert other(ids_of()).shape == (4, 5)


def test_folders_that_do_not_fit_are_refused(tmp_path):
    saved = build()
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        build(weights=str(tmp_path))
    wrong = folder_of(saved, tmp_path / "bert", model_type="bert")
    with pytest.raises(UsageError, match="'bert', not 'distilbert'"):
        build(weights=str(wrong))
    less = folder_of(saved.distilbert.embeddings, tmp_path / "less")
    with pytest.raises(UsageError, match=r"lacks distilbert\..* and \d+ more"):
        build(weights=str(less))
    folder = folder_of(saved, tmp_path / "good")
    with pytest.raises(ConfigError, match=r"model\.params\.dim = 64 must be 32"):
        build(weights=str(folder), dim=64)
    other = folder_of(saved, tmp_path / "other", hidden_dim=128)
    params = {"weights": str(other)}
    with pytest.raises(UsageError, match=r"has shape \[64, 32\]"):
        models.build(ModelSection("distilbert", params=params), (10,), 3)
    (other / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UsageError, match="cannot read a model from"):
        models.build(ModelSection("distilbert", params=params), (10,), 3)


@pytest.mark.parametrize(
    ("params", "tokens", "message"),
    [
        ({"heads": 5}, 10, "dim = 32 must be a multiple of model.params.heads = 5"),
        ({}, 17, "length = 16 must be at least 17"),
        ({"dropout": 1.0}, 10, "dropout = 1.0 must be a number"),
        ({"layers": 0}, 10, "layers = 0"),
    ],
)
def test_impossible_sizes_are_refused(params, tokens, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build(tokens=tokens, **params)


@pytest.mark.filterwarnings("ignore::edgegossip.int8.ConversionNotice")
def test_ids_that_the_vocabulary_lacks_are_named():
    model = build()
    with pytest.raises(UsageError, match=r"ids 3 to 50 .*vocabulary = 50 ids"):
        model(torch.tensor([[3, 50]]))
    with pytest.raises(UsageError, match=r"in lists of 17: .*length = 16 places"):
        model(torch.ones(1, 17, dtype=torch.int64))
    with pytest.raises(UsageError, match="rows 0 to 49"):
        int8.convert(model)(torch.tensor([[3, 50]]))


def test_images_are_refused():
    with pytest.raises(ConfigError, match="needs token ids"):
        models.build(ModelSection("distilbert"), (1, 8, 8), 10)
    with pytest.raises(ConfigError, match="did you mean"):
        models.check(ModelSection("distilbert", params={"dims": 3}))


@pytest.mark.filterwarnings("ignore::edgegossip.int8.ConversionNotice")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_padding_changes_nothing(precision):
    model = build().eval()
    if precision == "int8":
        model = int8.convert(model)
    ids = ids_of(tokens=8)
    longer = F.pad(ids, (0, 2))
    with torch.no_grad():
        a, b = model(ids), model(longer)
    # In int8 the values of padding take part in a sample's scale.
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6 if precision == "fp32" else 0.02)
    changed = ids.clone()
    changed[1, 3] = 7
    assert not torch.equal(model(changed)[1], a[1])


@pytest.mark.filterwarnings("ignore::edgegossip.int8.ConversionNotice")
def test_it_learns_in_int8_as_in_fp32():
    """Whether a sentence has more than half of its tokens: only attention can count them."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, 50, (256, 10), generator=generator)
    lengths = torch.randint(2, 11, (256,), generator=generator)
    ids[torch.arange(10)[None] >= lengths[:, None]] = 0
    labels = (lengths > 5).long()
    losses = {}
    for precision in ("fp32", "int8"):
        model = build(classes=2, dropout=0.0)
        if precision == "int8":
            model = int8.convert(model)
            names = {type(m) for m in model.modules()}
            wanted = {layers.Embedding, layers.Linear, layers.RangeLayerNorm, layers.GELU}
            assert wanted | {layers.DotProductAttention} <= names
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        torch.manual_seed(3)
        for step in range(60):
            part = slice(32 * (step % 8), 32 * (step % 8) + 32)
            loss = F.cross_entropy(model(ids[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        losses[precision] = float(F.cross_entropy(model(ids), labels).detach())
    assert losses["fp32"] < 0.2 and losses["int8"] < 0.25, losses
