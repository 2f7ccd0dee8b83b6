"""torchvision's Inception v3 without the head that only training uses."""

from __future__ import annotations

from torch import nn
from torchvision import models

IMAGE_SIZE = 299


def inception_v3_no_aux() -> nn.Module:
    """Construct the network that answers once, in training too."""
    network: nn.Module = models.inception_v3(weights=None, aux_logits=False, init_weights=False)
    return network
