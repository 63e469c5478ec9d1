"""Tensor: losses. Names, axes and reductions as in PyTorch: classes are on axis 1, or on the only
axis. Losses are computed in float32 and rounded once."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import numpy as np

from ugpu.compiler.dtype import float32
from ugpu.compiler.methods.core import number_of
from ugpu.compiler.methods.operations import Operations
from ugpu.hcq.errors import BadArgument, BadIndex

Reduction = Literal["mean", "sum", "none"]
IGNORED = -100  # the label that PyTorch ignores by default
LOWEST_LOG = -100.0  # binary_cross_entropy's lower limit of a logarithm


class Losses(Operations):
    """Losses. reduction: "mean" or "sum" over all elements, or "none" for one loss each."""

    __slots__ = ()

    def mse_loss(self, target: Any, reduction: Reduction = "mean") -> Self:
        """Return (self - target)^2."""
        apart = self._real() - self._target("mse_loss", target)
        return self._collected("mse_loss", apart.square(), reduction, target)

    def l1_loss(self, target: Any, reduction: Reduction = "mean") -> Self:
        """Return |self - target|."""
        apart = self._real() - self._target("l1_loss", target)
        return self._collected("l1_loss", apart.abs(), reduction, target)

    def binary_cross_entropy(
        self, target: Any, weight: Any = None, reduction: Reduction = "mean"
    ) -> Self:
        """Return -(target * log(self) + (1 - target) * log(1 - self)) of probabilities; logarithms
        are limited to at least -100. weight: a factor for each element."""
        wanted, given = self._target("binary_cross_entropy", target), self._real()
        hit = wanted * given.log().maximum(LOWEST_LOG)
        missed = (1 - wanted) * (1 - given).log().maximum(LOWEST_LOG)
        loss = -(hit + missed)
        return self._collected(
            "binary_cross_entropy",
            loss if weight is None else loss * weight,
            reduction,
            target,
            weight,
        )

    def binary_cross_entropy_with_logits(
        self,
        target: Any,
        weight: Any = None,
        positive_weight: Any = None,
        reduction: Reduction = "mean",
    ) -> Self:
        """Return binary_cross_entropy of sigmoid(self), without overflow. positive_weight: a factor
        for the positive part of the target; it broadcasts."""
        name = "binary_cross_entropy_with_logits"
        wanted, given = self._target(name, target), self._real()
        softened = (-given).softplus()  # -log(sigmoid)
        if positive_weight is not None:
            softened = softened * ((self._tensor(name, positive_weight) - 1) * wanted + 1)
        loss = (1 - wanted) * given + softened
        factors = (target, weight, positive_weight)
        return self._collected(name, loss if weight is None else loss * weight, reduction, *factors)

    def nll_loss(
        self,
        target: Any,
        weight: Any = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
    ) -> Self:
        """Return the negated element at each label; self contains logarithms of probabilities.
        Other options as in cross_entropy."""
        self._check_labels("nll_loss", target, ignore_index)
        picked, factor = self._real()._at_labels("nll_loss", target, weight, ignore_index)
        return self._weighted("nll_loss", -picked * factor, factor, reduction, weight)

    def cross_entropy(
        self,
        target: Any,
        weight: Any = None,
        ignore_index: int = IGNORED,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
    ) -> Self:
        """Return -log(softmax(self)) at each label, or weighted by a target of probabilities.

        target: integers, without the axis of classes, or floats of this shape. weight: a factor for
        each class; the mean is weighted by the factors of the labels. ignore_index: a label to
        ignore. label_smoothing: the part of each label that is distributed over all classes. An
        invalid label raises BadArgument if the labels are an array, and has a loss of NaN in a
        tensor.
        """
        name = "cross_entropy"
        if not 0 <= number_of(name, "label_smoothing", label_smoothing) <= 1:
            raise BadArgument(f"{name}: label_smoothing must be from 0 to 1, got {label_smoothing}")
        axis = self._classes(name)
        shifted = self._shifted(name, axis)
        total = shifted.exp().sum(axis, keepdims=True).log()
        given = self._tensor(name, target)
        share = label_smoothing / self.shape[axis]
        factors = None if weight is None else self._factors(name, weight)
        if given.dtype.is_float:
            if given.shape != self.shape:
                raise BadArgument(f"{name}: shapes {self._shown} and {given._shown} do not match")
            terms = (total - shifted) * (given._real() * (1 - label_smoothing) + share)
            loss = (terms if factors is None else terms * factors).sum(axis)
            if reduction != "mean":
                return self._collected(name, loss, reduction, given, weight)
            mean: Self = loss.sum() / max(1, loss.numel())
            return mean.cast(self._float_common(name, given, weight))
        self._check_labels(name, target, ignore_index)
        picked, factor = shifted._at_labels(name, given, weight, ignore_index)
        loss = (total.squeeze(axis) - picked) * factor
        if label_smoothing:
            terms = total - shifted
            spread = (terms if factors is None else terms * factors).sum(axis)
            counted = given._compare("ne", ignore_index)
            loss = loss * (1 - label_smoothing) + counted.where(spread, 0) * share
        return self._weighted(name, loss, factor, reduction, weight)

    # ---- parts ---------------------------------------------------------------------------------

    def _target(self, name: str, target: Any) -> Self:
        given = self._tensor(name, target)
        if given.shape != self.shape:
            raise BadArgument(f"{name}: shapes {self._shown} and {given._shown} do not match")
        return given._real()

    def _classes(self, name: str) -> int:
        if not self.ndim or not self.shape[min(1, self.ndim - 1)]:
            raise BadArgument(f"{name}: shape {self._shown} has no classes")
        return min(1, self.ndim - 1)

    def _factors(self, name: str, weight: Any) -> Self:
        """Return a factor for each class, along the axis of classes."""
        axis = self._classes(name)
        given = self._tensor(name, weight)
        if given.shape != (self.shape[axis],):
            raise BadArgument(
                f"{name}: the weights' shape {given._shown} does not match the classes of shape "
                f"{self._shown}"
            )
        return given._real().reshape(
            tuple(size if place == axis else 1 for place, size in enumerate(self.shape))
        )

    def _check_labels(self, name: str, target: Any, ignore_index: int) -> None:
        """Raise for invalid labels that are known on the host."""
        classes = self.shape[self._classes(name)]
        if not isinstance(target, np.ndarray | np.generic) or target.dtype.kind not in "iu":
            return
        counted = np.asarray(target)[np.asarray(target != ignore_index)]
        outside = counted[(counted < 0) | (counted >= classes)]
        if outside.size:
            raise BadIndex(f"{name}: label {outside[0]} is outside the {classes} classes")

    def _at_labels(
        self, name: str, target: Any, weight: Any, ignore_index: int
    ) -> tuple[Self, Self]:
        """Return the value at each label, and each label's factor, which is zero where ignored."""
        axis = self._classes(name)
        labels = self._tensor(name, target)
        rest = (*self.shape[:axis], *self.shape[axis + 1 :])
        if labels.dtype.is_float or labels.shape != rest:
            raise BadArgument(
                f"{name}: {labels.dtype.name} labels of shape {labels._shown} do not match "
                f"shape {self._shown}"
            )
        classes = self.shape[axis]
        counted = labels._compare("ne", ignore_index)
        valid = labels._compare("lt", classes)
        if labels.dtype.kind == "i":
            valid = valid & (labels >= 0)
        known = (counted & valid).where(labels, 0)
        picked = self.gather(axis, known.unsqueeze(axis)).squeeze(axis)
        picked = (valid | ~counted).where(picked, math.nan)
        if weight is None:
            return picked, counted.cast(float32)
        factors = self._factors(name, weight).flatten()
        return picked, counted.where(factors[known], 0)

    def _collected(self, name: str, loss: Self, reduction: str, *others: Any) -> Self:
        """Reduce a loss and round it to the type of self and the others."""
        if reduction not in ("mean", "sum", "none"):
            raise BadArgument(
                f"{name}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}"
            )
        found = loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()
        return found.cast(self._float_common(name, *others))

    def _weighted(self, name: str, loss: Self, factor: Self, reduction: str, weight: Any) -> Self:
        """Reduce as _collected does, with a mean weighted by factors. NaN if all are zero."""
        if reduction != "mean":
            return self._collected(name, loss, reduction, weight)
        return (loss.sum() / factor.sum()).cast(self._float_common(name, weight))
