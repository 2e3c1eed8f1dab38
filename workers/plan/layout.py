"""Sums up the headers of a model's files: its parameters, its weights and its experts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gguf import GGML_QUANT_SIZES

from workers.gguf_header import Header, HeaderFault, Tensor
from workers.plan.layers import Layer, Metadata, heads_of, layers_of

#: Tensors in which rows are only looked up. llama.cpp keeps them in the host's memory.
_LOOKED_UP = ("token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
#: Part of the name of a tensor that holds all experts of a layer, one for each index of the last dimension.
_EXPERTS = "_exps."


@dataclass(frozen=True)
class Layout:
    """The parts of a model. Sizes are in bytes, widths in numbers, and lengths in tokens."""

    architecture: str
    context: int
    width: int
    heads: int
    #: Width of the widest feed-forward network that a token passes, or of its experts together.
    feed_width: int
    #: Inner width of state space layers.
    state_width: int
    vocabulary: int
    layers: tuple[Layer, ...]
    parameters: int
    active_parameters: int
    experts: int
    experts_used: int
    weights_bytes: int
    #: The weights that stay in the host's memory if all layers are on a GPU.
    host_bytes: int
    #: The weights that a GPU holds once more: the embeddings of the tokens, if they are the output matrix too.
    copied_bytes: int
    #: Whether the model makes embeddings or ranks documents. It then has no KV cells.
    embeds: bool
    #: The tensors of the model's LoRA adapters, which are where the weights are.
    adapters_bytes: int = 0

    @property
    def is_recurrent(self) -> bool:
        return any(layer.recurrent for layer in self.layers)


def layout_of(headers: Sequence[Header]) -> Layout:
    """Return the layout of the model in one file, or in several; the first of them has the metadata.

    Raises HeaderFault if the headers contradict themselves or the sizes of the files, or if a part is missing.
    """
    first = headers[0]
    metadata = Metadata(first)
    _check_parts(headers)
    for header in headers:
        _check_data(header)
    tensors = {tensor.name: tensor for header in headers for tensor in header.tensors}
    layers = layers_of(metadata, tensors.values())
    if not tensors:
        raise HeaderFault(f"{first.name} contains no tensors")
    experts, used = metadata.number("expert_count"), metadata.number("expert_used_count")
    if used > experts:
        raise HeaderFault(f"{first.name} claims that {used} of {experts} experts compute a token")
    parameters = sum(tensor.elements for tensor in tensors.values())
    idle = sum(tensor.elements for name, tensor in tensors.items() if _EXPERTS in name) * (experts - used)
    looked_up = sum(_bytes_of(first.name, tensors[name]) for name in _LOOKED_UP if name in tensors)
    embeds = metadata.number("pooling_type") != 0 or metadata.raw("attention.causal") == 0
    embedding = tensors.get("token_embd.weight")
    tied = embedding is not None and "output.weight" not in tensors and not embeds
    return Layout(
        architecture=metadata.architecture,
        context=metadata.number("context_length"),
        width=metadata.number("embedding_length"),
        heads=heads_of(metadata, len(layers)),
        feed_width=_feed_width(metadata, len(layers), used),
        state_width=metadata.number("ssm.inner_size"),
        vocabulary=embedding.shape[-1] if embedding is not None else metadata.number("vocab_size"),
        layers=tuple(layers),
        parameters=parameters,
        active_parameters=parameters - (idle // experts if experts else 0),
        experts=experts,
        experts_used=used,
        weights_bytes=sum(_bytes_of(first.name, tensor) for tensor in tensors.values()),
        host_bytes=looked_up,
        copied_bytes=_bytes_of(first.name, embedding) if embedding is not None and tied else 0,
        embeds=embeds,
    )


def _feed_width(metadata: Metadata, n_layers: int, experts_used: int) -> int:
    dense = max(metadata.number("feed_forward_length", layer=layer) for layer in range(n_layers))
    return max(dense, experts_used * metadata.number("expert_feed_forward_length"))


def _check_parts(headers: Sequence[Header]) -> None:
    count = headers[0].values.get("split.count", 0)
    if isinstance(count, int) and count > len(headers):
        raise HeaderFault(f"{headers[0].name} is one of {count} parts of a model, and {len(headers)} were found")
    expected = headers[0].values.get("split.tensors.count", 0)
    found = sum(len(header.tensors) for header in headers)
    if expected and expected != found:
        raise HeaderFault(f"the parts of {headers[0].name} have {found} tensors, and it claims {expected}")


def _check_data(header: Header) -> None:
    """Raise HeaderFault if the data of a tensor do not lie within the file."""
    for tensor in header.tensors:
        end = header.data_start_bytes + tensor.offset_bytes + _bytes_of(header.name, tensor)
        if end > header.size_bytes:
            raise HeaderFault(
                f"{header.name} is cut: tensor {tensor.name!r} ends at byte {end}, and the file has "
                f"{header.size_bytes} bytes"
            )


def _bytes_of(file: str, tensor: Tensor) -> int:
    """Return the size of a tensor's data. Raises HeaderFault if its type is not known or does not fit its shape."""
    try:
        block, block_bytes = map(int, GGML_QUANT_SIZES[tensor.kind])
    except KeyError:
        raise HeaderFault(f"{file}: tensor {tensor.name!r} has the type {tensor.kind}, which is not known") from None
    if tensor.shape[0] % block:
        raise HeaderFault(
            f"{file}: tensor {tensor.name!r} has rows of {tensor.shape[0]} elements, which is not a multiple of {block}"
        )
    return math.prod(tensor.shape) // block * block_bytes
