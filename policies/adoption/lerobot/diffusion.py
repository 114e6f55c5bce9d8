"""Diffusion policy (arXiv:2303.04137), as LeRobot lays it out: a U-net over time takes the noise out of a chunk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from deploy.policy_file import PolicyFileError
from policies.adoption.lerobot.folder import ACTION, Folder, Settings
from policies.adoption.lerobot.modules import (
    STAGES,
    WIDTHS,
    FrozenNorm,
    Normalised,
    filled,
    picture,
    resnet,
    seen_by_resnet,
)
from policies.models.networks import Array

UNROLLED = 20  # evaluations of the network that are written into a file
TAIL = 0.999  # the largest beta of the cosine's schedule


class Keypoints(nn.Module):
    """Where each channel's softmax lies, (n, 2 k) in -1 to 1: column, row."""

    def __init__(self, channels: int, count: int, height: int, across: int) -> None:
        super().__init__()
        self.nets = nn.Conv2d(channels, count, 1)
        self.register_buffer("pos_grid", torch.empty(height * across, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        likely = torch.softmax(self.nets(x).flatten(2), dim=-1)
        return (likely @ self.pos_grid).flatten(1)  # type: ignore[operator]


class Eye(nn.Module):
    """A picture (n, 3, h, w) -> numbers (n, k)."""

    def __init__(self, folder: Folder, height: int, across: int) -> None:
        super().__init__()
        told = folder.settings
        self.cut: tuple[int, int, int, int] | None = None
        if told.has("crop_shape"):
            sides = told.wholes("crop_shape")
            if len(sides) != 2 or sides[0] > height or sides[1] > across:
                raise PolicyFileError(f"{told.path}: crop_shape {sides} does not fit into {height} x {across}")
            top, left = (round((whole - side) / 2.0) for whole, side in ((height, sides[0]), (across, sides[1])))
            self.cut, (height, across) = (top, left, *sides), sides

        def grouped(channels: int) -> nn.Module:
            return nn.GroupNorm(channels // 16, channels)

        norm = grouped if told.flag("use_group_norm") else FrozenNorm
        self.backbone = nn.Sequential(*(m for _, m in resnet(told.word("vision_backbone", *STAGES), norm)))
        height, across = seen_by_resnet(height, across)
        count = told.whole("spatial_softmax_num_keypoints", 10_000)
        self.pool, self.out = Keypoints(WIDTHS[-1], count, height, across), nn.Linear(2 * count, 2 * count)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cut is not None:
            top, left, height, across = self.cut
            x = x[:, :, top : top + height, left : left + across]
        return torch.relu(self.out(self.pool(self.backbone(x))))


class Conv(nn.Module):
    """Convolution over time, group normalisation, Mish."""

    def __init__(self, before: int, after: int, kernel: int, groups: int) -> None:
        super().__init__()
        made = nn.Conv1d(before, after, kernel, padding=kernel // 2)
        self.block = nn.Sequential(made, nn.GroupNorm(groups, after), nn.Mish())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.block(x)
        return y


class Residual(nn.Module):
    """Two convolutions, between them a shift (and a scale) that the condition says (FiLM, arXiv:1709.07871)."""

    def __init__(self, before: int, after: int, condition: int, told: Settings) -> None:
        super().__init__()
        kernel, groups = told.whole("kernel_size", 99), told.whole("n_groups")
        self.scales, self.after = told.flag("use_film_scale_modulation"), after
        self.conv1, self.conv2 = Conv(before, after, kernel, groups), Conv(after, after, kernel, groups)
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(condition, after * (2 if self.scales else 1)))
        self.residual_conv = nn.Conv1d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        y, film = self.conv1(x), self.cond_encoder(condition).unsqueeze(-1)
        y = film[:, : self.after] * y + film[:, self.after :] if self.scales else y + film
        z: torch.Tensor = self.conv2(y) + self.residual_conv(x)
        return z


class Unet(nn.Module):
    """A noisy chunk (n, horizon, actions), the time's embedding and the condition -> what is predicted of it."""

    def __init__(self, folder: Folder, seen: int) -> None:
        super().__init__()
        told = folder.settings
        widths, size = told.wholes("down_dims"), told.whole("diffusion_step_embed_dim")
        if size % 2 or size < 4:
            raise PolicyFileError(f"{told.path}: diffusion_step_embed_dim is {size}; needs an even number from 4")
        self.size, condition = size, size + seen
        self.diffusion_step_encoder = nn.Sequential(
            nn.Identity(), nn.Linear(size, 4 * size), nn.Mish(), nn.Linear(4 * size, size)
        )
        pairs = list(zip((folder.actions, *widths[:-1]), widths, strict=True))

        def level(before: int, after: int, between: nn.Module) -> nn.ModuleList:
            blocks = (Residual(before, after, condition, told), Residual(after, after, condition, told))
            return nn.ModuleList([*blocks, between])

        self.down_modules = nn.ModuleList(
            level(before, after, nn.Conv1d(after, after, 3, 2, 1) if k < len(pairs) - 1 else nn.Identity())
            for k, (before, after) in enumerate(pairs)
        )
        self.mid_modules = nn.ModuleList(Residual(widths[-1], widths[-1], condition, told) for _ in range(2))
        self.up_modules = nn.ModuleList(
            level(2 * after, before, nn.ConvTranspose1d(before, before, 4, 2, 1))
            for before, after in reversed(pairs[1:])
        )
        first = Conv(widths[0], widths[0], told.whole("kernel_size", 99), 8)
        self.final_conv = nn.Sequential(first, nn.Conv1d(widths[0], folder.actions, 1))

    def forward(self, x: torch.Tensor, time: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """`time` (1, size): sines and cosines of the step."""
        x, skipped = x.transpose(1, 2), list[torch.Tensor]()
        told = self.diffusion_step_encoder(time)
        condition = torch.cat([told + seen[:, :1] * 0.0, seen], dim=-1)
        for level in self.down_modules:
            first, second, smaller = cast(nn.ModuleList, level)
            x = second(first(x, condition), condition)
            skipped.append(x)
            x = smaller(x)
        for block in self.mid_modules:
            x = block(x, condition)
        for level in self.up_modules:
            first, second, larger = cast(nn.ModuleList, level)
            x = larger(second(first(torch.cat([x, skipped.pop()], dim=1), condition), condition))
        y: torch.Tensor = self.final_conv(x).transpose(1, 2)
        return y


@dataclass(frozen=True)
class Sampler:
    """DDIM without noise of its own (arXiv:2010.02502, eta = 0), as diffusers 0.35 sets its steps ("leading")."""

    times: tuple[int, ...]
    alphas: tuple[tuple[float, float], ...]  # products of 1 - beta: at this step, and at the next one
    epsilon: bool  # the network predicts the noise, else the chunk
    clip: float | None

    @classmethod
    def of(cls, told: Settings, steps: int) -> Sampler:
        """Of the configuration; `steps`: evaluations, 0 as many as it says."""
        kind, trained = told.word("noise_scheduler_type", "DDIM", "DDPM"), told.whole("num_train_timesteps", 10_000)
        own = told.whole("num_inference_steps") if told.has("num_inference_steps") else trained
        if not steps and (kind == "DDPM" or own > UNROLLED):
            raise PolicyFileError(
                f"{told.path}: it samples by {kind} in {own} steps; say sampler: {{steps: 10}} in the description, at "
                f"most {UNROLLED}: then it is sampled by DDIM, whose only noise is what it begins with"
            )
        count = steps or own
        if not 1 <= count <= min(UNROLLED, trained):
            raise PolicyFileError(f"{told.path}: sampler.steps {count}: needs 1 to {min(UNROLLED, trained)}")
        product = np.cumprod(1.0 - betas(told, trained).astype(np.float32), dtype=np.float32)
        stride = trained // count
        times = [int(k) * stride for k in range(count)][::-1]
        before = [float(product[t - stride]) if t >= stride else 1.0 for t in times]  # set_alpha_to_one
        epsilon = told.word("prediction_type", "epsilon", "sample") == "epsilon"
        clip = told.number("clip_sample_range") if told.flag("clip_sample") else None
        return cls(tuple(times), tuple(zip(map(float, product[times]), before, strict=True)), epsilon, clip)


def betas(told: Settings, count: int) -> Array:
    """How much noise each step of training adds, (count,): linear, of square roots, or the squared cosine's."""
    kind = told.word("beta_schedule", "squaredcos_cap_v2", "linear", "scaled_linear")
    low, high = told.number("beta_start"), told.number("beta_end")
    if kind != "squaredcos_cap_v2" and not (0.0 < low < 1.0 and 0.0 < high < 1.0):
        raise PolicyFileError(f"{told.path}: beta_start is {low:g}, beta_end {high:g}; both lie between 0 and 1")
    if kind == "linear":
        return np.linspace(low, high, count, dtype=np.float32)
    if kind == "scaled_linear":
        return np.linspace(math.sqrt(low), math.sqrt(high), count, dtype=np.float32) ** 2

    def left(share: float) -> float:
        return math.cos((share + 0.008) / 1.008 * math.pi / 2.0) ** 2

    return np.array([min(1.0 - left((k + 1) / count) / left(k / count), TAIL) for k in range(count)], np.float32)


class Model(nn.Module):
    """The parameters as the file calls them."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        told, size = folder.settings, sum(folder.numbers.values())
        eyes = [Eye(folder, *sides) for sides in folder.pictures.values()]
        self.own = bool(eyes) and told.flag("use_separate_rgb_encoder_per_camera")
        if len(set(folder.pictures.values())) > 1:
            raise PolicyFileError(f"{told.path}: input_features: its pictures are not of one size")
        if eyes:
            size += sum(2 * told.whole("spatial_softmax_num_keypoints") for _ in eyes)
            self.rgb_encoder: nn.Module = nn.ModuleList(eyes) if self.own else eyes[0]
        self.size = size
        self.unet = Unet(folder, size * told.whole("n_obs_steps", 16))


class Seen(nn.Module):
    """Numbers (n, k) and pictures -> what is kept of one step (n, size): state, pictures, environment."""

    def __init__(self, folder: Folder, model: Model) -> None:
        super().__init__()
        self.model, self.sizes = model, list(folder.numbers.values())
        self.numbers = nn.ModuleList([Normalised(folder.normalisers.get(name)) for name in folder.numbers])
        self.pictures = nn.ModuleList([Normalised(folder.normalisers.get(name)) for name in folder.pictures])

    def forward(self, numbers: torch.Tensor, pictures: tuple[torch.Tensor, ...] = ()) -> torch.Tensor:
        parts = [n(part) for n, part in zip(self.numbers, numbers.split(self.sizes, dim=1), strict=True)]
        shown = [n(picture(x)) for n, x in zip(self.pictures, pictures, strict=True)]
        encoder: Any = getattr(self.model, "rgb_encoder", None)
        eyes: list[Any] = list(encoder) if self.model.own else [encoder] * len(shown)
        looked = [eye(x) for eye, x in zip(eyes, shown, strict=True)]
        return torch.cat([parts[0], *looked, *parts[1:]], dim=1)


class Denoised(nn.Module):
    """What was seen (n, steps * size) and noise (n, horizon * actions) -> a chunk as the robot takes it."""

    def __init__(self, folder: Folder, model: Model, sampler: Sampler) -> None:
        super().__init__()
        self.unet, self.sampler, self.actions = model.unet, sampler, folder.actions
        self.first = folder.settings.whole("n_obs_steps", 16) - 1  # actions before that are of the past
        self.action = Normalised(folder.normalisers.get(ACTION))
        half = self.unet.size // 2
        wave = torch.exp(torch.arange(half) * -(math.log(10_000) / (half - 1)))
        turns = torch.tensor(sampler.times, dtype=torch.float32)[:, None] * wave[None]
        self.register_buffer("times", torch.cat([turns.sin(), turns.cos()], dim=-1), persistent=False)

    def forward(self, seen: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        x = noise.unflatten(1, (-1, self.actions))
        for k, (now, then) in enumerate(self.sampler.alphas):
            out = self.unet(x, self.times[k : k + 1], seen)  # type: ignore[index]
            whole = (x - math.sqrt(1.0 - now) * out) / math.sqrt(now) if self.sampler.epsilon else out
            rest = out if self.sampler.epsilon else (x - math.sqrt(now) * whole) / math.sqrt(1.0 - now)
            clip = self.sampler.clip
            whole = whole if clip is None else whole.clamp(-clip, clip)
            x = math.sqrt(then) * whole + math.sqrt(1.0 - then) * rest
        return self.action.back(x[:, self.first :]).flatten(1)


class Named(nn.Module):
    """The model under the name that the file's weights begin with."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.diffusion = Model(folder)


def from_diffusion(folder: Folder, steps: int) -> tuple[Seen, Denoised, int, int, int]:
    """What sees, what plans, the steps that it sees, the actions in a plan, and how many of them are carried out."""
    told = folder.settings
    told.nothing("resize_shape", "a picture that is resized is not adopted: let the camera give that size")
    if not folder.numbers or "observation.state" not in folder.numbers:
        raise PolicyFileError(f"{told.path}: input_features: a diffusion policy needs observation.state")
    sampler, looks = Sampler.of(told, steps), told.whole("n_obs_steps", 16)
    widths, horizon = told.wholes("down_dims"), told.whole("horizon", 1000)
    if horizon % 2 ** (len(widths) - 1):
        raise PolicyFileError(f"{told.path}: horizon {horizon} is no multiple of {2 ** (len(widths) - 1)}")
    left = horizon - looks + 1
    named = filled(folder.path, lambda: Named(folder), folder.tensors, ())
    assert isinstance(named, Named)
    seen, plans = Seen(folder, named.diffusion).eval(), Denoised(folder, named.diffusion, sampler).eval()
    return seen, plans, looks, left, told.whole("n_action_steps", max(1, left))
