"""Networks at 32 by 32 pixels, and what is done to small images before a network sees them.

The augmentation is that of amd/HPCTrainingExamples' CIFAR-100 script: a flip, a crop of 85% or more
of the area at another aspect ratio, resized back, and jitter of brightness, contrast and
saturation.  It is there twice: as torchvision's transforms of one image on the CPU, and here for a
batch at once on the device, with factors of its own for each image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.swin_transformer import (
    PatchMergingV2,
    SwinTransformer,
    SwinTransformerBlockV2,
)
from torchvision.transforms import v2

from bench_lib.formulas.images import DataSet
from bench_lib.worker.workloads import registry

AREA = (0.85, 1.0)
ASPECT = (3 / 4, 4 / 3)
JITTER = 0.2
CROPS_TRIED = 10
"""Crops that are drawn until one lies in the image, as torchvision draws them."""
MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081
LUMA = (0.2989, 0.587, 0.114)
"""How bright red, green and blue are, as torchvision has it (ITU-R BT.601)."""

Augmentation = Callable[[Tensor, int], Tensor]
"""Takes bytes (n, height, width, channels) and a side; gives FP32 (n, channels, side, side)."""


# ---- networks -----------------------------------------------------------------------------


def create(name: str, about: DataSet, image_size: int) -> nn.Module:
    """Construct a network with random weights."""
    if name == "swin_v2_t":
        return _swin_v2_t(about.classes)
    if name == "cnn":
        return _cnn(about, image_size)
    return registry.create(name, image_size, num_classes=about.classes)


def _cnn(about: DataSet, image_size: int) -> nn.Sequential:
    """Construct the network of PyTorch's MNIST example, for images of 6 pixels a side or more.

    Two convolutions, a pooling, two linear layers and dropout between them; 1,199,882 weights
    at 28 pixels and 10 classes.
    """
    side = (image_size - 4) // 2
    return nn.Sequential(
        nn.Conv2d(about.channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * side * side, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, about.classes),
    )


def _swin_v2_t(classes: int) -> nn.Module:
    """Construct SwinV2-T as Hugging Face's Swinv2Config has it.

    Its window is 7, where torchvision's swin_v2_t has 8; a stage of fewer patches than a window
    is padded here and not there, which is more work on the same weights.
    """
    network: nn.Module = SwinTransformer(
        patch_size=[4, 4],
        embed_dim=96,
        depths=[2, 2, 6, 2],
        num_heads=[3, 6, 12, 24],
        window_size=[7, 7],
        stochastic_depth_prob=0.1,
        num_classes=classes,
        block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
    )
    return network


# ---- images -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transforms:
    """The transforms of a data set's images, on the device and one by one on the CPU."""

    augment: Augmentation
    """Transforms of a batch to learn from."""
    plain: Augmentation
    """Transforms of a batch to be tested on."""
    of_samples: Callable[[int], Any]
    """Returns torchvision's transforms of one image, of which each result has such a side."""


def transforms_of(dataset: str) -> Transforms:
    """Return the transforms of a data set: CIFAR's are augmented, MNIST's are normalised."""
    if dataset == "mnist":
        return Transforms(normalised, normalised, _mnist_samples)
    return Transforms(augmented, plain, _cifar_samples)


def _cifar_samples(side: int) -> Any:
    crop = v2.RandomResizedCrop(side, scale=AREA, antialias=False)
    return _samples(v2.RandomHorizontalFlip(), crop, v2.ColorJitter(JITTER, JITTER, JITTER))


def _mnist_samples(side: int) -> Any:
    resize = v2.Resize(side, antialias=False)
    return _samples(resize, v2.Normalize([MNIST_MEAN], [MNIST_DEVIATION]))


def _samples(*after: Any) -> Any:
    return v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), *after])


def plain(images: Tensor, side: int) -> Tensor:
    """Return images in FP32 from 0 to 1, resized where they have another side.

    Shapes are those of ``Augmentation``: from (n, height, width, channels) to
    (n, channels, side, side).
    """
    seen = shares(images)
    if seen.shape[-1] == side:
        return seen
    return functional.interpolate(seen, size=side, mode="bilinear", align_corners=False)


def normalised(images: Tensor, side: int) -> Tensor:
    """Return MNIST's images with its mean and deviation taken out.

    From (n, height, width, channels) to (n, channels, side, side).
    """
    return (plain(images, side) - MNIST_MEAN) / MNIST_DEVIATION


