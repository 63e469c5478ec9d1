"""The wheel and the source distribution: one import package, the same content either way."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _build(kind: str, source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=300)
    return next(folder.glob("*.whl" if kind == "wheel" else "*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def _contents(wheel: Path) -> dict[str, int]:
    """Map the files of a wheel to their checksums, without the record of them."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            item.filename: item.CRC
            for item in archive.infolist()
            if not item.filename.endswith("/RECORD")
        }


def test_a_wheel_has_one_import_package(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in _contents(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ugpu"}


def test_a_wheel_has_each_module_of_the_checkout(wheel: Path) -> None:
    folders = [link.name for link in (ROOT / "ugpu").iterdir() if link.is_symlink()]
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, check=True, capture_output=True, text=True
    )
    wanted = {f"ugpu/{name}" for name in listed.stdout.split() if name.endswith((".py", ".txt"))}
    assert {name for name in wanted - set(_contents(wheel)) if "/tools/house/" not in name} == set()


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(_build("sdist", ROOT, tmp_path)) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert _contents(_build("wheel", source, tmp_path / "again")) == _contents(wheel)


def test_an_installed_wheel_works_beside_modules_of_the_same_names(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    for name in ("nv", "hcq", "compiler", "tools"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the user\\'s own module')\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r}); "
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import ugpu\n"
        "with ugpu.open('virtual:gh100') as gpu:\n"
        "    print(ugpu.Tensor([1.0, 2.0], device=gpu).sum().numpy(), ugpu.__file__)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["3.0", str(tmp_path / "installed" / "ugpu" / "__init__.py")]
