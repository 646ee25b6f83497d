"""Decodes images, one after the other, in a process of its own: it is run as a script, which imports Pillow alone.

Each line of standard input is one image to decode, as JSON. The answer on standard output is a byte (0: the image,
1: what was wrong with it, in words), the number of bytes that follow, in eight, and those bytes. It ends with its
input, and so with the process that started it.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

Box = tuple[float, float, float, float]
SMALLEST_AREA = 0.08
WIDEST = 4 / 3
"""Of a training crop: its smallest share of the image's area, and its sides' largest ratio."""
_TRIES = 10
_MASK = (1 << 64) - 1


def decode(path: str, size: int, number: int | None, *, flip: bool) -> bytes:
    """The pixels of one image, size × size × 3 bytes: its middle, or for training a part that `number` decides."""
    from PIL import Image

    image = read(path)
    draws = None if number is None else uniforms(number)
    box = middle(*image.size) if draws is None else random_part(*image.size, draws)
    pixels = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    if draws is not None and flip and draws[-1] < 0.5:
        pixels = pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return pixels.tobytes()


def read(path: str) -> Image.Image:
    """The image in a file, with a byte each of red, green and blue."""
    from PIL import Image

    with Image.open(path) as file:
        # Grey in 16 bits. Pillow takes what is above 255 for white: nearly all of such an image would be.
        image = file.point(lambda value: value / 256) if file.mode.startswith("I") else file
        return image.convert("RGB")


def middle(width: int, height: int) -> Box:
    """Seven eighths of the shorter side: what is left of an image resized to 256 and cropped to 224."""
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_part(width: int, height: int, draws: list[float]) -> Box:
    """A part of random area and shape, at a random place, as in the usual recipe for ImageNet."""
    for attempt in range(_TRIES):
        share, shape, down, right = draws[4 * attempt : 4 * attempt + 4]
        area = width * height * (SMALLEST_AREA + (1 - SMALLEST_AREA) * share)
        ratio = math.exp((2 * shape - 1) * math.log(WIDEST))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(right * (width - wide + 1)), int(down * (height - high + 1))
            return left, top, left + wide, top + high
    # An image that is far from square: as much of its middle as has an allowed shape.
    wide, high = min(width, round(height * WIDEST)), min(height, round(width * WIDEST))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def uniforms(number: int) -> list[float]:
    """Random numbers from 0 to 1 for one image (splitmix64): four for each try, and one to mirror it."""
    state, drawn = number & _MASK, []
    for _ in range(4 * _TRIES + 1):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        drawn.append((mixed ^ (mixed >> 31)) / (1 << 64))
    return drawn


def main() -> None:
    """Answer until the input ends."""
    from PIL import Image

    # Ctrl-C is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard error is the run's: what Pillow has to say of unusual files is of no use there.
    warnings.simplefilter("ignore")
    # A small file may unpack to more than there is memory: Pillow warns of such images, and refuses only larger ones.
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    answers = sys.stdout.buffer
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        try:
            failed, content = 0, decode(asked["path"], asked["size"], asked["number"], flip=asked["flip"])
        except Exception as error:  # whatever a damaged file leads to
            failed, content = 1, (str(error).splitlines() or [type(error).__name__])[0].encode(errors="replace")
        answers.write(bytes([failed]) + len(content).to_bytes(8, "big") + content)
        answers.flush()


if __name__ == "__main__":
    main()
