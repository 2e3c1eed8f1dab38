"""Checks the header of a LoRA adapter's file against the model's, before llama.cpp reads it.

llama.cpp's own message about an adapter of another model names a tensor, and some damage ends the process.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from shared.errors import ModelError
from shared.jobs.adapter_list import Adapter
from workers.gguf_header import Header, HeaderFault, Tensor, read_local_header

#: The ends of the names of an adapter's two tensors for a matrix of the model.
_A, _B = ".lora_a", ".lora_b"
#: Tensors of an adapter that llama.cpp leaves out.
_LEFT_OUT = "_norm.weight"
#: The rows of this matrix are looked up, so its adapter has the two factors the other way round.
_LOOKED_UP = "token_embd.weight"


def adapter_bytes(adapter: Adapter, base: Sequence[Header]) -> int:
    """Return the size of an adapter's tensors, after comparing them with the model in the files with these headers.

    Raises ModelError if the file cannot be read, is no LoRA adapter or is not one of this model.
    """
    try:
        header = read_local_header(adapter.path)
    except HeaderFault as fault:
        raise ModelError(f"{adapter}: {fault}") from None
    except ModelError:
        raise ModelError(f"{adapter}: the file {adapter.path} cannot be read") from None
    _check_kind(adapter, header, base[0])
    size = header.size_bytes - header.data_start_bytes
    of_base = sum(each.size_bytes for each in base)
    if size > of_base:
        raise ModelError(f"{adapter}: the file has {size} bytes of tensors, more than the whole model ({of_base})")
    _check_tensors(adapter, header.tensors, (tensor for each in base for tensor in each.tensors))
    return size


def check_adapters(adapters: Sequence[Adapter], files: Sequence[Path]) -> None:
    """Check all adapters of the model in these files. Raises ModelError."""
    if adapters:
        base = [read_local_header(path) for path in files]
        for adapter in adapters:
            adapter_bytes(adapter, base)


def _check_kind(adapter: Adapter, header: Header, base: Header) -> None:
    kind, form = header.values.get("general.type"), header.values.get("adapter.type")
    if kind != "adapter" or form != "lora":
        raise ModelError(
            f"{adapter}: the file is no LoRA adapter: it has general.type={kind!r} and adapter.type={form!r}, which "
            "must be 'adapter' and 'lora'"
        )
    own, its = (each.values.get("general.architecture") for each in (header, base))
    if own != its:
        raise ModelError(
            f"{adapter}: it is an adapter of a model of the architecture {own!r}, and {base.name} is {its!r}"
        )
    if "adapter.alora.invocation_tokens" in header.values:
        raise ModelError(
            f"{adapter}: it is an activated LoRA (adapter.alora.invocation_tokens), which is not supported"
        )
    alpha = header.values.get("adapter.lora.alpha")
    if not isinstance(alpha, float):
        raise ModelError(f"{adapter}: the file has adapter.lora.alpha={alpha!r}, which is not a floating-point number")


def _check_tensors(adapter: Adapter, tensors: Sequence[Tensor], of_base: Iterable[Tensor]) -> None:
    shapes = {tensor.name: tensor.shape for tensor in tensors if not tensor.name.endswith(_LEFT_OUT)}
    matrices = {tensor.name: tensor.shape for tensor in of_base}
    if not shapes:
        raise ModelError(f"{adapter}: the file has no tensors")
    for name in shapes:
        if not name.endswith((_A, _B)):
            raise ModelError(f"{adapter}: its tensor {name!r} is neither {_A} nor {_B} of a matrix")
        matrix = name.removesuffix(_A).removesuffix(_B)
        if matrix not in matrices:
            raise ModelError(f"{adapter}: it changes {matrix!r}, which the model does not have; it is another model's")
        a, b = shapes.get(matrix + _A), shapes.get(matrix + _B)
        if a is None or b is None:
            raise ModelError(f"{adapter}: of {matrix!r} it has only one of {_A} and {_B}")
        if not _fits(matrix, matrices[matrix], a, b):
            raise ModelError(
                f"{adapter}: its factors {list(a)} and {list(b)} do not fit {matrix!r}, which is "
                f"{list(matrices[matrix])}; it is an adapter of a model of other sizes"
            )


def _fits(name: str, matrix: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    if not len(matrix) == len(a) == len(b) >= 2 or a[2:] != matrix[2:] or b[2:] != matrix[2:]:
        return False
    if name == _LOOKED_UP:
        return (matrix[0], matrix[1], a[0]) == (b[1], a[1], b[0])
    return (matrix[0], matrix[1], a[1]) == (a[0], b[1], b[0])
