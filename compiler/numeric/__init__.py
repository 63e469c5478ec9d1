"""Linear algebra and Fourier transforms of tensors: `ugpu.linalg`, `ugpu.fft`."""
