"""The classic small network for MNIST."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class SmallCnn(nn.Module):
    """Two convolutions, a pooling, two linear layers and dropout between them.

    The network of PyTorch's MNIST example; 1,199,882 weights at 28 pixels and 10 classes.
    """

    def __init__(self, *, channels: int = 1, image_size: int = 28, classes: int = 10) -> None:
        """Build for square images of ``image_size`` pixels, 6 or more."""
        super().__init__()
        side = (image_size - 4) // 2
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * side * side, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each class, (n, classes), of images (n, channels, side, side)."""
        seen = functional.relu(self.conv1(images))
        seen = functional.max_pool2d(functional.relu(self.conv2(seen)), 2)
        seen = functional.relu(self.fc1(self.dropout1(seen).flatten(1)))
        answer: Tensor = self.fc2(self.dropout2(seen))
        return answer
