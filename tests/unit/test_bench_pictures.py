from __future__ import annotations

import base64
import io
import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image

from app.load.picture_server import served
from app.load.pictures import DataUrls, Picture, make_pictures

SIZE = (96, 64)


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(2, SIZE, 4000, seed=1)


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def get(url: str, *, span: str | None = None, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    headers = {"range": f"bytes={span}"} if span else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method)) as answer:
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.headers.items()}


def test_pictures_have_the_size_and_about_the_weight(pictures):
    for picture in pictures:
        data = picture.file(0)
        assert Image.open(io.BytesIO(data)).size == SIZE
        assert 0.7 * 4000 < len(data) < 1.4 * 4000


def test_the_picture_of_the_profiles_has_the_weight_of_a_photograph():
    (picture,) = make_pictures(1, (1024, 768), 323_000, seed=1)
    assert abs(sum(map(len, DataUrls([picture]).url(0))) - 431_000) < 25_000


def test_derived_pictures_differ_in_pixels_as_in_bytes(pictures):
    files = [pictures[0].file(number) for number in (0, 1, 16, 2**40 - 1)]
    assert len(set(files)) == 4
    shown = {pixels(data).tobytes() for data in files}
    assert len(shown) == 4


def test_a_data_url_is_the_file(pictures):
    for number in (0, 1, 77):
        kind, _, data = b"".join(DataUrls(pictures).url(number)).partition(b",")
        assert kind == b"data:image/jpeg;base64"
        assert base64.b64decode(data) == pictures[number % 2].file(number)


def test_the_image_server_serves_whole_files_and_ranges(pictures):
    with served(pictures, "127.0.0.1") as (port, pid):
        root, file = f"http://127.0.0.1:{port}/run", pictures[1].file(5)
        assert pid > 0
        assert get(f"{root}/5.jpg")[:2] == (200, file)
        for span, part in (("0-99", file[:100]), ("50-", file[50:]), ("200-299", file[200:300])):
            status, data, headers = get(f"{root}/5.jpg", span=span)
            assert (status, data) == (206, part)
            assert headers["content-range"].endswith(f"/{len(file)}")
        assert get(f"{root}/5.jpg?signature=x", method="HEAD")[2]["content-length"] == str(len(file))
        for path, span, status in (("x.png", None, 404), ("5.jpg", "999999-", 416)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(f"{root}/{path}", span=span)
            assert refused.value.code == status
            refused.value.close()
