"""Regenerate the tables (`make regen`), or check that they were not edited (`make check`).

python -m ugpu.tools.clang2py                      fetch the sources, generate everything
python -m ugpu.tools.clang2py --kernel-src DIR     take an unpacked Linux 6.12 tree
python -m ugpu.tools.clang2py --nvidia-src DIR     take clones of NVIDIA's two repositories in DIR
python -m ugpu.tools.clang2py --mesa-src DIR       take an unpacked tree of Mesa
python -m ugpu.tools.clang2py --only nvidia        only those tables; or `linux`, `mesa`
python -m ugpu.tools.clang2py --check              compare the tables with their manifests
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

from ugpu.hcq.errors import UgpuError
from ugpu.tools.clang2py.adreno.catalogue import FOLDER as ADRENO_FOLDER
from ugpu.tools.clang2py.adreno.sources import mesa_tree
from ugpu.tools.clang2py.catalogue import PACKAGE, PLAN
from ugpu.tools.clang2py.manifest import complaints
from ugpu.tools.clang2py.nvidia.catalogue import FIRMWARE, FIRMWARE_FOLDER
from ugpu.tools.clang2py.nvidia.catalogue import FOLDER as NVIDIA_FOLDER
from ugpu.tools.clang2py.nvidia.sources import NvidiaSources
from ugpu.tools.clang2py.sources import debian_tree, given_tree

ROOT = Path(__file__).resolve().parents[2]
FIRMWARE_FOLDERS = tuple(f"{FIRMWARE_FOLDER}/{tag}" for tag in FIRMWARE)
FOLDERS = (*PLAN.folders, NVIDIA_FOLDER, *FIRMWARE_FOLDERS, ADRENO_FOLDER)


def check(root: Path) -> int:
    """Compare every generated file with its manifest; return 0 if all are as generated."""
    said = [line for folder in FOLDERS for line in complaints(root / folder)]
    for line in said:
        print(f"regen: {line}", file=sys.stderr)
    if not said:
        print(f"regen: tables in {', '.join(FOLDERS)} are as generated")
    return 1 if said else 0


def _linux(root: Path, kernel: Path | None, cache: Path) -> list[Path]:
    regen = importlib.import_module(f"{__package__}.regen")
    needed = PLAN.inputs()
    tree = given_tree(kernel, needed) if kernel else debian_tree(cache, PACKAGE, needed)
    changed: list[Path] = regen.write(tree, root)
    return changed


def _nvidia(root: Path, tree: Path | None, cache: Path) -> list[Path]:
    regen = importlib.import_module(f"{__package__}.nvidia.regen")
    changed: list[Path] = regen.write(NvidiaSources(cache, tree), root)
    return changed


def _mesa(root: Path, tree: Path | None, cache: Path) -> list[Path]:
    regen = importlib.import_module(f"{__package__}.adreno.regen")
    changed: list[Path] = regen.write(mesa_tree(cache, tree), root)
    return changed


def regenerate(options: argparse.Namespace) -> int:
    """Generate everything below the root and print the changes; return 0 on success."""
    begin = time.monotonic()
    changed: list[Path] = []
    try:
        # Only these modules need libclang, an optional package. So it is not imported at the top.
        if options.only in (None, "linux"):
            changed += _linux(options.root, options.kernel_src, options.cache)
        if options.only in (None, "nvidia"):
            changed += _nvidia(options.root, options.nvidia_src, options.cache)
        if options.only in (None, "mesa"):
            changed += _mesa(options.root, options.mesa_src, options.cache)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("clang"):
            raise
        print("regen: needs libclang: pip install 'libclang>=18,<19'", file=sys.stderr)
        return 2
    except UgpuError as error:
        print(f"regen: {error}", file=sys.stderr)
        return 2
    for path in changed:
        print(f"regen: changed {path.relative_to(options.root)}")
    if not changed:
        print("regen: no difference")
    print(f"regen: {time.monotonic() - begin:.1f} s")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return the exit code: 0, 1 (a table was edited) or 2 (cannot generate)."""
    parser = argparse.ArgumentParser(prog="python -m ugpu.tools.clang2py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--check", action="store_true", help="only compare with the manifests")
    parser.add_argument("--kernel-src", type=Path, metavar="DIR", help="an unpacked Linux tree")
    parser.add_argument("--nvidia-src", type=Path, metavar="DIR", help="a folder of clones")
    parser.add_argument("--mesa-src", type=Path, metavar="DIR", help="an unpacked tree of Mesa")
    parser.add_argument("--only", choices=("linux", "nvidia", "mesa"), help="only these tables")
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        default=ROOT / "build" / "clang2py",
        help="where downloads are kept",
    )
    parser.add_argument("--root", type=Path, metavar="DIR", default=ROOT, help="where to write")
    options = parser.parse_args(arguments)
    if options.check:
        return check(options.root)
    return regenerate(options)


if __name__ == "__main__":
    sys.exit(main())
