"""Data files: in the folder that OWNPACE_DATA names, else in the user's cache, else downloaded and checked."""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ownpace.core.bounded_read import read_bounded
from ownpace.core.contract.errors import InputError

TIMEOUT_S = 30
MOST_BYTES = 1 << 30
"""Of a data file, unpacked: several times what the largest has."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataFiles:
    """Where the files of one data set come from and what they must hold."""

    folder: str
    """Below the data folder."""
    files: dict[str, str]
    """File name → SHA-256 of its contents (of the unpacked contents, for .gz files); empty: the archive is checked."""
    url: str
    """Each file's address is this and its name; or it is a .tar.gz that holds all of them."""
    licence: str
    archive_md5: str = ""
    """Of the archive as it comes, where its publisher gives no better."""

    @property
    def packed(self) -> bool:
        """Whether the files come in one archive."""
        return self.url.endswith(".tar.gz")


def user_cache() -> Path:
    """Where downloads go."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "ownpace"


def data_folder() -> Path | None:
    """The folder that OWNPACE_DATA names, if it is set."""
    named = os.environ.get("OWNPACE_DATA")
    return Path(named).expanduser() if named else None


def locate(source: DataFiles) -> Path:
    """The folder that holds the source's files, downloading them if they are nowhere.

    Raises:
        InputError: They are nowhere and cannot be downloaded, or the download is not what was expected.
    """
    named = data_folder()
    for root in filter(None, (named, user_cache())):
        folder = root / source.folder
        if all((folder / name).exists() for name in source.files):
            return folder
    if named is not None and not named.is_dir():
        raise InputError(f"OWNPACE_DATA is '{named}', which is not a folder; set it to one that holds {source.folder}/")
    folder = user_cache() / source.folder
    logger.warning("downloading %s (%s) from %s into %s", source.folder, source.licence, source.url, folder)
    try:
        _download(source, folder)
    except (OSError, tarfile.TarError) as error:  # URLError and time-outs are OSErrors
        looked = " and ".join(str(root / source.folder) for root in filter(None, (named, user_cache())))
        raise InputError(
            f"the data set {source.folder} is not in {looked}, and downloading it from {source.url} failed ({error}); "
            f"go online, or put {', '.join(source.files)} there, or set OWNPACE_DATA to a folder that holds them"
        ) from None
    return folder


def _download(source: DataFiles, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # Inside the folder: `replace` is one act only within one file system.
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        incoming = Path(temporary)
        if source.packed:
            _fetch_archive(source, incoming)
        else:
            for name in source.files:
                _fetch(source.url + name, incoming / name)
        # All are checked before the first is put in place: `locate` takes a folder with all names to be complete.
        for name, digest in source.files.items():
            if digest or not (incoming / name).exists():
                check(incoming / name, digest)
        for name in source.files:
            (incoming / name).replace(folder / name)


def _fetch_archive(source: DataFiles, folder: Path) -> None:
    """Fetch the files that are packed into one."""
    archive = folder / "archive.tar.gz"
    _fetch(source.url, archive)
    _check_archive(archive, source)
    with tarfile.open(archive) as content:
        for member in content.getmembers():
            # By its last part, into a folder of ours: no path in an archive can lead elsewhere.
            name = Path(member.name).name
            data = content.extractfile(member) if name in source.files else None
            if data is not None:
                (folder / name).write_bytes(data.read())


def _fetch(url: str, path: Path) -> None:
    try:
        opener = urllib.request.build_opener()  # not the shared one, which keeps the proxies of its first use
        with opener.open(url, timeout=TIMEOUT_S) as response, path.open("wb") as file:
            shutil.copyfileobj(response, file)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise


def _check_archive(archive: Path, source: DataFiles) -> None:
    """Raise if an archive is not the one that was published, where that is known."""
    if not source.archive_md5:
        return
    with archive.open("rb") as content:
        found = hashlib.file_digest(content, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    if found != source.archive_md5:
        raise InputError(
            f"{source.url} is damaged: its MD5 is {found}, not {source.archive_md5}; try again, or fetch it by hand"
        )


def check(path: Path, digest: str) -> None:
    """Raise if a file is missing or its (unpacked) contents are not those with this SHA-256."""
    if not path.exists():
        raise InputError(f"{path.name} did not come with the download; fetch the data by hand")
    # Of the unpacked contents: mirrors may pack the same data differently.
    found = hashlib.sha256(read_file(path)).hexdigest()
    if found != digest:
        raise InputError(
            f"{path.name} is damaged: its SHA-256 is {found}, not {digest}; try again, or fetch it by hand"
        )


def read_file(path: Path) -> bytes:
    """A file's contents, unpacked if it ends in .gz.

    Raises:
        InputError: It cannot be read or unpacked.
    """
    try:
        content = read_bounded(path, MOST_BYTES)
        if path.suffix != ".gz":
            return content
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            content = packed.read(MOST_BYTES + 1)  # a few bytes may unpack to more than there is memory
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        raise InputError(f"{path} cannot be read: {error}; fetch it again") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{path} unpacks to more than {MOST_BYTES:,} bytes; fetch it again")
    return content
