"""Modules with PyTorch's names, layouts of weights and names of states: `ugpu.nn`."""

from __future__ import annotations

from ugpu.compiler.nn import init as init
from ugpu.compiler.nn.activation import CELU as CELU
from ugpu.compiler.nn.activation import ELU as ELU
from ugpu.compiler.nn.activation import GELU as GELU
from ugpu.compiler.nn.activation import GLU as GLU
from ugpu.compiler.nn.activation import SELU as SELU
from ugpu.compiler.nn.activation import Dropout as Dropout
from ugpu.compiler.nn.activation import Dropout1d as Dropout1d
from ugpu.compiler.nn.activation import Dropout2d as Dropout2d
from ugpu.compiler.nn.activation import Dropout3d as Dropout3d
from ugpu.compiler.nn.activation import Hardsigmoid as Hardsigmoid
from ugpu.compiler.nn.activation import Hardswish as Hardswish
from ugpu.compiler.nn.activation import Hardtanh as Hardtanh
from ugpu.compiler.nn.activation import LeakyReLU as LeakyReLU
from ugpu.compiler.nn.activation import LogSigmoid as LogSigmoid
from ugpu.compiler.nn.activation import LogSoftmax as LogSoftmax
from ugpu.compiler.nn.activation import Mish as Mish
from ugpu.compiler.nn.activation import PReLU as PReLU
from ugpu.compiler.nn.activation import ReLU as ReLU
from ugpu.compiler.nn.activation import ReLU6 as ReLU6
from ugpu.compiler.nn.activation import Sigmoid as Sigmoid
from ugpu.compiler.nn.activation import SiLU as SiLU
from ugpu.compiler.nn.activation import Softmax as Softmax
from ugpu.compiler.nn.activation import Softmin as Softmin
from ugpu.compiler.nn.activation import Softplus as Softplus
from ugpu.compiler.nn.activation import Softsign as Softsign
from ugpu.compiler.nn.activation import Tanh as Tanh
from ugpu.compiler.nn.attention import MultiheadAttention as MultiheadAttention
from ugpu.compiler.nn.attention import TransformerEncoderLayer as TransformerEncoderLayer
from ugpu.compiler.nn.convolution import Conv1d as Conv1d
from ugpu.compiler.nn.convolution import Conv2d as Conv2d
from ugpu.compiler.nn.convolution import Conv3d as Conv3d
from ugpu.compiler.nn.convolution import ConvTranspose1d as ConvTranspose1d
from ugpu.compiler.nn.convolution import ConvTranspose2d as ConvTranspose2d
from ugpu.compiler.nn.convolution import ConvTranspose3d as ConvTranspose3d
from ugpu.compiler.nn.linear import Bilinear as Bilinear
from ugpu.compiler.nn.linear import Embedding as Embedding
from ugpu.compiler.nn.linear import Flatten as Flatten
from ugpu.compiler.nn.linear import Identity as Identity
from ugpu.compiler.nn.linear import Linear as Linear
from ugpu.compiler.nn.linear import Unflatten as Unflatten
from ugpu.compiler.nn.module import Module as Module
from ugpu.compiler.nn.module import ModuleDict as ModuleDict
from ugpu.compiler.nn.module import ModuleList as ModuleList
from ugpu.compiler.nn.module import Sequential as Sequential
from ugpu.compiler.nn.normalization import BatchNorm1d as BatchNorm1d
from ugpu.compiler.nn.normalization import BatchNorm2d as BatchNorm2d
from ugpu.compiler.nn.normalization import BatchNorm3d as BatchNorm3d
from ugpu.compiler.nn.normalization import GroupNorm as GroupNorm
from ugpu.compiler.nn.normalization import InstanceNorm1d as InstanceNorm1d
from ugpu.compiler.nn.normalization import InstanceNorm2d as InstanceNorm2d
from ugpu.compiler.nn.normalization import InstanceNorm3d as InstanceNorm3d
from ugpu.compiler.nn.normalization import LayerNorm as LayerNorm
from ugpu.compiler.nn.normalization import RMSNorm as RMSNorm
from ugpu.compiler.nn.parameter import Parameter as Parameter
from ugpu.compiler.nn.pooling import AdaptiveAvgPool1d as AdaptiveAvgPool1d
from ugpu.compiler.nn.pooling import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from ugpu.compiler.nn.pooling import AdaptiveMaxPool1d as AdaptiveMaxPool1d
from ugpu.compiler.nn.pooling import AdaptiveMaxPool2d as AdaptiveMaxPool2d
from ugpu.compiler.nn.pooling import AvgPool1d as AvgPool1d
from ugpu.compiler.nn.pooling import AvgPool2d as AvgPool2d
from ugpu.compiler.nn.pooling import MaxPool1d as MaxPool1d
from ugpu.compiler.nn.pooling import MaxPool2d as MaxPool2d
from ugpu.compiler.nn.recurrent import GRU as GRU
from ugpu.compiler.nn.recurrent import LSTM as LSTM
from ugpu.compiler.nn.recurrent import RNN as RNN

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "PReLU",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softsign",
    "Tanh",
    "TransformerEncoderLayer",
    "Unflatten",
    "init",
]
