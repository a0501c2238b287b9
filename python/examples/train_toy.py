"""Train a toy detector in a loop of your own: sample features, reward matches, step. About a minute on a laptop.

Pairs are shifted crops of one photograph, so the truth is a homography. What is printed should rise: the expected
reward, and the share of expected matches that are right.
"""

import argparse

import cv2
import torch

from disk_ops import DISKDetector, demo
from disk_ops.model import UNet
from disk_ops.training import HomographyReward, PolicyGradientLoss


def pair(photo: torch.Tensor, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two overlapping crops [2, 3, size, size] and the homography from the first to the second."""
    height, width = photo.shape[1:]
    y, x = (int(torch.randint(s - size - 16, (), generator=generator)) for s in (height, width))
    dy, dx = torch.randint(-16, 17, (2,), generator=generator).tolist()
    y, x = max(y, 16), max(x, 16)
    crops = [photo[:, j : j + size, i : i + size] for j, i in ((y, x), (y + dy, x + dx))]
    return torch.stack(crops), torch.tensor([[1.0, 0, -dx], [0, 1, -dy], [0, 0, 1]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--size", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    photo = torch.from_numpy(cv2.imread(str(demo.IMAGES[0]))).flip(-1).permute(2, 0, 1) / 255
    detector = DISKDetector(desc_dim=32, unet=UNet(desc_dim=32, size=3, down=(8, 16, 16), up=(16,)))
    optimizer = torch.optim.Adam(detector.parameters(), lr=1e-3)
    reward_of, loss_of = HomographyReward(), PolicyGradientLoss(lambda_kp=-0.001)
    for step in range(options.steps):
        images, homography = pair(photo, options.size, generator)
        first, second = detector.sample(images, generator)
        rewards = {(0, 1): reward_of(first.keypoints, second.keypoints, homography)}
        loss, statistics = loss_of([first, second], rewards, inverse_temperature=15.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == options.steps - 1:
            right = (statistics.reward + 0.25 * statistics.matches) / 1.25 / statistics.matches.clamp(min=1e-6)
            print(f"step {step:4} reward {statistics.reward:7.2f} keypoints {statistics.keypoints:4} right {right:.0%}")


if __name__ == "__main__":
    main()
