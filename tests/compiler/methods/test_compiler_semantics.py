"""What operations mean at their edges, as PyTorch defines it (its results are written down here):
small integers, numbers out of range, tensors without axes, empty attention, copies of tensors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor, dtypes, jit
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadIndex

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [("int8", "int64"), ("uint8", "uint64"), ("int32", "int64"), ("bool", "int64")],
)
def test_running_totals_are_as_wide_as_sums(cpu: Device, dtype: str, wide: str) -> None:
    ones = Tensor(np.array([1] * 300), device=cpu, dtype=dtype)
    full = Tensor(np.array([100, 100, 100]), device=cpu).cast(dtype)
    assert ones.cumsum(0).dtype.name == ones.cumprod(0).dtype.name == wide
    assert ones.cumsum(0).tolist() == list(range(1, 301))
    if dtype != "bool":
        assert full.cumprod(0).tolist() == [100, 10000, 1000000]


# ---- comparisons ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "uint64"])
@pytest.mark.parametrize("number", [1 << 70, -(1 << 70)])
def test_comparisons_with_numbers_out_of_range(cpu: Device, dtype: str, number: int) -> None:
    values = Tensor(np.array([0, 5, 100], dtype), device=cpu)
    above = number > 0
    for found, expected in (
        (values < number, above), (values <= number, above), (values > number, not above),
        (values >= number, not above), (values == number, False), (values != number, True),
        (number < values, not above), (number >= values, above),
    ):  # fmt: skip
        assert found.dtype is dtypes.bool_
        assert found.tolist() == [expected] * 3


def test_comparisons_of_uint8_at_the_ends_of_its_range(cpu: Device) -> None:
    values = Tensor(np.array([0, 200, 255], np.uint8), device=cpu)
    assert (values < 300).tolist() == [True] * 3
    assert (values <= 255).tolist() == [True] * 3
    assert (values < 256).tolist() == [True] * 3
    assert (values > -1).tolist() == [True] * 3
    assert (values == -1).tolist() == [False] * 3
    assert (values < 255).tolist() == [True, True, False]
    with pytest.raises(BadArgument, match="300 is out of range for uint8"):
        _ = values + 300


@pytest.mark.parametrize("other", [None, "x", [1, 2], {}])
def test_what_is_not_a_number_is_not_equal(cpu: Device, other: object) -> None:
    values = Tensor(np.array([1, 2]), device=cpu)
    assert (values == other) is False
    assert (values != other) is True
    with pytest.raises((BadArgument, TypeError)):
        _ = values < other


def test_numbers_that_no_float_holds_are_refused(cpu: Device) -> None:
    values = Tensor(np.array([1.0, 2.0]), device=cpu)
    with pytest.raises(BadArgument, match="is out of range for float32"):
        _ = values + 10**400


# ---- indices -------------------------------------------------------------------------------------


def test_tuples_in_a_key_are_indices(cpu: Device) -> None:
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    values = Tensor(array, device=cpu)
    assert values[(0, 2),].tolist() == array[[0, 2]].tolist()
    assert values[[0, 1], (1, 2)].tolist() == [1.0, 6.0]
    assert values[((0, 1), (1, 2))].tolist() == [1.0, 6.0]
    values[(0, 2),] = 7
    assert values.numpy()[:, 0].tolist() == [7.0, 4.0, 7.0]


@pytest.mark.parametrize(
    "read",
    [lambda t: t[3], lambda t: t[-4], lambda t: t[0, 0, 0], lambda t: t[[0, 3]], lambda t: t.sum(2),
     lambda t: t.softmax(-3), lambda t: t[0, 0][0]],
)  # fmt: skip
def test_indices_outside_are_index_errors(cpu: Device, read: Callable[[Tensor], Tensor]) -> None:
    values = Tensor(np.zeros((3, 4)), device=cpu)
    with pytest.raises(IndexError) as raised:
        read(values)
    assert isinstance(raised.value, BadIndex)


def test_keys_that_are_bools(cpu: Device) -> None:
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    values = Tensor(array, device=cpu)
    assert values[True].tolist() == [array.tolist()]
    assert values[0, np.True_].shape == (1, 3)
    assert values[False].shape == (0, 2, 3)
    for key, written in ((True, True), (False, False), (np.True_, True), (np.array(False), False)):
        for each in (key, Tensor(bool(key), device=cpu)):
            target = Tensor(array, device=cpu)
            target[each] = 9
            assert target.tolist() == (np.full((2, 3), 9.0) if written else array).tolist()
    target = Tensor(array, device=cpu)
    target[1, Tensor(True, device=cpu)] = Tensor(np.array([7, 8, 9]), device=cpu)
    assert target.tolist() == [[0, 1, 2], [7, 8, 9]]


@pytest.mark.parametrize("key", ["a", 1.5, [[1], [2, 3]], [0.5], object(), [None]])
def test_keys_of_wrong_kinds_are_refused(cpu: Device, key: Any) -> None:
    values = Tensor(np.zeros((3, 4)), device=cpu)
    with pytest.raises(BadArgument):
        _ = values[key]
    with pytest.raises(BadArgument):
        values[key] = 1


# ---- no axes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, -1])
def test_a_tensor_without_axes_has_axis_zero(cpu: Device, axis: int) -> None:
    one = Tensor(3.0, device=cpu)
    for method in (
        "sum",
        "mean",
        "max",
        "prod",
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "squeeze",
    ):
        found = getattr(one, method)(axis)
        assert (found.shape, found.item()) == ((), 3.0), method
    assert one.softmax(axis).item() == 1.0
    assert one.log_softmax(axis).item() == 0.0
    assert one.logsumexp(axis).item() == 3.0
    assert one.argmax(axis).item() == one.argmin(axis).item() == 0
    assert np.isnan(one.var(axis).item())
    assert [each.item() for each in one.sort(axis)] == [3.0, 0]
    assert one.argsort(axis).shape == one.flip(axis).shape == ()
    for method in ("sum", "softmax", "cumsum", "argmax", "sort"):
        with pytest.raises(BadIndex):
            getattr(one, method)(1)


def test_logsumexp_of_nothing(cpu: Device) -> None:
    nothing = Tensor(np.zeros((3, 0)), device=cpu)
    assert nothing.logsumexp(1).tolist() == [-INF] * 3
    assert nothing.logsumexp(0).tolist() == []
    assert nothing.logsumexp(1, keepdims=True).shape == (3, 1)


# ---- making --------------------------------------------------------------------------------------


def test_ranges_fit_their_type(cpu: Device) -> None:
    assert Tensor.arange(128, device=cpu, dtype="int8").tolist() == list(range(128))
    assert Tensor.arange(0, -129, -1, device=cpu, dtype="int8")[-1].item() == -128
    for stop, step, dtype in ((300, 1, "int8"), (-200, -1, "uint8"), (70000, 1, "uint16")):
        with pytest.raises(BadArgument, match=f"is out of range for {dtype}"):
            Tensor.arange(0, stop, step, device=cpu, dtype=dtype)


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8), ("float32", 24)])
def test_random_numbers_stay_below_one(cpu: Device, dtype: str, bits: int) -> None:
    Tensor.manual_seed(5)
    numbers = Tensor.rand(1 << 18, device=cpu, dtype=dtype).numpy().astype(np.float64)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert np.array_equal(numbers * 2**bits, np.round(numbers * 2**bits))
    assert abs(numbers.mean() - 0.5) < 0.005


def test_uniform_numbers_stay_below_their_end(cpu: Device) -> None:
    Tensor.manual_seed(6)
    numbers = Tensor.uniform(1 << 20, low=2.0**20, high=2.0**20 + 1, device=cpu).numpy()
    assert numbers.min() >= 2.0**20
    assert numbers.max() < 2.0**20 + 1
    with pytest.raises(BadArgument, match="low must be at most high"):
        Tensor.uniform(3, low=1, high=0, device=cpu)


def test_one_hot_finds_out_how_many_classes_there_are(cpu: Device) -> None:
    labels = Tensor(np.array([0, 2]), device=cpu)
    assert labels.one_hot(-1).tolist() == labels.one_hot().tolist() == [[1, 0, 0], [0, 0, 1]]
    for classes in (-2, 1.5, True, "3"):
        with pytest.raises(BadArgument, match="classes must be an int"):
            labels.one_hot(classes)  # type: ignore[arg-type]
    with pytest.raises(BadArgument):
        jit(lambda t: t.one_hot())(labels)


# ---- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint64", "bool"])
def test_copies_are_tensors_of_their_own(dtype: str, made: Callable[[Tensor], Tensor]) -> None:
    original = Tensor(np.array([[1, 0], [3, 4]]), device="cpu", dtype=dtype)
    copied = made(original)
    assert (copied.dtype, copied.device, copied.tolist()) == (
        original.dtype,
        original.device,
        original.tolist(),
    )
    copied[0, 0] = 0
    assert original[0, 0].item() == 1
    original[1] = 0
    assert copied.numpy()[1].all()


# ---- attention, images, losses -------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "virtual:navi31", "virtual:gh100"])
def test_attention_that_sees_nothing(device: str) -> None:
    def ones(*shape: int) -> Tensor:
        return Tensor.ones(*shape, device=device).contiguous()

    some = Tensor(np.array([[True, False, True], [False] * 3]), device=device)
    added = Tensor(np.array([[0, -INF, 1], [-INF] * 3], np.float32), device=device)
    for mask in (some, added):
        found = ones(2, 4).scaled_dot_product_attention(ones(3, 4), ones(3, 2), mask)
        assert found.tolist() == [[1, 1], [0, 0]]
    nothing = ones(2, 4).scaled_dot_product_attention(ones(0, 4), ones(0, 2))
    assert nothing.tolist() == [[0, 0], [0, 0]]
    flat = ones(2, 0).scaled_dot_product_attention(
        ones(3, 0), Tensor.arange(3, device=device).unsqueeze(1).float()
    )
    assert flat.tolist() == [[1], [1]]


def test_bilinear_images_of_bytes_stay_bytes(cpu: Device) -> None:
    image = (np.arange(12, dtype=np.uint8) * 20).reshape(1, 1, 3, 4)
    found = Tensor(image, device=cpu).interpolate((5, 7), mode="bilinear")
    assert found.dtype is dtypes.uint8
    assert found.numpy()[0, 0].tolist() == [
        [0, 7, 19, 30, 41, 53, 60], [32, 39, 51, 62, 73, 85, 92], [80, 87, 99, 110, 121, 133, 140],
        [128, 135, 147, 158, 169, 181, 188], [160, 167, 179, 190, 201, 213, 220],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("label", [3, -1, 1 << 40])
def test_labels_that_are_no_class(cpu: Device, name: str, label: int) -> None:
    scores = Tensor(np.arange(6.0).reshape(2, 3), device=cpu).log_softmax(-1)
    loss = getattr(scores, name)
    labels = np.array([0, label])
    with pytest.raises(BadIndex, match=f"label {label} is outside the 3 classes"):
        loss(labels)
    found = loss(Tensor(labels, device=cpu), reduction="none").tolist()
    assert np.isnan(found[1])
    assert found[0] == pytest.approx(2.4076059)
    ignored = loss(Tensor(np.array([0, -100]), device=cpu), reduction="none").tolist()
    assert ignored == [found[0], 0]
    assert np.isnan(loss(Tensor(labels, device=cpu), weight=Tensor.ones(3, device=cpu)).item())


# ---- wrong kinds ---------------------------------------------------------------------------------

WRONG = [None, "x", 1j, object(), slice(None), {}, [[1], [2, 3]]]
CALLS: list[Callable[[Tensor, Any], object]] = [
    lambda t, wrong: Tensor.arange(wrong, device=t.device),
    lambda t, wrong: Tensor.eye(wrong, device=t.device),
    lambda t, wrong: Tensor.randperm(wrong, device=t.device),
    lambda t, wrong: Tensor.randint(3, high=wrong, device=t.device),
    lambda t, wrong: Tensor.uniform(3, low=wrong, device=t.device),
    lambda t, wrong: Tensor.cat(wrong),
    lambda t, wrong: Tensor.stack([t, wrong]),
    lambda t, wrong: t.full_like(wrong),
    lambda t, wrong: t.avg_pool2d(wrong),
    lambda t, wrong: t.split(wrong),
    lambda t, wrong: t.chunk(wrong),
    lambda t, wrong: t.roll(wrong, 0),
    lambda t, wrong: t.repeat_interleave(wrong),
    lambda t, wrong: t.unflatten(0, wrong),
    lambda t, wrong: t.topk(wrong),
    lambda t, wrong: t.var(correction="1" if wrong is None else wrong),
    lambda t, wrong: t.masked_select(wrong),
    lambda t, wrong: t.memory_plan(wrong),
    lambda t, wrong: t.dropout(wrong, training=True),
    lambda t, wrong: t.cross_entropy(t, label_smoothing=wrong),
    lambda t, wrong: t.scaled_dot_product_attention(wrong, t),
]


@pytest.mark.parametrize("call", CALLS)
def test_arguments_of_wrong_kinds_are_refused(cpu: Device, call: Callable[..., object]) -> None:
    values = Tensor(np.zeros((3, 4)), device=cpu)
    for wrong in WRONG:
        with pytest.raises(BadArgument):
            call(values, wrong)


def test_signs_of_zeros(cpu: Device) -> None:
    values = Tensor(np.array([0.0, -0.0, INF, -2.0, NAN], np.float32), device=cpu)
    signs = values.sign().numpy()
    assert signs[:4].tolist() == [0, 0, 1, -1]
    assert not np.signbit(signs[:2]).any()
    assert np.isnan(signs[4])
    large = values[2:3].logsigmoid().numpy()
    assert large.tolist() == [0.0]
    assert not np.signbit(large).any()
    whole = Tensor(np.array([-128, 3], np.int8), device=cpu)
    assert whole.copysign(1).dtype.name == "float32"
    assert whole.copysign(1).tolist() == [128, 3]
