"""The firmware's image in host memory, as a table of pages with three levels.

Level 0 is one page with the address of the pages of level 1, and so on; level 2 names the image's
pages. Source: open-gpu-kernel-modules 570.144 kernel_gsp.c, kgspCreateRadix3.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

from ugpu.hcq.errors import BadArgument

PAGE = 4096
_ENTRIES = PAGE // 8
MOST_PAGES = _ENTRIES**3


def level_pages(image_size: int) -> tuple[int, int, int, int]:
    """Return how many pages each level has, and the image."""
    image = -(-image_size // PAGE)
    if not 0 < image <= MOST_PAGES:
        raise BadArgument("the image must have 1 to 2^27 pages", size=image_size)
    last = -(-image // _ENTRIES)
    middle = -(-last // _ENTRIES)
    return 1, middle, last, image


def tables(image_size: int, pages: Sequence[int]) -> bytes:
    """Return the content of the tables' pages. pages: addresses of all pages, the tables' first,
    then the image's."""
    counts = level_pages(image_size)
    if len(pages) < sum(counts):
        raise BadArgument("too few pages", have=len(pages), need=sum(counts))
    out = bytearray()
    start = 0
    for count, below in itertools.pairwise(counts):
        start += count
        entries = struct.pack(f"<{below}Q", *pages[start : start + below])
        out += entries.ljust(count * PAGE, b"\0")
    return bytes(out)
