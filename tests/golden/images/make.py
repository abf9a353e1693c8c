"""Writes the images here and expected.npy: what torchvision makes of them, in the order of ImageFolder.

Run in this folder by a Python with torchvision 0.26, Pillow 13 and NumPy; tests/executor/data/images_test.cpp reads the
results. The pictures are computed, not taken from anywhere.
"""
import os
import struct
import zlib

import numpy
import torch
from PIL import Image
from torchvision import datasets, transforms

HEIGHT, WIDTH, RESIZE = 20, 14, 23


def picture(width: int, height: int) -> numpy.ndarray:
    """Slopes and a checkerboard, in colours."""
    y, x = numpy.mgrid[0:height, 0:width]
    red, green = 255 * x // max(width - 1, 1), 255 * y // max(height - 1, 1)
    blue = numpy.where((x // 3 + y // 5) % 2, 200, 30)
    return numpy.stack([red, green, blue], 2).astype(numpy.uint8)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png16(path: str, values: numpy.ndarray, colour_type: int) -> None:
    """A PNG of 16-bit values [height, width, channels], which Pillow cannot write."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)) +
                   chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def main() -> None:
    for folder in ("classes/jpeg", "classes/png/deeper"):
        os.makedirs(folder, exist_ok=True)
    wide, tall = Image.fromarray(picture(61, 37)), Image.fromarray(picture(33, 50))
    wide.save("classes/jpeg/colour.jpg", quality=90)  # colours at half resolution
    tall.save("classes/jpeg/full.JPEG", quality=80, subsampling=0)
    tall.save("classes/jpeg/progressive.jpg", quality=75, progressive=True)
    wide.convert("L").save("classes/jpeg/grey.jpg", quality=85)
    wide.convert("CMYK").save("classes/jpeg/cmyk.jpg", quality=90)
    wide.save("classes/png/colour.png")
    Image.fromarray(picture(9, 7)).save("classes/png/small.png")
    tall.convert("P", palette=Image.Palette.ADAPTIVE, colors=9).save("classes/png/palette.png", transparency=3)
    tall.convert("1").save("classes/png/bits.png")
    wide.convert("L").save("classes/png/grey.png")
    clear = wide.copy()
    clear.putalpha(wide.convert("L"))
    clear.save("classes/png/deeper/alpha.png")
    wide.convert("L").convert("LA").save("classes/png/deeper/grey_alpha.png")
    large = picture(30, 24).astype(numpy.uint16) * 257
    write_png16("classes/png/sixteen.png", large ^ 0x55, 2)
    write_png16("classes/png/sixteen_grey_alpha.png", large[:, :, :2], 4)
    open("classes/png/notes.txt", "w").write("not an image\n")

    steps = transforms.Compose([
        transforms.Resize(RESIZE), transforms.CenterCrop((HEIGHT, WIDTH)), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    data = datasets.ImageFolder("classes", steps)
    numpy.save("expected.npy", torch.stack([image for image, _ in data]).numpy())
    with open("samples.txt", "w") as file:
        for path, label in data.samples:
            file.write(f"{label} {path}\n")


if __name__ == "__main__":
    main()
