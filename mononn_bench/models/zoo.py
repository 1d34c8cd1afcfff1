"""The catalogue of models: sizes, inputs and outputs as plain data. Nothing here imports a framework."""

from __future__ import annotations

import re
from dataclasses import replace

from mononn_bench.errors import ModelError, UnknownNameError
from mononn_bench.models.grouped import grouped_model
from mononn_bench.models.spec import HubSource, InputSpec, ModelSpec, image_classifier
from mononn_bench.models.wide import WIDE


def _bert(name: str, *, tokens: int, layers: int, hidden: int, heads: int, ffn: int, vocab: int, positions: int,
          full_size: bool = False, hub: HubSource | None = None) -> ModelSpec:  # fmt: skip
    shape = (1, tokens)
    return ModelSpec(
        name=name,
        family="bert",
        config={
            "vocab_size": vocab,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": ffn,
            "max_position_embeddings": positions,
            "type_vocab_size": 2,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        inputs=(
            InputSpec("input_ids", "int64", shape, "tokens", vocab),
            InputSpec("attention_mask", "int64", shape, "mask", 2),
            InputSpec("token_type_ids", "int64", shape, "segments", 2),
        ),
        outputs=("last_hidden_state", "pooler_output"),
        full_size=full_size,
        summary=f"BERT encoder, {layers} layers, {hidden} wide, {heads} heads, {tokens} tokens, padding mask",
        hub=hub,
    )


def _vit(name: str, *, size: int, layers: int, hidden: int, heads: int, ffn: int, labels: int,
         full_size: bool = False, hub: HubSource | None = None) -> ModelSpec:  # fmt: skip
    config = {
        "image_size": size,
        "patch_size": 16,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "num_labels": labels,
    }
    tokens = (size // 16) ** 2 + 1
    summary = f"vision transformer, {layers} layers, {hidden} wide, {heads} heads, {tokens} tokens of 16x16 pixels"
    return image_classifier(name, "vit", config, size, summary, full_size, hub)


def _t5(name: str, *, tokens: int, answer: int, layers: int, hidden: int, heads: int, head: int, ffn: int, vocab: int,
        full_size: bool = False, hub: HubSource | None = None) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        name=name,
        family="t5",
        config={
            "vocab_size": vocab,
            "d_model": hidden,
            "d_kv": head,
            "d_ff": ffn,
            "num_layers": layers,
            "num_decoder_layers": layers,
            "num_heads": heads,
            "dropout_rate": 0.0,
        },
        inputs=(
            InputSpec("input_ids", "int64", (1, tokens), "tokens", vocab),
            InputSpec("attention_mask", "int64", (1, tokens), "mask", 2),
            InputSpec("decoder_input_ids", "int64", (1, answer), "tokens", vocab),
        ),
        outputs=("logits",),
        full_size=full_size,
        summary=f"T5 encoder and decoder, {layers} layers each, {hidden} wide, {heads} heads: {tokens} tokens in, "
        f"{answer} out, one teacher-forced pass",
        hub=hub,
    )


def _light(name: str, file: str, output: str, prefix: str = "") -> ModelSpec:
    return ModelSpec(
        name=f"light-{name}",
        family="light",
        config={"file": f"light_{file}.onnx"},
        inputs=(InputSpec(f"{prefix}data_0", "float32", (1, 3, 224, 224), "image", scale=PIXEL_STD),),
        outputs=(f"{prefix}{output}",),
        full_size=True,
        summary=f"{file} of the onnx package's light networks (opset 9), its weights drawn anew, 224x224 image",
    )


def _resnet(name: str, *, size: int, depths: tuple[int, ...], stem: int, labels: int,
            full_size: bool = False, hub: HubSource | None = None) -> ModelSpec:  # fmt: skip
    config = {
        "embedding_size": stem,
        "hidden_sizes": [stem * 4 << stage for stage in range(len(depths))],
        "depths": list(depths),
        "num_labels": labels,
    }
    summary = f"residual network of {3 * sum(depths) + 2} layers, bottleneck blocks"
    return image_classifier(name, "resnet", config, size, summary, full_size, hub)


def _resnext(name: str, *, size: int, depths: tuple[int, ...], stem: int, groups: int, group_width: int, labels: int,
             full_size: bool = False) -> ModelSpec:  # fmt: skip
    config = {"depths": depths, "groups": groups, "group_width": group_width, "stem": stem, "labels": labels}
    summary = f"residual network of {3 * sum(depths) + 2} layers, bottleneck blocks in {groups} groups"
    return image_classifier(name, "resnext", config, size, summary, full_size)


def _mobilenet(name: str, *, size: int, width: float, labels: int, full_size: bool = False) -> ModelSpec:
    config = {"depth_multiplier": width, "num_labels": labels}
    summary = f"MobileNetV2 of width {width:g}, inverted residuals with depthwise convolutions"
    return image_classifier(name, "mobilenet", config, size, summary, full_size)


def _mlp(name: str, *, layers: int, width: int) -> ModelSpec:
    return ModelSpec(
        name=name,
        family="mlp",
        config={"layers": layers, "width": width},
        inputs=(InputSpec("x", "float32", (1, width), "dense"),),
        outputs=("y",),
        full_size=False,
        summary=f"{layers} times Linear {width}x{width} and ReLU, batch 1",
    )


BERT_BASE_UNCASED = HubSource(
    repo_id="google-bert/bert-base-uncased",
    revision="86b5e0934494bd15c9632b12f734a8a67f723594",
    filename="model.safetensors",
    sha256="68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
    size_bytes=440_449_768,
    licence="Apache-2.0",
)
RESNET50_A1 = HubSource(
    repo_id="timm/resnet50.a1_in1k",
    revision="767268603ca0cb0bfe326fa87277f19c419566ef",
    filename="model.safetensors",
    sha256="773525d5821de224f8f30c33377b7a795d7863e08522698200d3217d3f2a41bb",
    size_bytes=102_469_840,
    licence="Apache-2.0",
)
VIT_BASE_PATCH16_224 = HubSource(
    repo_id="google/vit-base-patch16-224",
    revision="3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3",
    filename="model.safetensors",
    sha256="1cea07110a4a47edc51420b2dda6f3b8b58e7256e8f44b4ea6aa9696162ccb5d",
    size_bytes=346_293_852,
    licence="Apache-2.0",
)
T5_SMALL = HubSource(
    repo_id="google-t5/t5-small",
    revision="df1b051c49625cf57a3d0d8d3863ed4d13564fe4",
    filename="model.safetensors",
    sha256="bd944e5f1b3ad9b70dd9d00010a517059e19265671076b8b0a4a58d9491842bc",
    size_bytes=242_043_056,
    licence="Apache-2.0",
)

PIXEL_STD = 60.0
"""Of pixels from 0 to 255 after their mean is taken off: what the light networks were trained on."""

IDENTITY = ModelSpec(
    name="identity",
    family="identity",
    config={},
    inputs=(InputSpec("x", "float32", (1, 256), "dense"),),
    outputs=("y",),
    full_size=False,
    summary="one Identity node: what a call costs",
)
"""No case of its own: built beside each model, its time is a column of every table."""

ZOO: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        _bert("bert-base", tokens=128, layers=12, hidden=768, heads=12, ffn=3072, vocab=30522, positions=512,
              full_size=True, hub=BERT_BASE_UNCASED),
        _resnet("resnet50", size=224, depths=(3, 4, 6, 3), stem=64, labels=1000, full_size=True, hub=RESNET50_A1),
        _vit("vit-base", size=224, layers=12, hidden=768, heads=12, ffn=3072, labels=1000, full_size=True,
             hub=VIT_BASE_PATCH16_224),
        _t5("t5-small", tokens=128, answer=16, layers=6, hidden=512, heads=8, head=64, ffn=2048, vocab=32128,
            full_size=True, hub=T5_SMALL),
        _mobilenet("mobilenet-v2", size=224, width=1.0, labels=1001, full_size=True),
        _resnext("resnext50", size=224, depths=(3, 4, 6, 3), stem=64, groups=32, group_width=4, labels=1000,
                 full_size=True),
        _light("alexnet", "bvlc_alexnet", "prob_1"),
        _light("densenet121", "densenet121", "fc6_1"),
        _light("inception-v1", "inception_v1", "prob_1"),
        _light("inception-v2", "inception_v2", "prob_1"),
        _light("resnet50", "resnet50", "softmax_1", prefix="gpu_0/"),
        _light("shufflenet", "shufflenet", "softmax_1", prefix="gpu_0/"),
        _light("squeezenet", "squeezenet", "softmaxout_1"),
        _light("vgg19", "vgg19", "prob_1"),
        _light("zfnet512", "zfnet512", "softmax_1", prefix="gpu_0/"),
        *(_bert(f"bert-{size}", tokens=128, layers=layers, hidden=hidden, heads=hidden // 64, ffn=4 * hidden,
                vocab=30522, positions=512)
          for size, layers, hidden in (("mini", 4, 256), ("small", 4, 512), ("medium", 8, 512))),
        *(_vit(f"vit-{size}", size=224, layers=12, hidden=hidden, heads=hidden // 64, ffn=4 * hidden, labels=1000)
          for size, hidden in (("tiny", 192), ("small", 384))),
        _resnet("resnet101", size=224, depths=(3, 4, 23, 3), stem=64, labels=1000),
        _mobilenet("mobilenet-v2-half", size=224, width=0.5, labels=1001),
        _bert("bert-tiny", tokens=32, layers=2, hidden=128, heads=2, ffn=512, vocab=30522, positions=512),
        _mlp("mlp", layers=8, width=256),
        _bert("bert-test", tokens=16, layers=2, hidden=32, heads=2, ffn=64, vocab=99, positions=32),
        _mlp("mlp-test", layers=3, width=32),
        _vit("vit-test", size=64, layers=2, hidden=32, heads=2, ffn=64, labels=10),
        _t5("t5-test", tokens=16, answer=8, layers=2, hidden=32, heads=2, head=16, ffn=64, vocab=99),
        _resnet("resnet-test", size=64, depths=(1, 1), stem=8, labels=10),
        _resnext("resnext-test", size=64, depths=(1, 1), stem=8, groups=4, group_width=2, labels=10),
        _mobilenet("mobilenet-test", size=64, width=0.35, labels=10),
        *WIDE,
    )
}  # fmt: skip

BATCH = re.compile(r"(?P<name>.+)-b(?P<batch>[1-9]\d*)")


def get_model(name: str) -> ModelSpec:
    """The catalogued model of that name; NAME-bN is NAME with a batch of N in every input, grouped-CxH-gG a convolution
    in groups (see `grouped_model`).

    Raises UnknownNameError, which names the nearest right one, and ModelError for a batch of a light network, and for
    groups that do not divide their channels.
    """
    if name == IDENTITY.name:
        return IDENTITY
    layer = grouped_model(name)
    if layer:
        return layer
    found = BATCH.fullmatch(name)
    if found and name not in ZOO:
        spec, batch = get_model(found["name"]), int(found["batch"])
        if spec.family == "light" and batch > 1:
            raise ModelError(f"{spec.name} is a file with a batch of 1: take resnet50-b{batch} or your own export.")
        return replace(spec, inputs=tuple(replace(i, shape=(batch, *i.shape[1:])) for i in spec.inputs))
    if name not in ZOO:
        raise UnknownNameError("model", name, ZOO)
    return ZOO[name]
