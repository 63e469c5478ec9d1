"""Optimisers, schedules of learning rates, limits of gradients, scaling of losses: `ugpu.optim`."""

from __future__ import annotations

from ugpu.compiler.optim.clipping import clip_grad_norm_ as clip_grad_norm_
from ugpu.compiler.optim.clipping import clip_grad_value_ as clip_grad_value_
from ugpu.compiler.optim.descent import LAMB as LAMB
from ugpu.compiler.optim.descent import SGD as SGD
from ugpu.compiler.optim.descent import Adam as Adam
from ugpu.compiler.optim.descent import AdamW as AdamW
from ugpu.compiler.optim.muon import Muon as Muon
from ugpu.compiler.optim.optimizer import Optimizer as Optimizer
from ugpu.compiler.optim.scaling import GradScaler as GradScaler
from ugpu.compiler.optim.schedules import CosineAnnealingLR as CosineAnnealingLR
from ugpu.compiler.optim.schedules import ExponentialLR as ExponentialLR
from ugpu.compiler.optim.schedules import LambdaLR as LambdaLR
from ugpu.compiler.optim.schedules import LinearLR as LinearLR
from ugpu.compiler.optim.schedules import MultiStepLR as MultiStepLR
from ugpu.compiler.optim.schedules import OneCycleLR as OneCycleLR
from ugpu.compiler.optim.schedules import StepLR as StepLR
