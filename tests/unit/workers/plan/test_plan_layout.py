"""Tests the facts found in the headers of models: layers of each kind, experts, weights, and contradictions."""

import pytest

from shared.errors import ModelError
from tests.support.gguf_copy import copy_gguf
from workers.demo.random_gguf import write_random_model
from workers.gguf_header import Header, HeaderFault, Tensor, read_local_header
from workers.model.model_file import local_parts
from workers.plan.layers import Layer
from workers.plan.layout import layout_of

F16, Q4_K = 1, 12


def a_header(architecture, tensors, /, *, kind=F16, size_bytes=1 << 50, **values):
    """Return a header with these tensors and these values of the architecture; `__` in a name stands for a dot."""
    named = {f"{architecture}.{name.replace('__', '.')}": value for name, value in values.items()}
    table = tuple(Tensor(name, shape, kind, 0) for name, shape in tensors.items())
    return Header("m.gguf", {"general.architecture": architecture} | named, table, 0, size_bytes)


def attention(layers, width, kv_width):
    shapes = {"attn_q.weight": (width, width), "attn_k.weight": (width, kv_width), "attn_v.weight": (width, kv_width)}
    return {f"blk.{layer}.{name}": shape for layer in layers for name, shape in shapes.items()}


def test_a_token_of_llama_3_1_8b_takes_128_kib():
    # https://huggingface.co/meta-llama/Llama-3.1-8B: 32 layers with 8 KV heads of width 128.
    numbers = {"block_count": 32, "embedding_length": 4096, "attention__head_count": 32, "attention__head_count_kv": 8}
    header = a_header("llama", {"token_embd.weight": (4096, 128256)} | attention(range(32), 4096, 1024), **numbers)
    layout = layout_of([header])
    assert layout.layers == (Layer(1024, 1024),) * 32
    assert sum(2 * (layer.k_width + layer.v_width) for layer in layout.layers) == 128 << 10
    assert (layout.vocabulary, layout.heads) == (128256, 32)


def test_fused_and_unequal_heads_are_computed_from_the_metadata():
    tensors = {"token_embd.weight": (64, 8), "blk.0.attn_qkv.weight": (64, 128), "blk.1.attn_qkv.weight": (64, 96)}
    numbers = {"block_count": 2, "embedding_length": 64, "attention__head_count": 4}
    layout = layout_of([a_header("x", tensors, attention__head_count_kv=(2, 1), **numbers)])
    assert layout.layers == (Layer(32, 32), Layer(16, 16))


@pytest.mark.parametrize(
    ("architecture", "given", "windowed"),
    [
        ("gemma3", {}, [True, True, True, True, True, False, True, True]),
        ("gemma2", {}, [True, False] * 4),
        ("gpt-oss", {}, [True, False] * 4),
        ("new", {"attention__sliding_window_pattern": (True, False) * 4}, [True, False] * 4),
        ("new", {"attention__sliding_window_pattern": 4}, [True, True, True, False] * 2),
        ("new", {}, [False] * 8),
    ],
)
def test_the_layers_with_a_window_are_known(architecture, given, windowed):
    numbers = {"block_count": 8, "embedding_length": 64, "attention__head_count": 4, "attention__sliding_window": 512}
    layout = layout_of([a_header(architecture, attention(range(8), 64, 64), **numbers, **given)])
    assert [layer.kind == "sliding window" for layer in layout.layers] == windowed
    assert {layer.window for layer in layout.layers} <= {0, 512}


def test_linear_attention_with_a_fused_matrix_has_recurrent_memory_and_no_cells():
    # As in Qwen 3 Next: three layers with a state space, whose matrix has the name of fused attention, then attention.
    tensors = attention([3], 64, 32)
    for layer in range(3):
        tensors |= {f"blk.{layer}.attn_qkv.weight": (64, 96), f"blk.{layer}.ssm_conv1d.weight": (4, 96)}
    numbers = {"block_count": 4, "embedding_length": 64, "attention__head_count": 4}
    state = {"ssm__conv_kernel": 4, "ssm__inner_size": 64, "ssm__state_size": 16, "ssm__group_count": 2}
    layout = layout_of([a_header("qwen3next", tensors, **numbers, **state)])
    recurrent = 3 * (64 + 2 * 2 * 16) + 16 * 64
    assert layout.layers == (Layer(recurrent=recurrent),) * 3 + (Layer(32, 32),)


