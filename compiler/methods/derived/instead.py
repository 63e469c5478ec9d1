"""What to write instead of the methods of torch.Tensor and numpy.ndarray that Tensor lacks."""

from __future__ import annotations

# What to write, and for which names; {name} is the name, {base} without underscores behind it.
FAMILIES: tuple[tuple[str, str], ...] = (
    ("write ugpu.linalg.{name}(x)", "cholesky det matrix_power qr slogdet solve svd"),
    ("write ugpu.linalg.inv(x)", "inverse cholesky_inverse"),
    ("write ugpu.linalg.pinv(x)", "pinverse"),
    ("write ugpu.linalg.slogdet(x)[1]", "logdet"),
    ("write ugpu.linalg.eigh(x), for symmetric matrices", "symeig"),
    ("write ugpu.linalg.solve(a, x)", "cholesky_solve lu_solve triangular_solve"),
    ("write ugpu.linalg.pinv(a) @ x", "lstsq"),
    ("write ugpu.linalg.qr(x)", "geqrf orgqr ormqr"),
    ("write Tensor(scipy.linalg.{name}(x.numpy())), which computes on the host",
     "eig lu matrix_exp"),
    ("write ugpu.fft.fft of windows: x.unfold(-1, size, hop)", "stft istft"),
    ("write Tensor(scipy.special.{base}(x.numpy())), which computes on the host",
     "digamma i0 polygamma"),
    ("write Tensor(scipy.special.gammaln(x.numpy())), which computes on the host",
     "lgamma mvlgamma"),
    ("write Tensor(scipy.special.gammainc(x.numpy(), y)), which computes on the host",
     "igamma igammac"),
    ("write Tensor(np.{base}(x.numpy(), y)), which computes on the host",
     "gcd lcm frexp histogram choose compress"),
    ("write x[...] = value", "fill fill_ put_ itemset"),
    ("write x[...] = 0", "zero_"),
    ("write x[...] = other", "copy_ set_ setfield"),
    ("write x = x * (1 - Tensor.eye(*x.shape)) + Tensor.eye(*x.shape) * value", "fill_diagonal_"),
    ("write x[...] = Tensor.normal(x.shape, mean=mean, std=std)", "normal_"),
    ("write x[...] = Tensor.normal(x.shape, mean=mean, std=std).exp()", "log_normal_"),
    ("write x[...] = Tensor.uniform(x.shape, low=low, high=high)", "uniform_"),
    ("write x[...] = Tensor.randint(x.shape, low=low, high=high)", "random_"),
    ("write x[...] = x.full_like(p).bernoulli()", "bernoulli_"),
    ("write x[...] = -(1 - Tensor.rand(x.shape)).log() / rate", "exponential_"),
    ("write x[...] = ((Tensor.rand(x.shape) - 0.5) * math.pi).tan() * scale + median", "cauchy_"),
    ("write x[...] = ((1 - Tensor.rand(x.shape)).log() / math.log(1 - p)).ceil()", "geometric_"),
    ("write x = Tensor([f(each) for each in x.tolist()]), or operations of tensors",
     "apply_ map_ map2_"),
    ("write x.reshape(shape), x[...] or x.pad(pairs): a tensor keeps its shape",
     "resize resize_ resize_as resize_as_"),
    ("write x.scatter_reduce(axis, index, source, reduce)", "index_reduce index_reduce_"),
    ("write x[indices]", "index"),
    ("write x.detach()", "data"),
    ("write x.flatten()", "flat"),
    ("write x.max() - x.min()", "ptp"),
    ("write x.argsort(axis), or x.topk(count, axis) for the first", "argpartition"),
    ("write x.sort(axis)[0], or x.topk(count, axis) for the first", "partition"),
    ("write x.max(axis, indices=True), which returns values and places; other methods return a "
     "tuple", "values indices"),
    ("write x.to(device)", "cuda xpu ipu mtia"),
    ("write x.device", "get_device is_cpu is_cuda is_ipu is_maia is_mps is_mtia is_vulkan is_xla "
     "is_xpu is_meta is_mkldnn"),
    ("write x[...], which copies: tensors have no strides, elements are in row-major order",
     "as_strided as_strided_ as_strided_scatter stride strides storage_offset slice_inverse "
     "new_empty_strided dim_order layout flags setflags is_set_to base"),
    ("write x.numpy(), which copies, or np.from_dlpack(x), which shares memory where it can",
     "data_ptr const_data_ptr storage untyped_storage storage_type ctypes is_shared is_pinned "
     "share_memory_ pin_memory record_stream getfield new"),
    ("write x.numpy().{name}(...)", "tobytes tofile dumps dump byteswap"),
    ("a Tensor is real: write ugpu.ComplexTensor(x)",
     "cdouble cfloat chalf is_conj is_neg"),
    ("a tensor is dense: write x.numpy() for scipy.sparse", "coalesce is_coalesced col_indices "
     "crow_indices row_indices ccol_indices dense_dim sparse_dim smm sspaddmm to_dense to_mkldnn "
     "to_padded_tensor is_sparse is_sparse_csr is_nested sparse_mask sparse_resize_ "
     "sparse_resize_and_clear_ resize_as_sparse_ to_sparse to_sparse_bsc to_sparse_bsr "
     "to_sparse_coo to_sparse_csc to_sparse_csr"),
    ("a tensor is not quantised: write x.cast('int8') with a scale of your own", "dequantize "
     "int_repr is_quantized q_per_channel_axis q_per_channel_scales q_per_channel_zero_points "
     "q_scale q_zero_point qscheme"),
    ("write ugpu.grad(f, arguments), or ugpu.custom_gradient for a gradient of your own",
     "grad_fn grad_dtype register_hook register_post_accumulate_grad_hook reinforce output_nr "
     "retain_grad retains_grad"),
    ("write x.detach()", "detach_"),
    ("write ugpu.no_grad()", "is_inference volatile"),
    ("write x.shard(devices), and sharded.placement", "is_distributed"),
    ("write hash(x.numpy().tobytes())", "hash_tensor"),
    ("write x.nonzero()[:size]", "nonzero_static"),
    ("write x.{plain}(...), whose results are always tensors of their own",
     "unsafe_chunk unsafe_split unsafe_split_with_sizes narrow_copy"),
    ("write a subclass of Tensor", "as_subclass"),
    ("write model.load_state_dict(tensors)", "module_load"),
    ("tensors have no names: write a comment, or a dict of tensors", "name names"),
)  # fmt: skip
PLAIN = {"unsafe_chunk": "chunk", "unsafe_split": "split", "narrow_copy": "narrow",
         "unsafe_split_with_sizes": "split_with_sizes"}  # fmt: skip
INSTEAD = {name: text for text, names in FAMILIES for name in names.split()}


def missing(name: str, has_base: bool) -> str:
    """Return the text of the AttributeError for a name that Tensor lacks. has_base: whether it has
    the name without underscores behind it."""
    if name.startswith("_"):
        return f"'Tensor' object has no attribute {name!r}"
    base = name.rstrip("_")
    text = INSTEAD.get(name)
    if text is None and base != name:
        text = INSTEAD.get(base)
        if has_base:
            text = (
                "operations return new tensors: write x = x.{base}(...), or "
                "x[...] = x.{base}(...), which replaces the elements in place"
            )
    if text is None:
        return f"'Tensor' object has no attribute {name!r}"
    return f"Tensor has no {name!r}: " + text.format(
        name=name, base=base, plain=PLAIN.get(name, name)
    )
