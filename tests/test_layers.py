"""The check of import rules sees each kind of breach; `make check` runs it on the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from ugpu.tools.house import layers, sizes


@pytest.mark.parametrize(
    ("file", "module", "broken"),
    [
        ("hcq/device/device.py", "ugpu.am.device.device", True),
        ("hcq/device/device.py", "ugpu.hcq.work.queue", False),
        ("hcq/find/registry.py", "ugpu.hcq.bare.space", True),
        ("am/units/gmc.py", "ugpu.hcq.bare.space", False),
        ("am/chips/facts.py", "ugpu.hcq.bare.vram", True),
        ("nv/gsp/boot.py", "ugpu.hcq.bare.space", False),
        ("nv/rm/memory.py", "ugpu.hcq.bare.space", True),
        ("qcom/work/queue.py", "ugpu.hcq.bare.chip", True),
        ("virtual/amd/chip.py", "ugpu.hcq.bare.vram", True),
        ("hcq/device/device.py", "ugpu.Tensor", True),
        ("hcq/work/queue.py", "ugpu.hcq.device.device", True),
        ("hcq/state/clock.py", "ugpu.hcq.errors", False),
        ("hcq/novel/file.py", "ugpu.hcq.errors", True),
        ("hcq/transport/pci/sysfs.py", "ugpu.hcq.transport.dma", False),
        ("hcq/transport/dma.py", "ugpu.hcq.transport.pci.sysfs", True),
        ("am/device/device.py", "ugpu.compiler", True),
        ("am/device/device.py", "ugpu.nv", True),
        ("am/device/device.py", "ugpu.virtual.amd.gpu", True),
        ("am/device/device.py", "ugpu.am.regs", False),
        ("am/units/gmc.py", "ugpu.am.work.queue", True),
        ("virtual/amd/firmware/psp.py", "ugpu.am.units.psp.psp", True),
        ("virtual/amd/firmware/psp.py", "ugpu.am.chips.navi31.facts", False),
        ("virtual/nvidia/chip.py", "ugpu.nv.chips.facts.ChipFacts", False),
        ("virtual/nvidia/chip.py", "ugpu.nv.abi", False),
        ("virtual/nvidia/chip.py", "ugpu.nv.device.device", True),
        ("virtual/usb/bridge.py", "ugpu.usbgpu.link.usb", False),
        ("virtual/usb/bridge.py", "ugpu.usbgpu.link.libusb", True),
        ("virtual/amd/firmware/psp.py", "ugpu.am.regs", False),
        ("virtual/amd/firmware/psp.py", "ugpu.hcq.errors", False),
        ("virtual/amd/firmware/psp.py", "ugpu.virtual.amd.chip", False),
        ("virtual/amd/isa/core.py", "ugpu.virtual.shader.text", False),
        ("virtual/shader/text.py", "ugpu.virtual.amd.isa.core", True),
        ("compiler/tensor.py", "ugpu.am.device.device", True),
        ("compiler/tensor.py", "ugpu.hcq.device.device", False),
        ("compiler/tensor.py", "ugpu.compiler.runtime.runtime", False),
        ("compiler/tensor.py", "ugpu.compiler.front.jit", True),
        ("compiler/runtime/runtime.py", "ugpu.compiler.search.tune", True),
        ("compiler/graph/along.py", "ugpu.compiler.pattern.cost", False),
        ("compiler/pattern/cost.py", "ugpu.compiler.graph.node", True),
        ("compiler/graph/node.py", "ugpu.compiler.Tensor", True),
        ("compiler/__init__.py", "ugpu.compiler.front.jit", False),
        ("compiler/novel.py", "ugpu.compiler.dtype", True),
        ("compiler/kernel/host/products/tiles.py", "ugpu.compiler.kernel.choices", False),
        ("compiler/kernel/host/products/tiles.py", "ugpu.compiler.kernel", False),
        ("compiler/kernel/host/products/tiles.py", "ugpu.compiler.kernel.gpu.tiles", True),
        ("compiler/kernel/choices.py", "ugpu.compiler.kernel.host.products.tiles", True),
        ("tools/cli.py", "ugpu.am.device.device", False),
        ("tools/cli.py", "ugpu.tools.base.console", False),
        ("tools/base/console.py", "ugpu.tools.cli", True),
        ("tools/cli.py", "hcq", True),
        ("am/device/device.py", "hcq.errors", True),
        ("am/device/device.py", "tests.support", True),
        ("am/device/device.py", "lab.bench", True),
        ("am/device/device.py", ".regs", True),
        ("ugpu/__init__.py", "ugpu.compiler", False),
        ("ugpu/__init__.py", "ugpu.am", True),
        ("hcq/device/device.py", "ugpu", True),
    ],
)
def test_each_rule_is_seen(file: str, module: str, broken: bool) -> None:
    item = layers.Import(Path(file), 1, module)
    assert (layers.fault_of(item) is not None) is broken


def test_imports_inside_functions_count(tmp_path: Path) -> None:
    late = "def f():\n    from ugpu.am.device import device\n"
    assert planted(tmp_path, hcq__state__sly=late) == [
        "hcq/state/sly.py:2: imports ugpu.am.device: hcq may not import am",
        "hcq/state/sly.py:2: imports ugpu.am.device.device: hcq may not import am",
    ]


def planted(root: Path, **files: str) -> list[str]:
    """The faults of a tree of empty packages and these files, `__` standing for a slash."""
    for package in layers.PACKAGES:
        (root / package).mkdir()
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return layers.check(root)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from ugpu.compiler.front.jit import jit\n", 1),
        ("def late():\n    from ugpu.compiler.front.jit import jit\n", 2),
        ("if TYPE_CHECKING:\n    from ugpu.compiler.front.jit import jit\n", 2),
    ],
)
def test_an_import_from_a_higher_floor_is_seen(tmp_path: Path, text: str, line: int) -> None:
    faults = planted(tmp_path, compiler__graph__node=text, compiler__front__jit="jit = 1\n")
    said = "compiler.front is not below compiler.graph"
    assert faults == [
        f"compiler/graph/node.py:{line}: imports ugpu.compiler.front.jit: {said}",
        f"compiler/graph/node.py:{line}: imports ugpu.compiler.front.jit.jit: {said}",
    ]


def test_a_part_does_not_name_its_owner_even_for_type_checkers(tmp_path: Path) -> None:
    owner = "if TYPE_CHECKING:\n    from ugpu.hcq.device.core import Core\n"
    faults = planted(tmp_path, hcq__work__queue=owner, hcq__device__core="class Core: ...\n")
    said = "hcq.device is not below hcq.work"
    assert faults == [
        f"hcq/work/queue.py:2: imports ugpu.hcq.device.core: {said}",
        f"hcq/work/queue.py:2: imports ugpu.hcq.device.core.Core: {said}",
    ]


def test_the_whole_of_a_package_is_not_imported_from_inside(tmp_path: Path) -> None:
    assert planted(tmp_path, compiler__graph__node="import ugpu.compiler\n") == [
        "compiler/graph/node.py:1: imports ugpu.compiler: "
        "imports the whole of compiler; name the module"
    ]


def test_the_name_of_a_folder_alone_is_refused(tmp_path: Path) -> None:
    assert planted(tmp_path, am__chip__one="import hcq\n") == [
        "am/chip/one.py:1: imports hcq: write ugpu.hcq; the folder's own name is not a package"
    ]


def test_a_circle_is_seen(tmp_path: Path) -> None:
    one, other = "from ugpu.hcq.state.two import b\n", "from ugpu.hcq.state import one\n"
    assert planted(tmp_path, hcq__state__one=one, hcq__state__two=other) == [
        "modules import each other: ugpu.hcq.state.one <- ugpu.hcq.state.two <- ugpu.hcq.state.one"
    ]


def test_a_circle_for_type_checkers_is_seen(tmp_path: Path) -> None:
    two = "if TYPE_CHECKING:\n    from ugpu.nv.rm.one import A\n"
    assert planted(tmp_path, nv__rm__one="from ugpu.nv.rm import two\n", nv__rm__two=two) == [
        "modules import each other: ugpu.nv.rm.one <- ugpu.nv.rm.two <- ugpu.nv.rm.one"
    ]


def test_an_import_of_nothing_is_seen(tmp_path: Path) -> None:
    one = "from ugpu.hcq.state.two import b\nimport ugpu.hcq.state.three\n"
    assert planted(tmp_path, hcq__state__one=one) == [
        "hcq/state/one.py:1: imports ugpu.hcq.state.two.b: there is no such module",
        "hcq/state/one.py:2: imports ugpu.hcq.state.three: there is no such module",
    ]


def test_a_unit_that_asks_how_the_host_reaches_it_is_seen(tmp_path: Path) -> None:
    asks = "def f(chip):\n    return {}\n"
    files = {
        "am__units__one": asks.format("chip.bus.messages"),
        "am__failure__two": asks.format("chip.transport.traits.staged"),
        "am__boot__three": asks.format("bus.runs and chip.interface.messages"),
        "am__boot__reach": asks.format("chip.transport.traits.bulk"),
        "am__device__four": asks.format("chip.bus.messages"),
    }
    faults = [line.partition(": units")[0] for line in planted(tmp_path, **files)]
    assert faults == [
        "am/boot/three.py:2: asks for bus.runs",
        "am/failure/two.py:2: asks for transport.traits",
        "am/units/one.py:2: asks for bus.messages",
    ]


def test_a_crowded_folder_is_seen(tmp_path: Path) -> None:
    files = {f"hcq__state__file{number}": "" for number in range(layers.FILES)}
    assert planted(tmp_path, **files) == []
    (tmp_path / "hcq/state/__init__.py").touch()
    assert layers.check(tmp_path) == []
    (tmp_path / "hcq/state/last.py").touch()
    assert layers.check(tmp_path) == ["hcq/state: 16 files, at most 15 in one folder"]


def test_a_long_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "hcq").mkdir()
    (tmp_path / "hcq" / "long.py").write_text("x = 1\n" * 501)
    (tmp_path / "hcq" / "table.py").write_text("# Generated from a header.\n" + "x = 1\n" * 600)
    reason = '"""A table.\n\nLonger than 500 lines: it is one list.\n"""\n'
    (tmp_path / "hcq" / "listed.py").write_text(reason + "x = 1\n" * 600)
    assert sizes.check(tmp_path) == ["hcq/long.py: 501 lines, at most 500"]