def test_layers_that_share_keys_and_values_and_layers_that_predict_further_tokens_have_no_cells():
    numbers = {"block_count": 4, "embedding_length": 64, "attention__head_count": 4}
    tensors = attention(range(4), 64, 64)
    for given in ({"attention__shared_kv_layers": 1}, {"nextn_predict_layers": 1}):
        layers = layout_of([a_header("x", tensors, **numbers, **given)]).layers
        assert [layer.kind for layer in layers] == ["full attention"] * 3 + ["no memory"]


def test_of_the_experts_only_those_that_compute_a_token_are_active():
    tensors = {
        "token_embd.weight": (256, 10),
        "blk.0.ffn_up_exps.weight": (256, 4, 8),
        "blk.0.ffn_up_shexp.weight": (256, 4),
    }
    numbers = {"block_count": 1, "embedding_length": 256, "expert_count": 8, "expert_used_count": 2}
    layout = layout_of([a_header("x", tensors, kind=Q4_K, **numbers)])
    assert layout.parameters == 256 * (10 + 32 + 4)
    assert layout.active_parameters == 256 * (10 + 8 + 4)
    # 256 weights of the type Q4_K take 144 bytes.
    assert layout.weights_bytes == 144 * (10 + 32 + 4)
    assert (layout.host_bytes, layout.copied_bytes) == (1440, 1440)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"block_count": 0}, "x.block_count=0 is not in 1..512"),
        ({"block_count": 1 << 31}, "x.block_count=2147483648 is not in 1..512"),
        ({"block_count": 1.5}, "m.gguf has x.block_count=1.5, which is not a valid number"),
        ({"embedding_length": -1}, "m.gguf has x.embedding_length=-1"),
        ({"expert_count": 2, "expert_used_count": 3}, "m.gguf claims that 3 of 2 experts compute a token"),
        ({"kind": 4}, "tensor 'token_embd.weight' has the type 4, which is not known"),
        ({"kind": Q4_K}, "has rows of 64 elements, which is not a multiple of 256"),
        (
            {"size_bytes": 100},
            "m.gguf is cut: tensor 'token_embd.weight' ends at byte 1024, and the file has 100 bytes",
        ),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(changes, expected):
    numbers = {"block_count": 1, "embedding_length": 64} | changes
    with pytest.raises(HeaderFault) as caught:
        layout_of([a_header("x", {"token_embd.weight": (64, 8)}, **numbers)])
    assert expected in str(caught.value)


@pytest.mark.parametrize("number", ["9" * 5_000, "x", "\u0663", "-1", ""])
def test_a_tensor_of_no_layer_of_the_model_does_not_count(number):
    tensors = {"token_embd.weight": (64, 8), f"blk.{number}.attn_k.weight": (64, 64)}
    numbers = {"block_count": 1, "embedding_length": 64, "attention__head_count": 4}
    assert layout_of([a_header("x", tensors, **numbers)]).layers == (Layer(),)


def test_a_file_without_architecture_or_tensors_is_refused():
    for header, expected in (
        (Header("m.gguf", {}, (), 0, 0), "m.gguf does not name its architecture"),
        (a_header("x", {}, block_count=1), "m.gguf contains no tensors"),
    ):
        with pytest.raises(HeaderFault, match=expected):
            layout_of([header])


def test_a_model_in_several_files_has_the_layout_of_the_same_model_in_one(tmp_path):
    write_random_model(tmp_path / "whole.gguf")
    copy_gguf(tmp_path / "whole.gguf", tmp_path / "part.gguf", tensors_a_file=8)
    parts = sorted(tmp_path.glob("part-*.gguf"))
    headers = [read_local_header(path) for path in local_parts(str(parts[1]))]
    assert len(headers) == len(parts) > 1
    assert layout_of(headers) == layout_of([read_local_header(tmp_path / "whole.gguf")])
    with pytest.raises(HeaderFault, match=rf"is one of {len(parts)} parts of a model, and 1 were found"):
        layout_of(headers[:1])
    parts[-1].unlink()
    with pytest.raises(ModelError, match=f"these are missing: {parts[-1].name}"):
        local_parts(str(parts[0]))