def augmented(images: Tensor, side: int) -> Tensor:
    """Return images flipped, cropped and jittered, each by factors of its own.

    From (n, height, width, 3) to (n, 3, side, side).  Random numbers are the device's default
    generator's, which a graph draws anew each time.
    """
    n, height, width, _ = images.shape
    flips = torch.rand(n, device=images.device) < 0.5
    boxes = random_boxes(n, height, width, images.device)
    seen = cropped(shares(images), boxes, flips, side)
    factors = 1 + JITTER * (2 * torch.rand(n, 3, device=images.device) - 1)
    return jittered(seen, factors, random_orders(n, images.device))


def shares(images: Tensor) -> Tensor:
    """Return bytes (n, height, width, channels) as FP32 (n, channels, height, width), 0 to 1."""
    return images.permute(0, 3, 1, 2).float() / 255


def random_boxes(n: int, height: int, width: int, device: torch.device) -> Tensor:
    """Return a crop for each image: top, left, height and width in pixels, (n, 4).

    Areas and aspect ratios are drawn as torchvision's RandomResizedCrop draws them: the first of
    ten that lies in the image, and the whole image where none does.
    """
    draws = torch.rand(4, n, CROPS_TRIED, device=device)
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * draws[0])
    low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
    aspect = torch.exp(low + (high - low) * draws[1])
    widths, heights = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    tops = (draws[2] * (height - heights + 1)).floor()
    lefts = (draws[3] * (width - widths + 1)).floor()
    fits = (widths <= width) & (heights <= height)
    first = fits.int().argmax(1, keepdim=True)
    boxes = torch.stack((tops, lefts, heights, widths), 2)
    chosen = boxes.gather(1, first[..., None].expand(-1, -1, 4))[:, 0]
    # Filled on the device: a list of numbers would be copied there, which no graph can repeat.
    whole = torch.zeros(4, device=device)
    whole[2].fill_(height)
    whole[3].fill_(width)
    return torch.where(fits.any(1, keepdim=True), chosen, whole)


def cropped(images: Tensor, boxes: Tensor, flips: Tensor, side: int) -> Tensor:
    """Return each image's box, of the flipped image where it is to be, resized to ``side``.

    From (n, channels, height, width), boxes (n, 4) as of ``random_boxes`` and flips (n,) to (n,
    channels, side, side).  Bilinear without antialiasing; points beyond the box's edge take the
    edge's value.
    """
    height, width = images.shape[-2:]
    tops, lefts, heights, widths = boxes.unbind(1)
    across = _points(lefts, widths, side)
    across = torch.where(flips[:, None], width - 1 - across, across)
    down = _points(tops, heights, side)
    # grid_sample counts from -1 to 1 between the outer edges of the first and the last pixel.
    across, down = (2 * across + 1) / width - 1, (2 * down + 1) / height - 1
    shape = (-1, side, side)
    grid = torch.stack((across[:, None].expand(shape), down[..., None].expand(shape)), 3)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _points(first: Tensor, size: Tensor, side: int) -> Tensor:
    """Return where each of ``side`` pixels lies in the original, (n, side)."""
    centres = (torch.arange(side, device=first.device) + 0.5) / side
    inside = centres * size[:, None] - 0.5
    return first[:, None] + torch.minimum(inside.clamp(min=0), size[:, None] - 1)


def random_orders(n: int, device: torch.device) -> Tensor:
    """Return an order of 0, 1 and 2 for each image, (n, 3)."""
    drawn = (6 * torch.rand(n, device=device)).long().clamp(max=5)
    first = drawn // 2
    second = (first + 1 + drawn % 2) % 3
    return torch.stack((first, second, 3 - first - second), 1)


def jittered(images: Tensor, factors: Tensor, orders: Tensor) -> Tensor:
    """Return images in other brightness, contrast and saturation, factors (n, 3) in that order.

    Images are (n, 3, height, width).  ``orders``, (n, 3), says which of them comes first, second
    and third.  Each blends the image with something that has none of it: black, its mean grey,
    its greys; and is cut off at 0 and 1.
    """
    for turn in range(3):
        kind = orders[:, turn, None, None, None]
        factor = factors.gather(1, orders[:, turn, None])[..., None, None]
        greys = _greys(images)
        mean = greys.mean((1, 2, 3), keepdim=True)
        other = torch.where(kind == 2, greys, torch.where(kind == 1, mean, torch.zeros_like(mean)))
        images = (other + factor * (images - other)).clamp(0, 1)
    return images


def _greys(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue)[:, None]
