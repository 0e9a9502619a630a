"""Pictures from clients: every usual form is taken, and what is wrong is the client's 422."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from timebound.errors import BadInput
from timebound.image import decode


def file_of(
    colour: Any = (200, 100, 50), *, size: tuple[int, int] = (6, 4), mode: str = "RGB", kind: str = "PNG"
) -> bytes:
    """The bytes of a picture file in one colour; `size` is (width, height)."""
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, kind)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels at all."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


def refused(data: Any, **options: Any) -> BadInput:
    with pytest.raises(BadInput) as caught:
        decode(data, **options)
    return caught.value


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "WEBP", "JPEG"])
def test_every_kind_of_file_becomes_height_by_width_by_channels(kind: str) -> None:
    array = decode(file_of(kind=kind))
    assert (array.shape, array.dtype) == ((4, 6, 3), np.uint8)
    assert np.abs(array.astype(int) - (200, 100, 50)).max() <= 6  # JPEG and WebP lose a little


def test_the_same_picture_comes_as_bytes_base64_or_a_data_url() -> None:
    data = file_of()
    coded = base64.b64encode(data).decode()
    forms: list[Any] = [data, bytearray(data), memoryview(data), coded, f"data:image/png;base64,{coded}"]
    arrays = [decode(form) for form in forms]
    assert all((array == arrays[0]).all() for array in arrays)


@pytest.mark.parametrize(
    "written",
    [
        lambda data: base64.encodebytes(data).decode(),  # lines of 76, as the command base64 writes them
        lambda data: base64.encodebytes(data).decode().replace("\n", "\r\n"),
        lambda data: base64.urlsafe_b64encode(data).decode(),
        lambda data: base64.b64encode(data).decode().rstrip("="),
        lambda data: "DATA:image/png;BASE64,\n " + base64.encodebytes(data).decode(),
    ],
    ids=["lines", "crlf", "url", "unpadded", "capitals"],
)
def test_base64_as_other_tools_write_it_is_taken(written: Callable[[bytes], str]) -> None:
    data = file_of() + b"\xfb\xff\xfe"  # has both letters that URLs write otherwise, and needs padding
    data += b"." * (-len(data) % 3 + 1)
    assert base64.b64encode(data).endswith(b"=")
    assert (decode(written(data)) == decode(data)).all()


def test_mode_l_gives_height_by_width() -> None:
    array = decode(file_of((90, 90, 90)), mode="L")
    assert (array.shape, array.dtype) == ((4, 6), np.uint8)
    assert (array == 90).all()


@pytest.mark.parametrize(("mode", "colour"), [("L", 7), ("RGBA", (1, 2, 3, 255)), ("1", 1), ("P", 3)])
def test_pictures_of_other_modes_are_converted(mode: str, colour: Any) -> None:
    assert decode(file_of(colour, mode=mode)).shape == (4, 6, 3)


def deep_grey(**options: Any) -> bytes:
    """A PNG with sixteen bits of grey, from black to white."""
    buffer = io.BytesIO()
    Image.fromarray(np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)).save(buffer, "PNG", **options)
    return buffer.getvalue()


def test_sixteen_bits_of_grey_are_scaled_to_eight() -> None:
    expected = (np.linspace(0, 65535, 64).astype(np.uint16) >> 8).astype(np.uint8).reshape(8, 8)
    assert (decode(deep_grey(), mode="L") == expected).all()
    assert (decode(deep_grey()) == expected[:, :, None]).all()
    assert decode(deep_grey(), size=(4, 4), mode="L").mean() == pytest.approx(expected.mean(), abs=2)


def test_what_is_transparent_in_sixteen_bits_of_grey_is_white() -> None:
    array = decode(deep_grey(transparency=0), mode="L")
    assert (array[0, 0], array[0, 1], array[7, 7]) == (255, 4, 255)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", [(6, 4), (3, 5), (64, 32), (1, 1)])
def test_size_is_width_and_height(kind: str, size: tuple[int, int]) -> None:
    array = decode(file_of(size=(48, 40), kind=kind), size=size)
    assert array.shape == (size[1], size[0], 3)
    assert decode(file_of(size=(48, 40), kind=kind), size=size, mode="L").shape == (size[1], size[0])


def striped(size: tuple[int, int], kind: str = "PNG", **options: Any) -> bytes:
    """A picture whose left third is red, middle green, right blue."""
    array = np.zeros((size[1], size[0], 3), np.uint8)
    third = size[0] // 3
    for channel, part in enumerate((slice(0, third), slice(third, 2 * third), slice(2 * third, None))):
        array[:, part, channel] = 255
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", [(90, 30), (900, 300), (91, 33)])
def test_crop_keeps_the_middle(kind: str, size: tuple[int, int]) -> None:
    array = decode(striped(size, kind), size=(20, 20), fit="crop")
    assert array.shape == (20, 20, 3)
    assert (array[:, 2:-2, 1] > 200).all()
    assert (array[:, 2:-2, 0] < 60).all()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_pad_keeps_everything_with_a_border(kind: str) -> None:
    array = decode(striped((900, 300), kind), size=(30, 30), fit="pad", fill=7)
    assert array.shape == (30, 30, 3)
    assert (array[:10] == 7).all()
    assert (array[20:] == 7).all()
    assert array[15, 2].argmax() == 0
    assert array[15, 15].argmax() == 1
    assert array[15, 27].argmax() == 2
    grey = decode(striped((300, 900), kind), size=(30, 30), fit="pad", fill=7, mode="L")
    assert (grey.shape, (grey[:, :10] == 7).all()) == ((30, 30), True)


def test_an_unknown_fit_is_named() -> None:
    with pytest.raises(ValueError, match="choose one of stretch, crop, pad"):
        decode(striped((9, 9)), size=(3, 3), fit="squeeze")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_upright(orientation: int) -> None:
    upright = Image.open(io.BytesIO(striped((96, 48)))).convert("RGB")
    # What a camera writes: the pixels as its sensor saw them, and the number of the way to hold them.
    way = Image.Transpose
    held = {
        2: way.FLIP_LEFT_RIGHT,
        3: way.ROTATE_180,
        4: way.FLIP_TOP_BOTTOM,
        5: way.TRANSPOSE,
        6: way.ROTATE_90,
        7: way.TRANSVERSE,
        8: way.ROTATE_270,
    }
    seen = upright if orientation == 1 else upright.transpose(held[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    seen.save(buffer, "JPEG", quality=95, exif=exif)
    for size in (None, (24, 12)):
        array = decode(buffer.getvalue(), size=size)
        high, wide = array.shape[:2]
        assert (wide, high) == (size or (96, 48))
        assert [array[:, place].mean(axis=0).argmax() for place in (1, wide // 2, wide - 2)] == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_does_not_cost_the_picture() -> None:
    data = striped((9, 9), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert decode(data).shape == (9, 9, 3)


def test_a_large_jpeg_is_decoded_at_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[int, int]] = []
    convert = Image.Image.convert

    def watch(self: Image.Image, *arguments: Any, **options: Any) -> Image.Image:
        self.load()
        decoded.append(self.size)
        return convert(self, *arguments, **options)

    monkeypatch.setattr(Image.Image, "convert", watch)
    decode(striped((1600, 1200), "JPEG"), size=(200, 200), fit="crop")
    decode(striped((1600, 1200), "JPEG"), size=(200, 200), fit="pad")
    assert decoded == [(400, 300), (200, 150)]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_file_cut_off_is_bad_input(kind: str) -> None:
    data = file_of(size=(32, 32), kind=kind)
    for end in (1, 10, len(data) // 2):
        assert refused(data[:end]).field == "image"


def test_a_cut_off_file_says_so() -> None:
    data = file_of(size=(32, 32))
    assert refused(data[: len(data) // 2]).detail.startswith("the image is broken or cut off")


@pytest.mark.parametrize(
    "text", ["not base64!", "abcde", "=", "é", "ab=cd", "iVBO\nRw0KG", "data:image/png;base64,???"]
)
def test_bad_base64_is_named(text: str) -> None:
    error = refused(text)
    assert (error.code, error.field, error.detail) == ("bad_input", "image", "the image is not valid base64")


@pytest.mark.parametrize("data", ["", b"", "data:image/png;base64,", "data:nothing"])
def test_an_empty_image_is_named(data: Any) -> None:
    assert refused(data).detail == "the image is empty"


def test_another_kind_of_file_is_named() -> None:
    error = refused(b"%PDF-1.7 and so on")
    assert error.detail == "the image is not a PNG, JPEG, WebP, BMP or GIF"


def test_too_many_pixels_are_refused_from_the_header() -> None:
    error = refused(png_header(5000, 5000))
    assert error.detail == "the image has 5000 x 5000 pixels; at most 16000000 are taken"


def test_an_absurd_size_is_refused_from_the_header() -> None:
    assert (
        refused(png_header(2**31 - 1, 2**31 - 1)).detail == "the image is too large; at most 16000000 pixels are taken"
    )


def with_scans(count: int) -> bytes:
    """A progressive JPEG with its last scan written again and again."""
    data = striped((90, 30), "JPEG", progressive=True)
    more = count - data.count(b"\xff\xda")
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * more + b"\xff\xd9"


def test_a_jpeg_of_very_many_scans_is_refused_before_it_is_decoded() -> None:
    assert decode(with_scans(100)).shape == (30, 90, 3)
    assert refused(with_scans(101)).detail == "the image is a JPEG of more than 100 scans or 1000 parts; save it anew"


def test_scans_are_counted_past_a_comment_that_looks_like_the_end() -> None:
    data = with_scans(101)
    first = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)  # the second scan, or its table
    comment = b"\xff\xfe\x00\x04\xff\xd9"
    assert "100 scans" in refused(data[:first] + comment + data[first:]).detail


def test_what_follows_a_jpeg_is_not_counted_as_scans() -> None:
    film = b"\xff\xda and so on" * 200
    assert decode(striped((90, 30), "JPEG", progressive=True) + film).shape == (30, 90, 3)


@pytest.mark.parametrize("junk", [b"\xff\xfe\x00\x02" * 1000, b"\x00" * 2000, b"\xff" * 2000, b"\xff\xd0" * 2000])
def test_a_jpeg_with_an_endless_head_is_refused(junk: bytes) -> None:
    data = striped((90, 30), "JPEG")
    assert refused(data[:2] + b"\xff\xfe\x00\x02" + junk + data[2:]).field == "image"
    assert decode(data[:2] + b"\xff\xfe\x00\x02" + junk[:400] + data[2:]).shape == (30, 90, 3)


def test_a_run_length_bmp_is_refused() -> None:
    plain = file_of(3, mode="L", kind="BMP")
    coded = plain[:30] + struct.pack("<I", 1) + plain[34 : 54 + 1024] + b"\x06\x03\x00\x00" * 4 + b"\x00\x01"
    assert refused(coded).detail == "the image is a BMP with run-length compression; send it as PNG"
    assert decode(plain, mode="L").shape == (4, 6)


def test_the_limit_on_pixels_can_be_set_and_is_inclusive() -> None:
    data = file_of(size=(10, 10))
    assert decode(data, max_pixels=100).shape == (10, 10, 3)
    assert "10 x 10 pixels; at most 99" in refused(data, max_pixels=99).detail


def test_the_field_at_fault_can_be_named() -> None:
    assert refused(b"x", field="photo").field == "photo"
    assert refused("?", field=None).field is None


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"BM"]))
def test_no_bytes_raise_anything_but_bad_input(data: bytes, magic: bytes) -> None:
    with suppress(BadInput):
        decode(magic + data)


def test_a_form_around_a_picture_is_named() -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="ant.jpg"\r\n\r\n...\r\n--x--\r\n'
    with pytest.raises(BadInput, match="the body is a form; send the picture's bytes alone"):
        decode(form)
