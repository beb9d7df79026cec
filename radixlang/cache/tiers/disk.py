"""Pages as files: `--cache-dir`.

    <folder>/<model and layout>/<first byte of the key>/<key>        a header, then the page's bytes

A file is written under another name and then renamed, so that a reader sees all of it or nothing; what a crash or
a failing disk leaves behind is found by length and checksum. Any number of servers may share a folder: equal names
hold equal bytes, and a file that another server has deleted is one that is not there. Must not know requests.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from radixlang.cache.tiers.storage import (
    HEADER_BYTES,
    Buffer,
    DamagedEntry,
    StorageOptions,
    check_entry,
    header,
)
from radixlang.errors import ConfigError
from radixlang.log import get_logger

log = get_logger(__name__)

ENTRY = re.compile(r"[0-9a-f]{32}(\.[0-9a-f]+-\d+\.part)?")
"""names of our files; others in the folder are nobody's business here"""
LATER = 1000
"""nanoseconds by which a page counts as older than the one before it, without which it is worth nothing"""
NOTED = 10**9
"""nanoseconds in which two uses of a prefix are one: to note a use takes a system call for each of its pages"""
MOST_NOTED = 1 << 16
"""pages whose last noted use is remembered"""
LEFTOVER = 3600
"""seconds after which a file that was never renamed is nobody's any more"""
FUTURE = 3600 * 10**9
"""nanoseconds by which clocks of servers that share a folder may differ"""
ROOM = 0.9
"""share of the limit that remains when entries are deleted"""
LOOK = 0.05
"""after writing this share of the limit the folder is looked through again: others write there too"""
RETRY = 60.0
"""seconds in which nothing is written after a disk that was full, or a folder that is another user's"""
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
"""errors of writing that say nothing against reading"""
ABSENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""there is no entry, or none that this user may read: other servers of the folder may be other users'"""


