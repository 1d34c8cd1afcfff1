"""PyTorch networks of the catalogue: positional inputs, and a tensor or a plain tuple of tensors as result.

Import this file only where torch and transformers are installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    EfficientNetConfig,
    EfficientNetForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    PreTrainedConfig,
    RegNetConfig,
    RegNetForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    SwinConfig,
    SwinForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.efficientnet.modeling_efficientnet import EfficientNetFinalBlockLayer
from transformers.models.mobilenet_v2.modeling_mobilenet_v2 import MobileNetV2InvertedResidual
from transformers.models.regnet.modeling_regnet import RegNetXLayer, RegNetYLayer
from transformers.models.resnet.modeling_resnet import ResNetBasicLayer, ResNetBottleNeckLayer

from mononn_bench.models.clips import ClipBlock, R3d
from mononn_bench.models.layers import Unit
from mononn_bench.models.mobilenetv3 import InvertedResidual, MobileNetV3
from mononn_bench.models.sequences import LstmClassifier, WaveNet
from mononn_bench.models.unet import Unet
from mononn_bench.models.zoo import ModelSpec

Attention = Literal["eager", "sdpa"]


class Encoder(nn.Module):
    """BERT: (last_hidden_state [b, n, h], pooler_output [b, h]) of token, mask and segment numbers [b, n]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        result = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return result.last_hidden_state, result.pooler_output


class EncoderDecoder(nn.Module):
    """T5, one pass: logits [b, m, vocabulary] of all m decoder positions at once, their tokens given (teacher forcing);
    token and mask numbers [b, n], decoder's token numbers [b, m].
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.t5 = T5ForConditionalGeneration(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        result = self.t5(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False
        )
        return result.logits


class Classifier(nn.Module):
    """An image classifier of transformers: logits [b, labels] of images [b, 3, h, w]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.network(pixel_values=pixel_values).logits


class Bottleneck(nn.Module):
    """ResNeXt's block (Xie et al. 2017, figure 3c): 1x1, 3x3 in groups, 1x1, added to the shortcut, ReLU."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.reduce = Unit((inputs, width), 1)
        self.grouped = Unit((width, width), 3, stride, groups)
        self.expand = Unit((width, outputs), 1, activation=None)
        changed = stride != 1 or inputs != outputs
        self.shortcut = Unit((inputs, outputs), 1, stride, activation=None) if changed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.expand(self.grouped(self.reduce(x))) + self.shortcut(x))


def branch_ends(network: nn.Module) -> Iterator[nn.Module]:
    """The last batch norm of every branch that is added to a shortcut."""
    for block in network.modules():
        if isinstance(block, Bottleneck):
            yield block.expand.normalization
        elif isinstance(block, ClipBlock):
            yield block.second.normalization
        elif isinstance(block, InvertedResidual) and block.adds:
            yield block.project.normalization
        elif isinstance(block, ResNetBasicLayer | ResNetBottleNeckLayer | RegNetXLayer | RegNetYLayer):
            yield block.layer[-1].normalization
        elif isinstance(block, MobileNetV2InvertedResidual) and block.use_residual:
            yield block.reduce_1x1.normalization
        elif isinstance(block, EfficientNetFinalBlockLayer) and block.apply_dropout:  # what it calls being added
            yield block.project_bn


class ResNeXt(nn.Module):
    """ResNeXt (Xie et al. 2017): stages of `depths` blocks, `groups` groups of `group_width` channels in the first
    stage, twice as wide in each further one; logits [b, labels] of images [b, 3, h, w].
    """

    def __init__(self, depths: tuple[int, ...], groups: int, group_width: int, stem: int, labels: int) -> None:
        super().__init__()
        self.stem = Unit((3, stem), 7, 2)
        blocks: list[nn.Module] = []
        inputs = stem
        for stage, depth in enumerate(depths):
            width, outputs = groups * group_width << stage, stem * 4 << stage
            for block in range(depth):
                stride = 2 if stage and block == 0 else 1
                blocks.append(Bottleneck(inputs, width, outputs, stride, groups))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, labels)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.stem(pixel_values), 3, 2, 1)
        x = nn.functional.adaptive_avg_pool2d(self.blocks(x), 1)
        return self.classifier(torch.flatten(x, 1))


class Mlp(nn.Module):
    """`layers` times Linear(width, width) followed by ReLU; x [b, width] -> y [b, width]."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Identity(nn.Module):
    """x -> a copy of x: what a call costs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def _efficientnet(options: Mapping[str, Any]) -> nn.Module:
    """EfficientNet (Tan and Le 2019) with the global mean it ends in: transformers asks for means of windows as long as
    there are channels, which lie mostly outside the image.
    """
    network = EfficientNetForImageClassification(EfficientNetConfig(**options))
    network.efficientnet.pooler = nn.AdaptiveAvgPool2d(1)
    return Classifier(network)


def _configured(kind: type[PreTrainedConfig], options: Mapping[str, Any], attention: Attention) -> Any:
    config = kind(**options)
    config._attn_implementation = attention
    return config


Make = Callable[[dict[str, Any], Attention], nn.Module]
FAMILIES: dict[str, Make] = {
    "bert": lambda options, attention: Encoder(_configured(BertConfig, options, attention)),
    "t5": lambda options, attention: EncoderDecoder(_configured(T5Config, options, attention)),
    "vit": lambda options, attention: Classifier(ViTForImageClassification(_configured(ViTConfig, options, attention))),
    "swin": lambda options, attention: Classifier(
        SwinForImageClassification(_configured(SwinConfig, options, attention))
    ),
    "resnet": lambda options, _: Classifier(ResNetForImageClassification(ResNetConfig(**options))),
    "mobilenet": lambda options, _: Classifier(MobileNetV2ForImageClassification(MobileNetV2Config(**options))),
    "resnext": lambda options, _: ResNeXt(**options),
    "regnet": lambda options, _: Classifier(RegNetForImageClassification(RegNetConfig(**options))),
    "efficientnet": lambda options, _: _efficientnet(options),
    "mobilenetv3": lambda options, _: MobileNetV3(**options),
    "unet": lambda options, _: Unet(**options),
    "r3d": lambda options, _: R3d(**options),
    "wavenet": lambda options, _: WaveNet(**options),
    "lstm": lambda options, _: LstmClassifier(**options),
    "mlp": lambda options, _: Mlp(**options),
    "identity": lambda *_: Identity(),
    "grouped": lambda options, _: nn.Conv2d(**options),
}


def make_network(spec: ModelSpec, attention: Attention) -> nn.Module:
    """The catalogued network with whatever weights its constructor leaves."""
    return FAMILIES[spec.family](dict(spec.config), attention)
