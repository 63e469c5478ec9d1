"""Headers of DRF macros: what belongs to which, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.errors import UsageError
from ugpu.tools.clang2py.nvidia.drf import (
    DrfError,
    counts,
    group_text,
    merged,
    read_descriptor,
    read_methods,
    sized,
)

METHODS = """\
#define TOY_CLASS_A 0x1234
#define NVTOY_SET_OBJECT                0x0000
#define NVTOY_SET_OBJECT_CLASS_ID         15:0
#define NVTOY_LAUNCH                  (0x00000300) // of a copy
#define NVTOY_LAUNCH_MODE                  1:0
#define NVTOY_LAUNCH_MODE_FAST        (0x00000000)
#define NVTOY_LAUNCH_MODE_SLOW         0x00000001
#define NVTOY_LAUNCH_END              (0x00000304)
#define NVTOY_LAUNCH_END_V                31:0
#define NVTOY_DATA(i)              (0x0400+(i)*8)
#define NVTOY_DATA_V                      31:0
#define NVTOY_OTHER_STRAY_VALUE         0x00000007
#define NVTOY_NUMBER_OF_THINGS               (8)
#define NVTOY_ENTRY__SIZE                      8
#define NVTOY_ENTRY0_GET                    31:2
#define NVTOY_ENTRY0_GET_NONE         0x00000000
"""


def test_methods_fields_and_values_find_their_owner() -> None:
    found = read_methods(METHODS, "NVTOY_", ("ENTRY0",))
    assert list(found) == ["ENTRY0", "SET_OBJECT", "LAUNCH", "LAUNCH_END", "DATA"]
    assert found["LAUNCH"].offset == 0x300
    assert found["LAUNCH"].fields["MODE"].values == {"FAST": 0, "SLOW": 1}
    assert (found["DATA"].offset, found["DATA"].stride) == (0x400, 8)
    assert found["ENTRY0"].offset is None
    assert group_text("LAUNCH", found["LAUNCH"]) == "LAUNCH 0x300 MODE:0:2=FAST:0x0,SLOW:0x1"
    assert group_text("DATA", found["DATA"]) == "DATA 0x400+8 V:0:32"


@pytest.mark.parametrize(
    "text",
    [
        "/*\n#define NVTOY_LAUNCH_MODE_STALE 2\n*/\n",
        "#if 0\n#define NVTOY_LAUNCH_MODE_STALE 2\n#endif\n",
    ],
)
def test_what_a_compiler_would_not_read_is_no_value(text: str) -> None:
    place = METHODS.index("#define NVTOY_LAUNCH_END ")
    found = read_methods(METHODS[:place] + text + METHODS[place:], "NVTOY_", ("ENTRY0",))
    assert found == read_methods(METHODS, "NVTOY_", ("ENTRY0",))


def test_a_name_with_two_meanings_stops() -> None:
    with pytest.raises(UsageError, match="NVTOY_LAUNCH_MODE is both '1:0' and '2:0'"):
        read_methods(METHODS + "#define NVTOY_LAUNCH_MODE 2:0\n", "NVTOY_")


DESCRIPTOR = """\
#define BOX_A              MW(7:0)
#define BOX_B(i)           MW((10+(i)*16):(8+(i)*16))
#define BOX_B_ON           0x1
#define BOX_C(i)           MW((11+(i)*16):(11+(i)*16))
#define BOX_D              (1*32+31):(1*32+24)
#define BOX__SIZE          8
#define BOX_D_SHIFT        0x4
"""


def test_descriptors_count_their_arrays() -> None:
    group = sized(read_descriptor(DESCRIPTOR, "BOX_"), 8)
    assert counts(group, {}) == {"B": 3, "C": 3}
    text = group_text("BOX", group, {"B": 2})
    assert text == "BOX :8 A:0:8 B:8:3+16*2=ON:0x1 C:11:1+16*3 D:56:8"


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(DrfError):
        read_descriptor("#define BOX_A 0:7\n", "BOX_")
    with pytest.raises(DrfError):
        read_descriptor("#define OTHER 1\n", "BOX_")
    with pytest.raises(DrfError):
        sized(read_descriptor("#define BOX_A 71:64\n", "BOX_"), 8)
    with pytest.raises(DrfError):
        group_text("BOX", sized(read_descriptor(DESCRIPTOR, "BOX_"), 8), {"B": 9})


def test_an_excerpt_lies_upon_its_predecessor() -> None:
    older = read_methods(METHODS, "NVTOY_")
    newer = read_methods(
        "#define NVNEW_LAUNCH (0x300)\n#define NVNEW_LAUNCH_MODE 1:0\n"
        "#define NVNEW_LAUNCH_MODE_ODD 0x2\n#define NVNEW_LAUNCH_WIDE 31:8\n"
        "#define NVNEW_DATA (0x500)\n",
        "NVNEW_",
    )
    both = merged(older, newer)
    assert both["LAUNCH"].fields["MODE"].values == {"FAST": 0, "SLOW": 1, "ODD": 2}
    assert both["LAUNCH"].fields["WIDE"].width == 24
    assert both["DATA"].offset == 0x500
    assert both["SET_OBJECT"] is older["SET_OBJECT"]


@given(st.text(alphabet="#define NVTOY_AB(i):0x19+*-\n", max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_methods(text, "NVTOY_", ("A",))
        read_descriptor(text, "NVTOY_")
    except DrfError:
        pass
