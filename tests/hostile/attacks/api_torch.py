"""The public callables of the torch side, for the table of :mod:`attacks.api_table`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from matryo import encoders, losses
from matryo.export import export
from matryo.heads import NestedLinear
from matryo.inference import load
from matryo.training import load_recipe, train


def add_torch(add: Callable[..., None], given: Any) -> None:
    """Add them, with valid arguments."""
    torch.manual_seed(0)
    z, target, weight = torch.randn(4, 8), torch.tensor([0, 1, 2, 0]), torch.randn(3, 8)
    options = {"label_smoothing": 0.1, "ignore_index": -100, "class_weight": torch.ones(3), "self_distil": 0.5}
    head = NestedLinear([4, 8], 3)
    add("heads.NestedLinear", NestedLinear, nesting=[4, 8], classes=3, tied=True, bias=True)
    add("heads.NestedLinear.forward", head.forward, z=z)
    add("heads.NestedLinear.loss", head.loss, z=z, target=target, engine="auto", **options)
    add("heads.NestedLinear.losses", head.losses, z=z, target=target)
    add("heads.NestedLinear.weight_at", head.weight_at, dim=4)
    add("heads.NestedLinear.bias_at", head.bias_at, dim=4)
    add("heads.NestedLinear.weigh", head.weigh, losses=torch.ones(2))
    add(
        "losses.nested_cross_entropy",
        losses.nested_cross_entropy,
        z=z,
        weight=weight,
        target=target,
        nesting=[4, 8],
        bias=torch.ones(3),
        engine="auto",
        **options,
    )
    add(
        "losses.cross_entropy_by_dim",
        losses.cross_entropy_by_dim,
        logits=torch.randn(2, 4, 3),
        target=target,
        **options,
    )
    add("losses.prefix_logits", losses.prefix_logits, z=z, weight=weight, nesting=[4, 8], bias=torch.ones(3))
    for name in ("nested_contrastive", "contrastive_by_dim"):
        add(
            f"losses.{name}",
            getattr(losses, name),
            a=z,
            b=z + 1,
            nesting=[4, 8],
            temperature=0.1,
            symmetric=True,
            negatives=z,
            gather=False,
            engine="auto",
        )
    for name in ("nested_distil", "distil_by_dim"):
        add(
            f"losses.{name}",
            getattr(losses, name),
            z=z,
            teacher=torch.randn(4, 5),
            nesting=[4, 8],
            temperature=0.1,
            candidates=z,
            teacher_candidates=torch.randn(4, 5),
        )
    add("losses.SelfDistil", losses.SelfDistil, share=0.5, teacher="full", temperature=1.0)
    add("losses.nested", losses.nested, loss=torch.nn.MSELoss(), nesting=[4, 8], normalize=True, embeddings=2)
    both = losses.nested(torch.nn.functional.mse_loss, [4, 8], normalize=True, embeddings=2)
    add("losses.nested(call)", lambda a, b: both(a, b), a=z, b=z)
    add(
        "encoders.build_encoder",
        encoders.build_encoder,
        name="resnet18",
        dim=0,
        neck="none",
        stem="small",
        blurpool=False,
        norm="batch",
        pretrained=False,
        widths=(),
        size=32,
        pooling="",
        dropout=None,
        drop_path=0.0,
        vocabulary=0,
        length=0,
        shape=None,
    )
    add("encoders.encoder_names", encoders.encoder_names)
    add("encoders.ConvNet", encoders.ConvNet, dim=8, width=8, stages=2, norm="batch")
    add(
        "encoders.ViT",
        encoders.ViT,
        dim=16,
        depth=1,
        heads=2,
        patch=8,
        size=16,
        pooling="cls",
        dropout=0.0,
        drop_path=0.0,
    )
    add("encoders.vit", encoders.vit, name="vit-ti16", size=32, pooling="cls", dropout=0.0, drop_path=0.0)
    add(
        "encoders.BertConfig",
        encoders.BertConfig,
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        hidden_act="gelu",
        hidden_dropout_prob=0.1,
    )
    add("encoders.BertConfig.named", encoders.BertConfig.named, name="bert-tiny", vocab_size=50)
    add("encoders.SlimmableLinear", encoders.SlimmableLinear, nesting=[4, 8], classes=3, bias=True)
    add("encoders.widths_dims", encoders.widths_dims, count=64, widths=[0.5, 1.0])
    small = encoders.ConvNet(8, width=8, stages=2)
    add("encoders.Projected", encoders.Projected, encoder=small, dim=4, bias=True, neck="linear+batch")
    add("encoders.Dual", encoders.Dual, queries=small, candidates=small, dim=4, temperature=0.07)
    add("training.load_recipe", load_recipe, source="demo", overrides={"loop.epochs": "1"})
    add(
        "training.train",
        train,
        recipe=load_recipe("demo", {"data.test": "train"}),
        dataset=given.images,
        out=given.new,
        extend=False,
        progress=False,
    )
    add("inference.load", load, run=given.new(), device="cpu", width=1.0, precision="fp32")
    add(
        "export.export",
        export,
        model=given.new(),
        to="onnx",
        out=given.new,
        rows=(),
        name="",
        width=1.0,
        overwrite=False,
    )
