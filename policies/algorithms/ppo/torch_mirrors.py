"""Mirror images on the torch path; see `policies.learning.fused.symmetry`, whose meaning this is."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from policies.learning.fused.symmetry import Images
from policies.learning.networks import Normalizer

Indices = tuple[Tensor, Tensor]  # places and signs (images, size)


def on(images: Images, device: str) -> Indices:
    """As tensors."""
    return torch.from_numpy(images.places).to(device), torch.from_numpy(images.signs).to(device)


class Equivariant:
    """Keeps the linear layers of a perceptron equivariant. ValueError where they are no multiples of the images."""

    def __init__(self, network: nn.Sequential, inputs: Images, outputs: Images, device: str) -> None:
        layers = [layer for layer in network if isinstance(layer, nn.Linear)]
        many = len(inputs.places)
        hidden = [layer.out_features for layer in layers[:-1]]
        if not hidden or any(units % many for units in hidden):
            raise ValueError(f"{many} mirror images need hidden layers of a multiple of {many} units, got {hidden}")
        image = torch.arange(many)[:, None]
        units = [(torch.arange(n) ^ image).to(device) for n in hidden]
        between = [(places, torch.ones(places.shape, device=device)) for places in units]
        self.inputs, self.outputs = on(inputs, device), on(outputs, device)
        self._layers = [*zip(layers, pairwise([self.inputs, *between, self.outputs]), strict=True)]
        with torch.no_grad():
            for layer, (before, after) in self._layers:
                layer.weight.copy_(math.sqrt(many) * _projected(layer.weight, before, after))
                layer.bias.copy_(_mean(layer.bias, after))

    def average(self) -> None:
        """The gradients of the layers, over the images."""
        for layer, (before, after) in self._layers:
            assert layer.weight.grad is not None and layer.bias.grad is not None
            layer.weight.grad.copy_(_projected(layer.weight.grad, before, after))
            layer.bias.grad.copy_(_mean(layer.bias.grad, after))

    def alike(self, gradient: Tensor) -> None:
        """The same of one of numbers (outputs,) that have no sign."""
        gradient.copy_(gradient[self.outputs[0]].mean(0))

    def normalise(self, normalizer: Normalizer) -> None:
        """Let it know what is usual in all images."""
        places, signs = self.inputs
        mean, square = normalizer.mean, normalizer.variance + normalizer.mean**2
        mean = (mean[places] * signs).mean(0)
        variance = square[places].mean(0) - mean**2
        normalizer.load_state_dict({"mean": mean, "variance": variance, "count": normalizer.count})


def _mean(vector: Tensor, of: Indices) -> Tensor:
    return (vector[of[0]] * of[1]).mean(0)


def _projected(weight: Tensor, before: Indices, after: Indices) -> Tensor:
    """A matrix (outputs, inputs)."""
    turned = [
        weight[out][:, at] * sign[:, None] * factor for at, factor, out, sign in zip(*before, *after, strict=True)
    ]
    return torch.stack(turned).mean(0)
