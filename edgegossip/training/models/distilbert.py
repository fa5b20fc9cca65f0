"""The encoder of DistilBERT (Sanh et al. 2019) with its head for classification, of any size.

    h = dropout(norm(words[ids] + positions))
    h = norm(h + out(attention(q h, k h, v h)))       in each layer
    h = norm(h + dropout(lin2(gelu(lin1 h))))
    logits = classifier(dropout(relu(pre_classifier h[first token])))

Parameters have the names and shapes of `DistilBertForSequenceClassification` in transformers, so a
folder that its `save_pretrained` wrote fits as it is. Tokens with id 0 are padding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from edgegossip.files import expanded
from edgegossip.int8.attention import DotProductAttention
from edgegossip.modelfile import ModelFile
from edgegossip.training.models.layers import width
from edgegossip.types import ConfigError, DataError, UsageError

PADDING = 0  # id of the tokens that no other token sees
_EPSILON = 1e-12
_DEVIATION = 0.02  # of a fresh weight
# The name of a size in transformers' config.json.
_CONFIG = {
    "layers": "n_layers",
    "dim": "dim",
    "heads": "n_heads",
    "hidden": "hidden_dim",
    "vocabulary": "vocab_size",
    "length": "max_position_embeddings",
}
_ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}
_WEIGHTS, _SETTINGS = "model.safetensors", "config.json"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Holds the sizes of an encoder; the defaults are those of distilbert-base."""

    layers: int = 6
    dim: int = 768
    heads: int = 12
    hidden: int = 3072
    vocabulary: int = 30522
    length: int = 512  # tokens at most

    @classmethod
    def of(cls, given: Mapping[str, int | None], fallback: Sizes) -> Sizes:
        """Take what is given, else the fallback's. Raises ConfigError for what is no size."""
        named = {key: width(f"model.params.{key}", n) for key, n in given.items() if n is not None}
        sizes = replace(fallback, **named)
        if sizes.dim % sizes.heads:
            raise ConfigError(
                f"model.params.dim = {sizes.dim} must be a multiple of model.params.heads = {sizes.heads}"
            )
        return sizes


