"""Where data is looked for, and downloads."""

from __future__ import annotations

import hashlib
import http.server
import tarfile
import threading
from dataclasses import replace
from functools import partial

import pytest

from ownpace.core.contract.errors import InputError
from ownpace.tasks.files import DataFiles, locate


@pytest.fixture
def served(tmp_path):
    """A folder and the address at which its files can be downloaded."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def source(url: str, content: bytes) -> DataFiles:
    return DataFiles("things", {"a.bin": hashlib.sha256(content).hexdigest()}, url, "MIT")


def test_downloads_are_checked_and_kept(served, caplog):
    folder, url = served
    (folder / "a.bin").write_bytes(b"good")
    found = locate(source(url, b"good"))
    assert (found / "a.bin").read_bytes() == b"good"
    assert "downloading things (MIT)" in caplog.text
    caplog.clear()
    (folder / "a.bin").unlink()
    assert locate(source(url, b"good")) == found
    assert caplog.text == ""


def test_a_damaged_download_leaves_nothing_behind(served, tmp_path):
    folder, url = served
    (folder / "a.bin").write_bytes(b"bad")
    with pytest.raises(InputError, match=r"a\.bin is damaged"):
        locate(source(url, b"good"))
    assert not list((tmp_path / "cache").rglob("a.bin"))


def test_archives_are_unpacked(served):
    folder, url = served
    inner = folder / "a.bin"
    inner.write_bytes(b"good")
    with tarfile.open(folder / "all.tar.gz", "w:gz") as archive:
        archive.add(inner, "some/folder/a.bin")
    packed = replace(source(url, b"good"), url=url + "all.tar.gz")
    assert (locate(packed) / "a.bin").read_bytes() == b"good"


def test_an_archive_is_checked_as_it_comes(served, tmp_path):
    folder, url = served
    inner = folder / "a.bin"
    inner.write_bytes(b"good")
    with tarfile.open(folder / "all.tar.gz", "w:gz") as archive:
        archive.add(inner, "some/folder/a.bin")
    digest = hashlib.md5((folder / "all.tar.gz").read_bytes()).hexdigest()
    packed = DataFiles("things", {"a.bin": ""}, url + "all.tar.gz", "MIT", archive_md5="0" * 32)
    with pytest.raises(InputError, match=rf"its MD5 is {digest}, not 0000"):
        locate(packed)
    assert not list((tmp_path / "cache").rglob("a.bin"))
    assert (locate(replace(packed, archive_md5=digest)) / "a.bin").read_bytes() == b"good"
    with pytest.raises(InputError, match=r"b\.bin did not come with the download"):
        locate(replace(packed, archive_md5=digest, files={"a.bin": "", "b.bin": ""}))


def test_offline_says_where_it_looked_and_what_to_do(served):
    _, url = served  # nothing is served
    with pytest.raises(InputError) as caught:
        locate(source(url, b"good"))
    message = str(caught.value)
    assert "things is not in" in message
    assert "set OWNPACE_DATA" in message
    assert "\n" not in message