class DiskStorage:
    """A `StorageTier` of files."""

    name = "file"

    def __init__(self, options: StorageOptions) -> None:
        self.check(options)
        assert options.folder is not None
        self._root = Path(options.folder).expanduser()
        self._identity = options.identity
        self._page_bytes = options.page_bytes
        self._limit = options.limit_bytes
        self._entry_bytes = HEADER_BYTES + options.page_bytes
        self._mine = self._root / options.identity[:16].hex()
        self._writer = secrets.token_hex(4)  # process ids repeat where containers share a folder
        self._numbers = count()
        self._lock = threading.Lock()
        self._total: int | None = None
        """bytes of all entries as far as we know, None before the first look"""
        self._since_look = 0
        self._noted: dict[bytes, int] = {}
        """when we last noted a use of these, or of a page behind them"""
        self._oldest = 0
        """last use of the entry that would be deleted next, or earlier"""
        self._unwritable_until = 0.0
        self._told_unwritable = False

    @staticmethod
    def check(options: StorageOptions) -> None:
        """Raises:
        ConfigError: the folder cannot be written to, or has no room for a page.
        """
        if not options.folder:
            raise ConfigError("--hicache-storage-backend file needs --cache-dir: the folder to keep pages in.")
        try:
            folder = Path(options.folder).expanduser()
        except RuntimeError:  # no such user, or one without a home
            raise ConfigError(f"--cache-dir {options.folder}: there is no such home; write it out.") from None
        probe = folder / f"probe-{os.getpid()}-{threading.get_ident()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            reason = "it is a file" if os.path.isfile(folder) else error.strerror
            raise ConfigError(
                f"--cache-dir {options.folder} cannot be written to: {reason}; name a folder in which this user "
                "may make files."
            ) from None
        entry = HEADER_BYTES + options.page_bytes
        if options.page_bytes and 0 < options.limit_bytes < entry:
            raise ConfigError(
                f"--cache-dir-size allows {options.limit_bytes:,} bytes, but one page of KV takes {entry:,}; "
                "raise it, or set 0 for no limit."
            )

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._mine / name[:2] / name

    def exists(self, keys: Sequence[bytes]) -> int:
        for found, key in enumerate(keys):
            try:
                if os.stat(self._path(key)).st_size != self._entry_bytes:
                    return found
            except ABSENT:
                return found
        return len(keys)

    def read(self, keys: Sequence[bytes], buffers: Sequence[Buffer]) -> int:
        good = len(keys)
        for index, (key, buffer) in enumerate(zip(keys, buffers, strict=True)):
            path = self._path(key)
            try:
                self._read(path, key, buffer)
            except ABSENT:
                good = min(good, index)
                break
            except DamagedEntry as error:
                # Those behind it are looked at all the same: where one is damaged others may be.
                log.warning("the cache entry %s is deleted: %s", path, error)
                _unlink(path)
                good = min(good, index)
        return good

    def _read(self, path: Path, key: bytes, buffer: Buffer) -> None:
        with open(path, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != self._entry_bytes:
                raise DamagedEntry("it has another length")
            head = file.read(HEADER_BYTES)
            got = 0
            while got < len(buffer):
                more = file.readinto(buffer[got:])
                if not more:
                    raise DamagedEntry("it ends too soon")
                got += more
        check_entry(head, key, self._identity, buffer)

    def _whole(self, path: Path, key: bytes) -> bool:
        """Whether the entry is what it should be; if not, it is about to be written anew."""
        try:
            self._read(path, key, memoryview(bytearray(self._page_bytes)))
        except (*ABSENT, DamagedEntry):
            return False
        return True

    def write(self, keys: Sequence[bytes], buffers: Sequence[Buffer], behind: Sequence[bytes] = ()) -> int:
        written, since = 0, self._use(behind)
        for index, (key, buffer) in enumerate(zip(keys, buffers, strict=True), len(behind)):
            path, used = self._path(key), since - LATER * index
            # Whoever computed the page may have had to because of what is there: existing is not enough.
            if self.exists([key]) and self._whole(path, key):
                _note_use(path, used)
                self._noted[key] = since
                continue
            if time.monotonic() < self._unwritable_until or not self._make_room(used):
                break
            try:
                self._write(path, key, buffer, used)
            except IsADirectoryError:
                continue  # somebody's folder has the entry's name: this page alone is not kept
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                self._note_unwritable(error)
                break
            written += 1
            with self._lock:
                self._total = (self._total or 0) + self._entry_bytes
                self._since_look += self._entry_bytes
                self._oldest = min(self._oldest, used)
            self._noted[key] = since
        return written

    def _use(self, prefix: Sequence[bytes]) -> int:
        """Note that all of these are used. → the time of use that the first page has now, for those that follow"""
        now = time.time_ns()
        since = min((self._noted.get(key, 0) for key in prefix), default=now)
        if abs(now - since) < NOTED:
            return since
        if len(self._noted) > MOST_NOTED:
            self._noted.clear()
        self._noted |= dict.fromkeys(prefix, now)
        for index, key in enumerate(prefix):
            name = key.hex()
            _note_use(f"{self._mine}/{name[:2]}/{name}", now - LATER * index)
        return now

    def _write(self, path: Path, key: bytes, buffer: Buffer, used: int) -> None:
        part = path.with_name(f"{path.name}.{self._writer}-{next(self._numbers)}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "wb", buffering=0) as file:
                for piece in (memoryview(header(key, self._identity, buffer)), buffer):
                    while piece:
                        piece = piece[file.write(piece) :]
            _note_use(part, used)
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def _note_unwritable(self, error: OSError) -> None:
        self._unwritable_until = time.monotonic() + RETRY
        if not self._told_unwritable:
            self._told_unwritable = True
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            log.warning(
                "%s: nothing is written there for a while, and tried again each minute: %s%s. %s",
                self._root,
                "the disk is full, " if full else "",
                error,
                "Free space, or set --cache-dir-size." if full else "Give this user the right to write there.",
            )

    # ---- the limit ----

    def _make_room(self, used: int) -> bool:
        """Delete what was used least recently, and before `used`, until another entry fits. → whether it does

        What comes before a page in its prefix was used after it (`LATER`): nothing gives way to its own end.
        """
        if not self._limit:
            return True
        with self._lock:
            unknown = self._total is None or self._since_look > LOOK * self._limit
            if not unknown and (self._total or 0) + self._entry_bytes <= self._limit:
                return True
            if not unknown and used <= self._oldest:
                return False  # without a look for each page of a prompt that is larger than the folder
            entries = deque(sorted(self._entries()))
            total = sum(size for _, size, _ in entries)
            most = ROOM * self._limit if total + self._entry_bytes > self._limit else self._limit
            while entries and entries[0][0] < used and total + self._entry_bytes > most:
                _, size, path = entries.popleft()
                _unlink(path)
                total -= size
            self._total, self._since_look = total, 0
            self._oldest = entries[0][0] if entries else used
            return total + self._entry_bytes <= self._limit

    def _entries(self) -> Iterator[tuple[int, int, str]]:
        """(last use, bytes, path) of all models' entries; leftovers of crashed writers are removed."""
        future = time.time_ns() + FUTURE
        for model in _folders(self._root):
            for first in _folders(model):
                for entry in _scan(first):
                    try:
                        state = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue  # another server was faster
                    match = ENTRY.fullmatch(entry.name)
                    if match is None:
                        continue
                    if match[1] is not None and time.time() - state.st_mtime > LEFTOVER:
                        _unlink(entry.path)
                        continue
                    # What no clock of a server can have written would otherwise be there for ever.
                    at = state.st_mtime_ns if state.st_mtime_ns < future else 0
                    yield at, state.st_size, entry.path

    def close(self) -> None:
        """Nothing is open."""


def _scan(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _folders(folder: str | Path) -> list[str]:
    return [entry.path for entry in _scan(folder) if entry.is_dir(follow_symlinks=False)]


def _note_use(path: str | Path, at: int) -> None:
    """For the order in which entries are deleted: file systems may not note accesses, and have coarse clocks."""
    with suppress(OSError):  # deleted meanwhile, or another user's
        os.utime(path, ns=(at, at))


def _unlink(path: str | Path) -> None:
    with suppress(OSError):  # gone already, or not ours to delete
        os.unlink(path)
