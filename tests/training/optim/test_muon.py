"""Muon with AdamW: against both of torch, each on its own parameters, and against a singular value decomposition."""

import pytest
import torch
from torch import nn

from matryo.errors import RecipeError
from matryo.training.model import build_model, freeze_before
from matryo.training.optim import MuonAdamW, make_optimizer
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import override


def recipe(**changes):
    return override(Recipe(), {"optim.name": "muon", **{k.replace("__", "."): str(v) for k, v in changes.items()}})


def steps(model, optimizers, count=6):
    for number in range(count):
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(number))
        for optimizer in optimizers:
            optimizer.zero_grad()
        (model(x) - x[:, :7].cumsum(1)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def made():
    torch.manual_seed(3)
    inner = (nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 24), nn.LayerNorm(24))
    return nn.Sequential(nn.Linear(12, 24), nn.GELU(), *inner, nn.Linear(24, 7))


def test_it_takes_the_steps_of_torchs_own_and_of_adamw():
    model = made()
    matrices, others = ([p for p in model.parameters() if (p.dim() == 2) is wanted] for wanted in (True, False))
    groups = [{"params": matrices, "muon": True, "weight_decay": 0.1}, {"params": others, "muon": False}]
    found = steps(model, [MuonAdamW(groups, 0.02, (0.9, 0.98))])

    model = made()
    matrices, others = ([p for p in model.parameters() if (p.dim() == 2) is wanted] for wanted in (True, False))
    own = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    wanted = steps(model, [own, torch.optim.AdamW(others, lr=0.02, betas=(0.9, 0.98), weight_decay=0.0)])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)   # fused AdamW rounds differently


def test_several_steps_by_hand():
    weights = [torch.randn(4, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(3)]
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    optimizer = MuonAdamW([{"params": parameters, "muon": True, "weight_decay": 0.5}], 0.01, (0.9, 0.98))
    momenta = [torch.zeros(4, 6, dtype=torch.float64)] * 3
    for number in range(4):
        for i, parameter in enumerate(parameters):
            g = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * number + i), dtype=torch.float64)
            parameter.grad = g
            momenta[i] = 0.95 * momenta[i] + 0.05 * g
            u, values, v = torch.linalg.svd(0.95 * momenta[i] + 0.05 * g, full_matrices=False)
            values = values / values.norm()
            for _ in range(5):
                values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
            weights[i] = weights[i] * (1 - 0.01 * 0.5) - 0.01 * 0.2 * 6**0.5 * (u * values) @ v
        optimizer.step()
    for parameter, weight in zip(parameters, weights, strict=True):
        step = 0.01 * 0.2 * 6**0.5   # the length of a step; torch orthogonalises in bfloat16
        assert torch.allclose(parameter, weight, rtol=0, atol=4 * 0.05 * step)


def test_matrices_of_layers_are_turned_and_embeddings_norms_and_the_head_are_not():
    model = build_model(recipe(encoder__name="bert-tiny", head__dims="8,128"), 3, vocabulary=40)
    optimizer = make_optimizer(model, recipe(optim__weight_decay=0.1, optim__decay="matrices"))
    turned = {id(p): group["muon"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        layer = name.endswith("weight") and not any(word in name for word in ("LayerNorm", "embeddings", "head"))
        assert turned[id(parameter)] is layer, name
    assert sum(turned.values()) == 2 * 6   # four of attention and two behind it, in each of two layers
    image = build_model(recipe(encoder__name="vit-ti16", data__size=32), 3)
    names = {id(p): name for name, p in image.named_parameters()}
    groups = make_optimizer(image, recipe()).param_groups
    chosen = {names[id(p)].split(".", 3)[-1] for group in groups if group["muon"] for p in group["params"]}
    assert chosen == {"attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"}


def test_frozen_matrices_stay_and_an_encoder_without_any_is_refused():
    made = recipe(encoder__name="bert-tiny", head__dims="8,128", finetune__unfreeze="encoder.layer.1")
    model = build_model(made, 3, vocabulary=40)
    freeze_before(model.encoder, "encoder.layer.1")
    trained = {id(p) for group in make_optimizer(model, made).param_groups for p in group["params"]}
    assert trained == {id(p) for p in model.parameters() if p.requires_grad}
    with pytest.raises(RecipeError, match=r"needs layers with weight matrices.*an encoder that trains none.*adamw"):
        make_optimizer(build_model(recipe(encoder__name="resnet18"), 3), recipe())


def test_matrices_without_a_gradient_are_left_alone():
    model = made()
    model[2].requires_grad_(False)
    before = model[2].weight.clone()
    steps(model, [MuonAdamW([{"params": [model[0].weight, model[2].weight], "muon": True}], 0.1, (0.9, 0.98))], 2)
    assert torch.equal(model[2].weight, before)


def test_a_closure_gives_its_loss():
    weight = nn.Parameter(torch.eye(3))
    optimizer = MuonAdamW([{"params": [weight], "muon": True}], 0.1, (0.9, 0.98))

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3
    assert optimizer.step(closure).item() < 3


def test_a_layer_that_is_an_embedding_too_is_not_turned():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.inner, self.out = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9)
            self.out.weight = self.words.weight

    model = Tied()
    groups = make_optimizer(model, recipe(optim__decay="matrices", optim__weight_decay=0.1)).param_groups
    (turned,) = (group["params"] for group in groups if group["muon"])
    assert [id(p) for p in turned] == [id(model.inner.weight)]
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert decay[id(model.words.weight)] == 0
    assert decay[id(model.inner.weight)] == 0.1


def test_a_run_that_trains_nothing_needs_no_matrices():
    made = recipe(encoder__name="timm:resnet18", encoder__pretrained="true", loop__epochs=0, objective__kind="pairs",
                  head__kind="fixed")  # fmt: skip
    groups = make_optimizer(build_model(recipe(encoder__name="resnet18"), 3), made).param_groups
    assert not any(group["muon"] for group in groups)
