"""turnip, a Vulkan loader, a client and ncnn: made below a cache, from packages and this folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.kernel import packages
from lab.kernel.machine import LabUnavailable

HERE = Path(__file__).parent
CLIENT, PRELOAD = HERE / "client.c", HERE / "preload.c"
SHADERS = (HERE / "scale.comp", HERE / "image.comp")  # as the client takes them
NETWORK = HERE / "network.py"
SUITE = "bookworm"
TOOLS = (
    "bison", "flex", "m4", "glslang-tools", "libvulkan1", "libvulkan-dev",
)  # fmt: skip
# What Mesa's tools for Adreno are linked to, with all beneath it but the C library.
DECODER = (
    "libarchive-dev", "libarchive13", "liblua5.4-dev", "liblua5.4-0", "libxml2-dev", "libxml2",
    "libicu72", "libacl1", "libbz2-1.0", "liblz4-1", "liblzma5", "libnettle8", "libzstd1",
    "zlib1g", "zlib1g-dev", "pkgconf-bin", "libpkgconf3",
)  # fmt: skip
SOURCE = "mesa-25.0.7"
ORIGIN = "http://deb.debian.org/debian/pool/main/m/mesa/mesa_25.0.7.orig.tar.xz"
DIGEST = "592272df3cf01e85e7db300c449df5061092574d099da275d19e97ef0510f8a6"
NCNN = "ncnn==1.0.20261020"
_DRIVER = "build/src/freedreno/vulkan/libvulkan_freedreno.so"
_CFFDUMP, _REPLAY = (f"build/src/freedreno/decode/{name}" for name in ("cffdump", "replay"))
_MANIFEST = "build/src/freedreno/vulkan/freedreno_devenv_icd.x86_64.json"
_LIMIT_S = 1800.0  # TIMEOUT: 6 minutes on two busy cores
_OFF = (
    "gallium-drivers=", "platforms=", "glx=disabled", "egl=disabled", "gbm=disabled",
    "opengl=false", "gles1=disabled", "gles2=disabled", "llvm=disabled", "shared-glapi=disabled",
    "zstd=disabled", "xmlconfig=disabled", "valgrind=disabled", "libunwind=disabled",
    "video-codecs=", "build-tests=false",
)  # fmt: skip


@dataclass(frozen=True)
class Turnip:
    """What is built. manifest: for VK_DRIVER_FILES; libraries: the folder of the loader and of what
    the tools need; cffdump, replay: freedreno's tools; ncnn: the Python that has it."""

    manifest: Path
    libraries: Path
    preload: Path
    client: Path
    shaders: tuple[Path, ...]
    cffdump: Path
    replay: Path
    ncnn: Path


def ensure(cache: Path) -> Turnip:
    """Build what is not there yet. LabUnavailable, or a failed command, where that cannot be."""
    for program in ("gcc", "g++", "apt-get", "dpkg-deb", "tar", "curl"):
        if shutil.which(program) is None:
            raise LabUnavailable(f"{program} is missing")
    cache.mkdir(parents=True, exist_ok=True)
    root, venv = cache / "root", cache / "venv"
    if not all((root / f"usr/bin/{name}").exists() for name in ("glslangValidator", "pkgconf")):
        packages.unpack(TOOLS + DECODER, root, cache / "packages", (SUITE,))
    if not all((cache / name).exists() for name in (_DRIVER, _CFFDUMP, _REPLAY)):
        _build_driver(cache, root, venv)
    libraries = root / "usr/lib/x86_64-linux-gnu"
    preload, client = cache / "preload.so", cache / "client"
    _run("gcc", "-O1", "-shared", "-fPIC", "-o", str(preload), str(PRELOAD))
    _run("gcc", "-O1", f"-I{root}/usr/include", "-o", str(client), str(CLIENT),
         f"-L{libraries}", "-lvulkan", "-lpthread")  # fmt: skip
    shaders = tuple(cache / shader.with_suffix(".spv").name for shader in SHADERS)
    for shader, made in zip(SHADERS, shaders, strict=True):
        _run(str(root / "usr/bin/glslangValidator"), "-V", str(shader), "-o", str(made))
    ncnn = cache / "ncnn"
    if not (ncnn / "complete").exists():
        _run(sys.executable, "-m", "venv", "--clear", str(ncnn))
        _run(str(ncnn / "bin/python"), "-m", "pip", "install", "-q", NCNN, "numpy")
        (ncnn / "complete").touch()
    return Turnip(
        cache / _MANIFEST, libraries, preload, client, shaders, cache / _CFFDUMP, cache / _REPLAY,
        ncnn / "bin/python",
    )  # fmt: skip


def _build_driver(cache: Path, root: Path, venv: Path) -> None:
    archive = cache / "mesa.tar.xz"
    if not (cache / "src" / SOURCE).exists():
        _run("curl", "-fsSL", "-o", str(archive), ORIGIN)
        _run("sh", "-c", f"echo '{DIGEST}  {archive}' | sha256sum -c -")
        (cache / "src").mkdir(exist_ok=True)
        _run("tar", "-xf", str(archive), "-C", str(cache / "src"))
    if not (venv / "bin/meson").exists():
        _run(sys.executable, "-m", "venv", str(venv))
        _run(str(venv / "bin/python"), "-m", "pip", "install", "-q",
             "meson", "ninja", "mako", "pyyaml", "packaging")  # fmt: skip
    libraries = root / "usr/lib/x86_64-linux-gnu"
    environment = {
        "PATH": f"{venv}/bin:{root}/usr/bin:/usr/bin:/bin",
        "BISON_PKGDATADIR": f"{root}/usr/share/bison",
        "M4": f"{root}/usr/bin/m4",
        "CPATH": f"{root}/usr/include/x86_64-linux-gnu",  # of Lua
        "PKG_CONFIG": f"{root}/usr/bin/pkgconf",
        "PKG_CONFIG_LIBDIR": f"{libraries}/pkgconfig",
        "PKG_CONFIG_SYSROOT_DIR": str(root),
        "LD_LIBRARY_PATH": f"{libraries}:{root}/lib/x86_64-linux-gnu",
    }
    build = str(cache / "build")
    shutil.rmtree(build, ignore_errors=True)  # one that was cut off, or had other options
    _run("meson", "setup", build, str(cache / "src" / SOURCE), "--wrap-mode=nofallback",
         "--buildtype=debugoptimized", "-Db_ndebug=false", "-Doptimization=1",
         "-Dvulkan-drivers=freedreno", "-Dfreedreno-kmds=kgsl", "-Dtools=freedreno",
         *(f"-D{off}" for off in _OFF), environment=environment)  # fmt: skip
    made = (name.removeprefix("build/") for name in (_DRIVER, _MANIFEST, _CFFDUMP, _REPLAY))
    _run("nice", "ninja", "-C", build, "-j2", *made, environment=environment)


def _run(*command: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise LabUnavailable(f"{command[0]} failed: {' '.join(last)}")