class _Embeddings(nn.Module):
    def __init__(self, sizes: Sizes, dropout: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(sizes.vocabulary, sizes.dim, padding_idx=PADDING)
        self.position_embeddings = nn.Embedding(sizes.length, sizes.dim)
        self.LayerNorm = nn.LayerNorm(sizes.dim, eps=_EPSILON)
        self.dropout = nn.Dropout(dropout)

    @override
    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        try:
            words = self.word_embeddings(ids) + self.position_embeddings(places)
        except IndexError:
            raise UsageError(
                f"token ids {int(ids.min())} to {int(ids.max())} in lists of {ids.shape[1]}: the model "
                f"has model.params.vocabulary = {self.word_embeddings.num_embeddings} ids from 0 and "
                f"model.params.length = {self.position_embeddings.num_embeddings} places; raise them"
            ) from None
        made: Tensor = self.dropout(self.LayerNorm(words))
        return made


class _Attention(nn.Module):
    def __init__(self, sizes: Sizes, dropout: float) -> None:
        super().__init__()
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (nn.Linear(sizes.dim, sizes.dim) for _ in range(4))
        self.products = DotProductAttention(sizes.heads, dropout)

    @override
    def forward(self, h: Tensor, attn_mask: Tensor) -> Tensor:
        y = self.products(self.q_lin(h), self.k_lin(h), self.v_lin(h), attn_mask)
        made: Tensor = self.out_lin(y)
        return made


class _FeedForward(nn.Module):
    def __init__(self, sizes: Sizes, activation: str, dropout: float) -> None:
        super().__init__()
        self.lin1 = nn.Linear(sizes.dim, sizes.hidden)
        self.activation = _ACTIVATIONS[activation]()
        self.lin2 = nn.Linear(sizes.hidden, sizes.dim)
        self.dropout = nn.Dropout(dropout)

    @override
    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.dropout(self.lin2(self.activation(self.lin1(h))))
        return made


class _Block(nn.Module):
    def __init__(self, sizes: Sizes, activation: str, dropout: float, of_attention: float) -> None:
        super().__init__()
        self.attention = _Attention(sizes, of_attention)
        self.sa_layer_norm = nn.LayerNorm(sizes.dim, eps=_EPSILON)
        self.ffn = _FeedForward(sizes, activation, dropout)
        self.output_layer_norm = nn.LayerNorm(sizes.dim, eps=_EPSILON)

    @override
    def forward(self, h: Tensor, attn_mask: Tensor) -> Tensor:
        h = self.sa_layer_norm(self.attention(h, attn_mask) + h)
        made: Tensor = self.output_layer_norm(self.ffn(h) + h)
        return made


class _Transformer(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layer = nn.ModuleList(layers)

    @override
    def forward(self, h: Tensor, attn_mask: Tensor) -> Tensor:
        for layer in self.layer:
            h = layer(h, attn_mask)
        return h


class _Encoder(nn.Module):
    def __init__(self, embeddings: nn.Module, transformer: nn.Module) -> None:
        super().__init__()
        self.embeddings, self.transformer = embeddings, transformer

    @override
    def forward(self, ids: Tensor) -> Tensor:
        made: Tensor = self.transformer(self.embeddings(ids), ids != PADDING)
        return made


class DistilBert(nn.Module):
    """Maps ids int64[batch, length] to logits float32[batch, classes]."""

    def __init__(
        self,
        sizes: Sizes,
        classes: int,
        activation: str = "gelu",
        dropout: float = 0.1,
        of_attention: float = 0.1,
        of_head: float = 0.2,
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = [_Block(sizes, activation, dropout, of_attention) for _ in range(sizes.layers)]
        embeddings = _Embeddings(sizes, dropout)
        self.distilbert = _Encoder(embeddings, _Transformer(blocks))
        self.pre_classifier = nn.Linear(sizes.dim, sizes.dim)
        self.activation = nn.ReLU()
        self.dropout = nn.Dropout(of_head)
        self.classifier = nn.Linear(sizes.dim, classes)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=_DEVIATION)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        with torch.no_grad():
            embeddings.word_embeddings.weight[PADDING].zero_()

    @override
    def forward(self, ids: Tensor) -> Tensor:
        first = self.distilbert(ids)[:, 0]
        made: Tensor = self.classifier(self.dropout(self.activation(self.pre_classifier(first))))
        return made


def distilbert(
    input_shape: tuple[int, ...],
    classes: int,
    norm: str,
    layers: int | None = None,
    dim: int | None = None,
    heads: int | None = None,
    hidden: int | None = None,
    vocabulary: int | None = None,
    length: int | None = None,
    dropout: float | None = None,
    weights: str = "",
) -> nn.Module:
    """Build the encoder for token ids int64[batch, *input_shape]; `norm` is not used.

    `hidden` is the width between the two linear layers of a block, `dropout` the share that is
    dropped everywhere (unset: 0.1, 0.2 in the head). What is not set is as in distilbert-base.
    `weights`: a folder with config.json and model.safetensors as transformers writes them, whose
    sizes count; a head with another number of classes starts anew. Raises ConfigError for
    impossible sizes and UsageError for a folder that does not fit."""
    if len(input_shape) != 1:
        raise ConfigError(
            "model.name = 'distilbert' needs token ids, one list of them an example; this data "
            f"set's inputs have shape {input_shape}: use ag-news, sentence-length or your own"
        )
    given = {
        "layers": layers,
        "dim": dim,
        "heads": heads,
        "hidden": hidden,
        "vocabulary": vocabulary,
        "length": length,
    }
    folder = expanded(weights) if weights else None
    settings = {} if folder is None else _settings(folder)
    known = {key: settings[name] for key, name in _CONFIG.items() if name in settings}
    sizes = Sizes.of(given, Sizes.of(known, Sizes()))
    for key, size in known.items():
        if getattr(sizes, key) != size:
            raise ConfigError(
                f"model.params.{key} = {getattr(sizes, key)} must be {size}, as in {folder}: leave it out"
            )
    if input_shape[0] > sizes.length:
        raise ConfigError(
            f"model.params.length = {sizes.length} must be at least {input_shape[0]}, the tokens "
            "of an example of this data set"
        )
    activation = settings.get("activation", "gelu")
    if activation not in _ACTIVATIONS:
        raise UsageError(f"{folder}: activation {activation!r} is not one of gelu, relu")
    shares = [
        settings.get(name, usual) if dropout is None else _share(dropout)
        for name, usual in (
            ("dropout", 0.1),
            ("attention_dropout", 0.1),
            ("seq_classif_dropout", 0.2),
        )
    ]
    model = DistilBert(sizes, classes, activation, *shares)
    if folder is not None:
        _load(model, folder)
    return model


def _share(dropout: Any) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ConfigError(f"model.params.dropout = {dropout!r} must be a number from 0 to below 1")
    return float(dropout)


def _settings(folder: Path) -> dict[str, Any]:
    for file in (_SETTINGS, _WEIGHTS):
        if not (folder / file).is_file():
            raise UsageError(
                f"model.params.weights = {str(folder)!r}: {file} is missing; the folder must be one "
                "that transformers' save_pretrained wrote"
            )
    try:
        settings = json.loads((folder / _SETTINGS).read_text("utf-8"))
    except ValueError as error:
        raise UsageError(f"{folder / _SETTINGS} is no JSON: {error}") from error
    kind = settings.get("model_type") if isinstance(settings, dict) else None
    if kind != "distilbert":
        raise UsageError(f"{folder / _SETTINGS} is of a model of type {kind!r}, not 'distilbert'")
    return dict(settings)


def _load(model: DistilBert, folder: Path) -> None:
    """Fill in what the file has. An encoder by itself has no "distilbert." before its names; what
    belongs to another head is left out."""
    try:
        found = {name: torch.from_numpy(array) for name, array in ModelFile(folder / _WEIGHTS).items()}
    except DataError as error:
        raise UsageError(str(error)) from None
    own = model.state_dict()
    encoder = {name: "distilbert." + name for name in found if "distilbert." + name in own}
    for name, tensor in found.items():
        name = encoder.get(name, name)
        if name not in own:
            continue
        if tensor.shape != own[name].shape:
            if name.startswith("classifier."):  # of another number of classes
                continue
            raise UsageError(
                f"{folder / _WEIGHTS}: {name} has shape {list(tensor.shape)}, and the model of its "
                f"{_SETTINGS} {list(own[name].shape)}"
            )
        own[name].copy_(tensor)
    heads = ("pre_classifier.", "classifier.")
    missing = [name for name in own if name not in found and not name.startswith(heads)]
    missing = [name for name in missing if name not in encoder.values()]
    if missing:
        raise UsageError(
            f"{folder / _WEIGHTS} lacks {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        )
