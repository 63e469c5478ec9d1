"""onnxruntime, which writes to the home folder when it is imported, in a process of its own.

usage: python onnx_judge.py MODEL INPUTS.npz ... : writes the outputs of each as INPUTS.out.npz.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime

onnxruntime.disable_telemetry_events()
onnxruntime.set_default_logger_severity(3)
model, *files = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
for file in files:
    with np.load(file) as inputs:
        results = session.run(None, dict(inputs))
    np.savez(file.replace(".npz", ".out.npz"), *results)
