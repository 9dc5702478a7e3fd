"""FLOPs by hand: a matrix product of (a x b) and (b x c) is a b c multiplications and as many additions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.flop_counter import flop_registry

from perf_tests.language_model import SMALL, LanguageModel, next_byte_loss
from pytest_ddpperf.instruments.counting.counting import Countable
from pytest_ddpperf.instruments.counting.operators import flops_of
from pytest_ddpperf.records.counts import Counts
from tests.counted import count_step

aten = torch.ops.aten


def counted(run: Callable[[], object], *, warmup: int = 1) -> Counts:
    return count_step(run, Countable(device=torch.device("cpu")), warmup=warmup, steps=0)


def flops_of_training(model: nn.Module, *inputs: torch.Tensor) -> Counts:
    return counted(lambda: model(*inputs).sum().backward())


def test_a_transformer_has_the_flops_of_the_formula() -> None:
    """Per block and token: 2 x weights of its four matrices, 2 x 2 x sequence x width for scores and mixing.

    With width 128, feed-forward 256, 2 blocks, a head of 256 x 128, 2 sequences of 64 tokens:
    weights of a block 128 x 384 + 128 x 128 + 2 x 128 x 256 = 131,072, attention 4 x 64 x 128 = 32,768;
    forward: 128 tokens x (2 blocks x (2 x 131,072 + 32,768) + 2 x 32,768) = 83,886,080.
    Backward is twice that.
    """
    model = LanguageModel(SMALL)
    tokens = torch.randint(256, (2, SMALL.sequence))

    def run() -> None:
        next_byte_loss(model(tokens), tokens).backward()  # type: ignore[no-untyped-call]  # torch

    found = counted(run)
    weights, attention, head = 131_072, 32_768, 32_768
    forward = 128 * (2 * (2 * weights + attention) + 2 * head)
    backward = 2 * forward
    assert forward == 83_886_080
    assert found.totals["flops_forward"] == forward
    assert found.totals["flops_backward"] == backward
    assert found.totals["flops"] == forward + backward
    # 128 tokens x 2 x (forward) or 4 x (backward) x weights
    assert found.details["flops"]["blocks.1.queries_keys_values"] == 128 * 6 * 128 * 384
    assert found.details["flops_backward"]["blocks.0"] == 128 * 2 * attention
    assert found.unstable == {}


class First(nn.Module):
    def forward(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return inputs[0]


@pytest.mark.parametrize(
    ("layers", "shape", "forward", "backward"),
    [
        # 3 x 4 inputs that need no gradient: 2 x 3 x 4 x 8 in forward, and as many for the weight's gradient.
        ([nn.Linear(4, 8)], (3, 4), 192, 192),
        # 5 channels from 3 by kernels of 3 x 3 at 6 x 6 places of 2 pictures: 2 x (3 x 9) x 5 x 36 x 2.
        ([nn.Conv2d(3, 5, 3)], (2, 3, 8, 8), 19_440, 19_440),
        # 4 sequences of 8 steps, 32 rows; 4 gates of 32 from 16 inputs and 32 before: 2 x 32 x 4 x 32 x (16 + 32).
        ([nn.LSTM(16, 32, batch_first=True), First()], (4, 8, 16), 393_216, 2 * 393_216),
    ],
    ids=["linear", "convolution", "recurrent"],
)
def test_a_layer_has_the_flops_of_its_products(
    layers: list[nn.Module], shape: tuple[int, ...], forward: int, backward: int
) -> None:
    found = flops_of_training(nn.Sequential(*layers), torch.ones(shape))
    assert found.details["flops_forward"] == {"0": forward}
    assert found.details["flops_backward"] == {"0": backward}


def test_inference_mode_hides_no_flops() -> None:
    """There, a linear layer arrives whole, and is taken apart into what it is made of."""
    layer = nn.Linear(4, 8)

    def run() -> None:
        with torch.inference_mode():
            layer(torch.ones(3, 4))

    found = counted(run, warmup=0)
    assert found.details["flops"] == {"model": 192.0}
    assert found.details["operators"]["aten.addmm"] == 1.0


def test_a_layer_of_sequences_in_one_jagged_tensor_has_the_flops_of_their_rows() -> None:
    """5 rows of 8, with 8 x 8 weights: 2 x 5 x 64 in forward, and as many for the weight's gradient."""
    layer = nn.Linear(8, 8)

    def run() -> None:
        sequences = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=torch.jagged)
        layer(sequences).values().sum().backward()

    found = counted(run)
    assert (found.totals["flops_forward"], found.totals["flops_backward"]) == (640.0, 640.0)
    assert "aten.linear" not in found.details["operators"]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_sparse_matrix_has_the_flops_of_the_elements_that_it_stores() -> None:
    """10 of 100 elements, each times a row of 4 and added."""
    columns = torch.ones(10, 4)
    for matrix in (torch.eye(10).to_sparse(), torch.eye(10).to_sparse_csr()):
        assert counted(lambda matrix=matrix: matrix @ columns).totals["flops"] == 80.0  # type: ignore[misc]  # bound
        assert counted(lambda matrix=matrix: torch.sparse.mm(matrix, columns)).totals["flops"] == 80.0  # type: ignore[misc]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_product_without_a_shape_is_counted_without_flops() -> None:
    pair = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=torch.strided)
    found = counted(lambda: torch.bmm(pair, pair.transpose(1, 2)))
    assert found.totals["flops"] == 0.0
    assert found.details["operators"]["aten.bmm"] == 1.0


