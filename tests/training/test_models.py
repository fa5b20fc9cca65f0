"""Models: parameter counts against the literature, input shapes, parameters and errors."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from edgegossip.recipe import ModelSection
from edgegossip.training import models
from edgegossip.training.models.layers import without_values
from edgegossip.types import ConfigError

NORMS = ("batchnorm", "groupnorm", "evonorm-s0", "range-evonorm")


def parameters(name, input_shape, classes, norm="batchnorm"):
    with without_values():
        model = models.build(ModelSection(name=name, norm=norm), input_shape, classes)
    return sum(p.numel() for p in model.parameters())


def size_of(name, input_shape, classes):
    """How many values, and how many products a picture takes: it tells where maps get smaller."""
    with without_values():
        model = models.build(ModelSection(name=name, norm="batchnorm"), input_shape, classes).to("meta")
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, *input_shape, device="meta"))
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("name", "millions"),
    [  # He et al. 2016, table 6 (20 to 110 layers); "ResNet-54" as in the low-precision training paper, table 1
        ("resnet20", 0.27),
        ("resnet32", 0.46),
        ("resnet44", 0.66),
        ("resnet54", 0.76),
        ("resnet56", 0.85),
        ("resnet110", 1.7),
    ],
)
def test_cifar_resnets(name, millions):
    assert parameters(name, (3, 32, 32), 10) / 1e6 == pytest.approx(millions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "count", "products"),
    [  # torchvision's models, and Keras's ResNet50V2, for 1,000 classes of ImageNet
        ("resnet18", 11_689_512, 1_814_073_344),
        ("resnet34", 21_797_672, 3_663_761_408),
        ("resnet50", 25_557_032, 4_089_184_256),
        ("resnet50v2", 25_568_360, 3_482_255_360),
        ("densenet121", 7_978_856, 2_834_161_664),
    ],
)
def test_imagenet_models(name, count, products):
    assert size_of(name, (3, 224, 224), 1000) == (count, products)


def test_small_image_variants():
    assert size_of("resnet18", (3, 32, 32), 10) == (11_173_962, 555_422_720)
    assert size_of("densenet121", (3, 32, 32), 10) == (6_956_298, 888_350_720)
    count, products = size_of("vgg11", (3, 32, 32), 10)
    assert count / 1e6 == pytest.approx(9.49, abs=0.005) and products / 1e6 == pytest.approx(153.0, abs=0.05)
    assert 100_000 < parameters("cnn", (3, 32, 32), 10) < 600_000


@pytest.mark.parametrize(
    ("name", "norm", "shape"),
    [
        *((name, "batchnorm", s) for name in ("mlp", "cnn", "resnet8") for s in ((1, 8, 8), (1, 28, 28), (3, 32, 32))),
        *(("resnet8", norm, (1, 8, 8)) for norm in NORMS[1:]),
        ("resnet18", "evonorm-s0", (1, 8, 8)),
    ],
)
def test_every_shape_gives_finite_logits_and_gradients(name, norm, shape):
    torch.manual_seed(0)
    model = models.build(ModelSection(name=name, norm=norm), shape, 7)
    x = torch.randn(2, *shape)
    for layout in (torch.contiguous_format, torch.channels_last):
        model.zero_grad()
        logits = model(x.contiguous(memory_format=layout))
        assert logits.shape == (2, 7)
        logits.square().sum().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("resnet34", "batchnorm"),
        ("resnet50", "evonorm-s0"),
        ("resnet50v2", "batchnorm"),
        ("densenet121", "evonorm-s0"),
        ("vgg11", "batchnorm"),
    ],
)
def test_large_models_train(name, norm):
    torch.manual_seed(0)
    model = models.build(ModelSection(name=name, norm=norm), (1, 16, 16), 10)
    loss = model(torch.randn(2, 1, 16, 16)).square().mean()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_no_relu_follows_an_evonorm():
    for name in ("resnet8", "resnet18", "resnet50", "resnet50v2", "densenet121", "vgg11"):
        with without_values():
            model = models.build(ModelSection(name=name, norm="range-evonorm"), (3, 32, 32), 10)
        relus = sum(isinstance(m, torch.nn.ReLU) for m in model.modules())
        assert relus == (1 if name == "vgg11" else 0), name  # VGG's hidden linear layer has one


@pytest.mark.parametrize("name", ["resnet20", "distilbert"])
def test_initial_weights_are_those_of_the_papers(name):
    """He et al. 2015, equation 14, of convolutions; 0.02 for BERT's products; no bias."""
    torch.manual_seed(0)
    text = name == "distilbert"
    params = {"layers": 1, "dim": 64, "heads": 4, "hidden": 64, "vocabulary": 50, "length": 16} if text else {}
    model = models.build(ModelSection(name=name, norm="evonorm-s0", params=params), (16,) if text else (3, 32, 32), 3)
    made = [m for m in model.modules() if isinstance(m, torch.nn.Linear if text else torch.nn.Conv2d)]
    assert all(m.bias is None or not m.bias.any() for m in made)
    stds = [0.02 if text else (2 / m.weight[:, 0].numel()) ** 0.5 for m in made]
    assert torch.cat(
        [m.weight.flatten() / std for m, std in zip(made, stds, strict=True)]
    ).std().item() == pytest.approx(1, abs=0.05)


def test_params_reach_the_builder():
    section = ModelSection(name="mlp", params={"hidden": [5, 4]})
    shapes = [tuple(p.shape) for p in models.build(section, (2, 3), 3).parameters()]
    assert shapes == [(5, 6), (5,), (4, 5), (4,), (3, 4), (3,)]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (ModelSection(name="resnet2"), r"model\.name = 'resnet2' is not known; did you mean resnet"),
        (ModelSection(name="mlp", params={"hiden": [3]}), "did you mean hidden"),
        (ModelSection(name="resnet20", params={"hidden": 3}), "resnet20 has no parameters"),
        (ModelSection(name="mlp", params={"hidden": [0]}), r"model\.params\.hidden = \[0\] must be"),
        (ModelSection(name="mlp", params={"hidden": 3}), "must be a list"),
        (ModelSection(name="cnn", params={"hidden": True}), "must be a whole number"),
        (ModelSection(name="cnn", params={"channels": [8, 8, 8, 8]}), "to nothing"),
        (ModelSection(name="resnet20", norm="layernorm"), r"model\.norm = 'layernorm' is not known"),
    ],
)
def test_bad_sections(section, message):
    with pytest.raises(ConfigError, match=message):
        models.build(section, (1, 8, 8), 10)


def test_images_are_needed():
    with pytest.raises(ConfigError, match=r"model\.name = 'cnn' needs images"):
        models.build(ModelSection(name="cnn"), (64,), 10)


def test_pooling_before_relu_is_relu_before_pooling():
    model = models.build(ModelSection(name="cnn"), (1, 28, 28), 10)
    textbook = torch.nn.Sequential(*model)
    for first in (1, 4, 7):
        textbook[first], textbook[first + 1] = model[first + 1], model[first]
    x, grads = torch.randn(16, 1, 28, 28), []
    for net in (model, textbook):
        net.zero_grad()
        net(x).square().sum().backward()
        grads.append([p.grad.clone() for p in net.parameters()])
    assert torch.equal(model(x), textbook(x)) and all(map(torch.equal, *grads))
