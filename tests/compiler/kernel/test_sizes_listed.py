"""Every number in the compiler's rules is listed: in a table of sizes, with the tests that cross
it, or as a number that no size is compared with.

A new constant in these folders fails here until it has a place.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.compiler.kernel.gpu.test_sizes_gpu import RULES as GPU
from tests.compiler.kernel.host.test_sizes_host import NARROW
from tests.compiler.kernel.host.test_sizes_host import RULES as HOST

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("graph", "kernel", "methods", "pattern", "plan", "schedule")
RULES = (*HOST, *NARROW, *GPU)

# module: constants, the test file that crosses them
ELSEWHERE = {
    "graph.along": ("ONCE NEAR BEHIND", "test_compiler_quicksort.py"),
    "graph.attention": ("KEYS LANES UNIT", "test_gradients_attention.py"),
    "kernel.attention.gradients": ("VECTORS", "test_gradients_attention.py"),
    "kernel.attention.gpu": (
        "TILE_WORDS STAGED_WORDS WAVES WORTH PART_BYTES PART_KEYS",
        "test_attention_parts.py",
    ),
    "kernel.attention.matrix": ("TURNED KEPT STORED", "test_gpu_attention.py"),
    "kernel.gpu.join": ("READ", "test_gpu_rows.py"),
    "kernel.host.place": ("ABREAST STEPS WIDEST JOIN", "test_host_place.py"),
    "kernel.host.online": ("BLOCK BLOCKS", "test_host_online.py"),
    "kernel.host.fourier.lower": ("INNER", "test_fourier.py"),
    "kernel.host.fourier.turns": ("LONGEST RADICES", "test_fourier.py"),
    "kernel.host.sorting.values": ("CHUNK LINE", "test_compiler_sorting.py"),
    "kernel.host.sorting.network": (
        "REGISTERS FEWER DEEPEST PLACE LANES",
        "test_compiler_sorting.py",
    ),
    "kernel.host.sorting.digits": ("DIGIT WIDE LONG", "test_compiler_sorting.py"),
    "kernel.host.sorting.quicksort": (
        "PIECE WAITING STEPS SAMPLES LIMIT MORE",
        "test_compiler_quicksort.py",
    ),
    "kernel.host.windows": ("GROUPS MOST BESIDE", "test_host_windows.py"),
    "kernel.host.products.along": ("VECTORS ABREAST", "test_host_dots.py"),
    "kernel.host.products.sides": ("NARROW", "test_compiler_products.py"),
    "kernel.host.products.results": ("LONGEST", "test_compiler_products.py"),
    "kernel.host.products.tiles": ("FEW ONCE HIDING FORESEEN", "test_host_rates.py"),
    "kernel.host.rare": ("CHEAP", "test_host_rare.py"),
    "kernel.host.sections": ("LONG MOST", "test_host_sections.py"),
    "kernel.host.products.amx": (
        "HEIGHT VECTORS SLICE ONCE LEAST FEWEST SHORTEST UPPER",
        "test_compiler_amx.py",
    ),
    "kernel.host.products.winograd": ("WINDOWS AROUND LEAST", "test_compiler_winograd.py"),
    "kernel.nvidia.packed": ("BLOCK WIDEST LINE CHUNK", "test_gpu_bulk.py"),
    "kernel.nvidia.bulk": ("BANDS", "test_gpu_bulk.py"),
    "kernel.nvidia.slices": ("CHUNK TURNED WORD", "test_gpu_ring.py"),
    "kernel.nvidia.totals": ("JOINED RUN PAIR", "test_gpu_ring.py"),
    "kernel.nvidia.ring": ("MOST_TOTALS REGISTERS BESIDE_TOTALS", "test_gpu_ring.py"),
    "kernel.gpu.tiles": ("LAUNCH CLOSE REGISTERS OTHERS RESIDENT", "test_gpu_tiles.py"),
    "kernel.shared.ragged": ("NARROW", "test_compiler_huge.py"),
    "schedule.group": ("ALIGN", "test_runs_of_rows.py"),
    "schedule.counted": ("FEWEST FEWEST_GPU LEAST PIECE PIECE_GPU", "test_compiler_counted.py"),
    "schedule.siblings": ("MOST", "test_compiler_siblings.py"),
    "schedule.split": ("MOST EVEN", "test_host_online.py"),
    "methods.winograd": ("WINDOWS AROUND", "test_compiler_winograd.py"),
    "methods.order.sorting": ("BITS BLOCK ROUND LONGEST LANES", "test_compiler_sorting.py"),
    "methods.shape.resampling": ("FINEST FILLED ORDERED TERMS", "test_compiler_resampling.py"),
    "pattern.cost": (
        "MEMORY NEAR HELD KERNEL PARALLEL CHOICE TILES_MOST TILES_GAIN REDUCE",
        "test_compiler_chain.py",
    ),
    "plan.layout": ("ALIGN", "test_layout.py"),
    "plan.packing": ("PER_BYTE PER_KERNEL FETCHING THROUGH_REGISTERS", "test_packing.py"),
    "plan.repeats": ("KEPT SHORTEST TRIES FAR MANY", "test_compiler_repeats.py"),
    "graph.recipe": ("DEEPEST LONG MOST", "test_compiler_recipes.py"),
    "graph.series": ("HELD_FROM", "test_held_numbers.py"),
}
# module: constants that are facts, formats, weights of a cost model, or the limits of caches
NO_SIZES = {
    "graph.along": "_IDENTITY",
    "graph.origin": "_OURS",
    "graph.series": "KEPT",
    "methods.shape.resampling": "LINEAR",
    "schedule.precedence": "_OLD _NEW",
    "kernel.attention.running": "ZERO",
    "kernel.gpu.dots": "PADDING",
    "kernel.gpu.tiles": "PADDING UNROLL SIMDS BANKS COPY LATENCY",
    "kernel.host.nest": "LONG UNROLLED",
    "kernel.host.products.grouped": "LANES OFFSET",
    "kernel.host.products.rates": (
        "BEGIN WIDEST SPARE L3_BYTES ZEN4 TILED FULL MESH HALF NEON WIDE_NEON ROW"
    ),
    "kernel.host.fourier.turns": "PASS",
    "kernel.host.sorting.places": "LOW",
    "kernel.host.sorting.selection": "ZERO NUMBERS",
    "kernel.host.sorting.keys": "SOME TOTAL WHOLE WHOLE_BITS",
    "kernel.host.sorting.quicksort": "ZERO NUMBERS LEFT",
    "kernel.host.products.packing": "AHEAD",
    "kernel.host.products.tiles": "HIDDEN UNEVEN DOTS LEFT",
    "kernel.ir": "TILES TILE_ROWS TILE_BYTES",
    "kernel.matrix_units": (
        "_GFX11 _GFX12 _GFX942 _GFX950 _SM80 _TF32 _AMPERE _ADA ROW CORE MATRICES _WGMMA"
    ),
    "kernel.nvidia.bulk": "SIGNALS",
    "kernel.nvidia.ring": "WAVE",
    "kernel.shared.ragged": "ROW COLUMN",
    "kernel.verify": "GROUP EVERY GROUPS SOME",
    "schedule.counted": "WAVES DEEPEST LARGEST",
    "schedule.fusion": "KNOWN",
    "schedule.siblings": "KNOWN",
    "plan.attention": "KNOWN",
    "methods.core": "RECIPES",
    "kernel.host.online": "ZERO BEFORE LARGEST PART",
    "kernel.host.place": "ZERO",
    "kernel.host.rare": "FLAG",
    "methods.derived.special": "LARGEST ERFC",
    "methods.functions": "SELU_ALPHA SELU_SCALE",
    "methods.losses": "IGNORED LOWEST_LOG",
    "methods.order.sorting": "LOW",
    "methods.winograd": "TOLERANCE POINTS SCALES _IMAGE",
    "pattern.cost": "WINDOWS_EACH TILES_EACH TILES_IMAGE TILES_RESULT TILES_WEIGHT",
    "pattern.online": "FINITE_LOWEST",
}


def numbers(path: Path) -> set[str]:
    """Return the constants of a module whose values have numbers in them."""
    found = set()
    for statement in ast.parse(path.read_text("utf-8")).body:
        if not isinstance(statement, ast.Assign):
            continue
        inside = (node for node in ast.walk(statement.value) if isinstance(node, ast.Constant))
        if not any(type(node.value) in (int, float) for node in inside):
            continue
        for target in statement.targets:
            names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
            found |= {name for name in names if name.isupper()}
    return found


def listed(module: str) -> set[str]:
    words = [rule.limits for rule in RULES if rule.module == module]
    words += [ELSEWHERE.get(module, ("", ""))[0], NO_SIZES.get(module, "")]
    return {word.strip(",") for text in words for word in text.split() if word.strip(",").isupper()}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_number_is_listed(folder: str) -> None:
    missing, gone = [], []
    for path in sorted((ROOT / "compiler" / folder).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "compiler").with_suffix("").parts)
        missing += [f"{module}.{name}" for name in sorted(numbers(path) - listed(module))]
        gone += [f"{module}.{name}" for name in sorted(listed(module) - numbers(path))]
    assert not missing, f"constants without a test of their size, or a reason: {missing}"
    assert not gone, f"listed constants that the module does not have: {gone}"


def test_the_files_that_cross_others_are_there() -> None:
    files = {file for _, file in ELSEWHERE.values()}
    assert files <= {path.name for path in (ROOT / "tests" / "compiler").rglob("*.py")}
