"""Updates the demo model's weights: matrices by Muon, and the embedding and the norms by AdamW."""

from collections.abc import Sequence
from typing import Any

import torch

from tools.demo_model.network import Tensor, Tensors

WEIGHT_DECAY = 0.05
_MOMENTUM = 0.95
#: A step of Muon has this root mean square for each element, as one of AdamW has, so that both use the same rate (Liu
#: et al., "Muon is Scalable for LLM Training", 2025).
_STEP_SIZE = 0.2
#: Newton-Schulz iterations and their coefficients, which bring singular values near 1 (Jordan et al., "Muon", 2024).
_ITERATIONS, _COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)
_LEAST_NORM = 1e-7


class Optimizer:
    """Muon for the matrices within the blocks, AdamW for all other weights.

    `torch.optim.Muon` computes in bfloat16, one matrix at a time. On a processor without bfloat16, that takes four
    times as long as this class, which computes matrices of one shape together in float32.
    """

    def __init__(self, tensors: Tensors) -> None:
        blocks = {name: values for name, values in tensors.items() if name.startswith("blk.") and values.ndim == 2}
        others = [values for name, values in tensors.items() if name not in blocks]
        self._tensors = tensors
        self._momenta = {name: torch.zeros_like(values) for name, values in blocks.items()}
        decayed = [values for values in others if values.ndim > 1]
        kept = [values for values in others if values.ndim == 1]
        groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": kept, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep."""
        return {"adam": self._adam.state_dict(), "momenta": self._momenta}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` has returned."""
        self._adam.load_state_dict(state["adam"])
        self._momenta = state["momenta"]

    def forget_gradients(self) -> None:
        """Remove all gradients."""
        for values in self._tensors.values():
            values.grad = None

    def step(self, rate: float) -> None:
        """Update all weights by their gradients with the learning rate `rate`."""
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        with torch.no_grad():
            for names in self._names_by_shape():
                self._step_together(names, rate)

    def _names_by_shape(self) -> list[list[str]]:
        by_shape: dict[tuple[int, ...], list[str]] = {}
        for name in self._momenta:
            by_shape.setdefault(tuple(self._tensors[name].shape), []).append(name)
        return list(by_shape.values())

    def _step_together(self, names: Sequence[str], rate: float) -> None:
        """Update matrices of one shape."""
        updates = []
        for name in names:
            gradient, momentum = self._tensors[name].grad, self._momenta[name]
            momentum.lerp_(gradient, 1 - _MOMENTUM)
            updates.append(gradient.lerp(momentum, _MOMENTUM))
        for name, direction in zip(names, _orthogonal(torch.stack(updates)), strict=True):
            values = self._tensors[name]
            values.mul_(1 - rate * WEIGHT_DECAY)
            values.add_(direction, alpha=-rate * _STEP_SIZE * max(values.shape) ** 0.5)


def _orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices (count, rows, columns) with the same singular vectors and singular values near 1."""
    if matrices.shape[1] > matrices.shape[2]:
        return _orthogonal(matrices.mT).mT
    first, third, fifth = _COEFFICIENTS
    values = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + _LEAST_NORM)
    for _ in range(_ITERATIONS):
        square = values @ values.mT
        values = first * values + (third * square + fifth * square @ square) @ values
    return values