def test_layers_of_a_gpus_library_have_the_same_formula() -> None:
    """Two layers with biases, and for backward twice as much: 2 x 32 x 4 x 32 x (16 + 32 + 32 + 32)."""
    layer = nn.LSTM(16, 32, 2)
    weights = list(layer.parameters())
    forward, backward = aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default
    inputs = torch.ones(8, 4, 16)
    assert flops_of(forward, (inputs, weights, 4), {}, None) == 917_504
    assert flops_of(backward, (inputs, weights, 4), {}, None) == 2 * 917_504


def encoder() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)


def test_an_encoder_in_one_operator_has_the_flops_of_its_parts() -> None:
    """32 rows x 2 x (3 x 256 + 256 + 2 x 512) for matrices, 4 sequences x 4 x 8 x 8 x 16 for attention."""
    inputs, layer = torch.ones(4, 8, 16), encoder().eval()

    def run() -> None:
        with torch.no_grad():
            layer(inputs)

    found = counted(run, warmup=0)
    assert found.details["operators"] == {"aten._transformer_encoder_layer_fwd": 1.0}
    assert found.totals["flops"] == 131_072 + 16_384
    assert found.totals["flops"] == flops_of_training(encoder(), inputs).totals["flops_forward"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_omits_the_padding() -> None:
    """Of 2 sequences one has 8 rows, one 3: 11 x 2 x 2048 for matrices, 4 x 16 x (64 + 9) for attention."""
    stack = nn.TransformerEncoder(encoder(), 1).eval()
    padded = torch.arange(8) >= torch.tensor([[8], [3]])

    def run() -> None:
        with torch.no_grad():
            stack(torch.ones(2, 8, 16), src_key_padding_mask=padded)

    assert counted(run, warmup=0).totals["flops"] == 45_056 + 4_672


def test_attention_in_one_operator_has_the_flops_of_its_parts() -> None:
    """32 rows x 2 x 4 x 256, and 16,384 as above."""
    inputs, layer = torch.ones(4, 8, 16), nn.MultiheadAttention(16, 2, batch_first=True).eval()

    def run() -> None:
        with torch.no_grad():
            layer(inputs, inputs, inputs)

    found = counted(run, warmup=0)
    assert "aten._native_multi_head_attention" in found.details["operators"]
    assert found.totals["flops"] == 65_536 + 16_384


@pytest.mark.parametrize(("fused", "heads"), [(True, 4), (True, 2), (False, 4)])
def test_attention_has_as_many_flops_fused_as_written_out_or_with_shared_heads(heads: int, *, fused: bool) -> None:
    """4 heads of 8, 16 tokens: 4 x 4 x 16 x 16 x 8 forward, and twice as much backward.

    The fused attention computes the scores again in backward, which is no work of the model.
    """
    query = torch.ones(1, 4, 16, 8, requires_grad=True)
    key, value = (torch.ones(1, heads, 16, 8, requires_grad=True) for _ in range(2))

    def run() -> None:
        if fused:
            attended = functional.scaled_dot_product_attention(query, key, value, enable_gqa=heads < 4)
        else:
            attended = (query @ key.mT).softmax(-1) @ value
        attended.sum().backward()  # type: ignore[no-untyped-call]  # torch's own

    found = counted(run)
    assert ("aten._scaled_dot_product_flash_attention_for_cpu" in found.details["operators"]) is fused
    assert (found.totals["flops_forward"], found.totals["flops_backward"]) == (32_768, 65_536)


@pytest.mark.skipif(not any("flex" in str(known) for known in flop_registry), reason="this torch has no formula for it")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_of_higher_order_has_the_flops_of_attention() -> None:
    """2 heads of 8, 16 tokens: 2 x 4 x 16 x 16 x 8."""
    part = torch.ones(1, 2, 16, 8)
    found = counted(lambda: flex_attention(part, part, part))
    assert found.totals["flops"] == 16_384


def test_a_matrix_times_a_vector_has_flops() -> None:
    matrix, vector = nn.Parameter(torch.ones(8, 4)), torch.ones(4)
    found = counted(lambda: torch.addmv(torch.ones(8), matrix, matrix.T @ (matrix @ vector)))
    assert found.totals["flops"] == 3 * 2 * 8 * 4


@pytest.mark.parametrize(
    ("run", "flops"),
    [
        # A batch of 3 products of 4 x 5 and 5 x 6.
        (lambda ones: torch.addbmm(ones(4, 6), ones(3, 4, 5), ones(3, 5, 6)), 720),
        (lambda ones: torch.zeros(4, 6).addbmm_(ones(3, 4, 5), ones(3, 5, 6)), 720),
        (lambda ones: torch.zeros(3, 4, 6).baddbmm_(ones(3, 4, 5), ones(3, 5, 6)), 720),
        (lambda ones: torch.zeros(4, 6).addmm_(ones(4, 5), ones(5, 6)), 240),
        # 9 - 3 + 1 places of 2 sequences, each 2 x 3 x 4 x 5; backward visits the same places.
        (lambda ones: torch.conv_tbc(ones(9, 2, 4), ones(3, 4, 5), ones(5)), 1680),
    ],
)
def test_products_that_are_added_up_have_the_flops_of_the_products(
    run: Callable[[Callable[..., torch.Tensor]], torch.Tensor], flops: int
) -> None:
    ones = partial(torch.ones, requires_grad=True)
    found = counted(lambda: run(ones).sum().backward())  # type: ignore[no-untyped-call]  # torch
    assert (found.totals["flops_forward"], found.totals["flops_backward"]) == (flops, 2 * flops)


def test_products_of_integers_have_flops() -> None:
    ones = torch.ones(32, 32, dtype=torch.int8)
    assert counted(lambda: torch._int_mm(ones, ones)).totals["flops"] == 2 * 32**3


@pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="torch has it since 2.10")
def test_experts_have_the_flops_of_their_rows() -> None:
    """8 rows, 3 for one and 5 for the other of two 16 x 32: 2 x 8 x 16 x 32, and as many for the gradient of each."""
    rows, experts = (torch.ones(shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((8, 16), (2, 16, 32)))
    ends = torch.tensor([3, 8], dtype=torch.int32)

    def run() -> None:
        functional.grouped_mm(rows, experts, offs=ends).square().sum().backward()  # type: ignore[no-untyped-call]  # torch

    found = counted(run)
    assert (found.totals["flops_forward"], found.totals["flops_backward"]) == (8192, 2 * 8192)


@pytest.mark.skipif(not hasattr(functional, "scaled_mm"), reason="torch has it since 2.10")
def test_products_with_scales_have_the_flops_of_their_shapes() -> None:
    """16 x 32 times 32 x 16: 2 x 16 x 32 x 16. 8 rows of 16, each times one of two 16 x 32: 2 x 8 x 16 x 32."""
    each = functional.ScalingType.TensorWise
    rows, scale = torch.ones(16, 32).to(torch.float8_e4m3fn), torch.tensor(1.0)

    def run() -> None:
        with torch.no_grad():
            functional.scaled_mm(rows, rows.t(), scale, each, scale, each, output_dtype=torch.bfloat16)

    assert counted(run).totals["flops"] == 2 * 16 * 32 * 16
    experts = torch.ones(8, 16), torch.ones(2, 16, 32), [scale], [0], [0], [scale], [0], [0]
    assert flops_of(aten._scaled_grouped_mm_v2.default, experts, {}, None) == 2 * 8 * 16 * 32


@pytest.mark.skipif(not hasattr(aten, "_grouped_mm"), reason="torch has it since 2.8")
def test_a_grouped_matrix_product_has_the_flops_of_its_column_groups() -> None:
    """Two of 4 x 16, each times its part of 16 x 32."""
    assert flops_of(aten._grouped_mm.default, (torch.ones(2, 4, 16), torch.ones(16, 32)), {}, None) == 2 * 4 * 16 * 32
