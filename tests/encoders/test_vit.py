"""Vision transformers against timm's, transformers' and a plain loop over patches, heads and tokens."""

import math

import pytest
import torch
from torch import nn

from matryo.encoders import ViT, build_encoder, vit
from matryo.errors import InputError

SHAPE = {"dim": 24, "depth": 3, "heads": 4}


def make(pooling="cls", seed=0, **options):
    """A small one in float64 with weights that all matter."""
    torch.manual_seed(seed)
    net = ViT(**SHAPE, **{"patch": 4, "size": 12, "pooling": pooling, **options}).double().eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return net


def pictures(size=12, batch=2):
    return torch.randn(batch, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_hand(state, image, heads, depth, patch, own):
    """One image through the network of the paper, with nothing but products and sums."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        spread = (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return centred / spread * state[f"{name}.weight"] + state[f"{name}.bias"]

    def linear(x, name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    kernel = state["patch_embed.proj.weight"].flatten(1)
    cut = [
        image[:, top : top + patch, left : left + patch].flatten()
        for top in range(0, image.shape[1], patch)
        for left in range(0, image.shape[2], patch)
    ]
    x = torch.stack(cut) @ kernel.T + state["patch_embed.proj.bias"]
    if own:
        x = torch.cat([state["cls_token"][0], x])
    x = x + state["pos_embed"][0]
    each = x.shape[1] // heads
    for i in range(depth):
        query, key, value = linear(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv").chunk(3, -1)
        seen = []
        for head in range(heads):
            part = slice(head * each, (head + 1) * each)
            weight = (query[:, part] @ key[:, part].T / math.sqrt(each)).softmax(-1)
            seen.append(weight @ value[:, part])
        x = x + linear(torch.cat(seen, -1), f"blocks.{i}.attn.proj")
        inside = linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1")
        inside = inside * 0.5 * (1 + torch.erf(inside / math.sqrt(2)))
        x = x + linear(inside, f"blocks.{i}.mlp.fc2")
    x = norm(x, "norm")
    return x[0] if own else x.mean(0)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_it_is_the_network_of_the_paper(pooling):
    net, images = make(pooling), pictures()
    with torch.no_grad():
        for image, z in zip(images, net(images), strict=True):
            wanted = by_hand(net.state_dict(), image, SHAPE["heads"], SHAPE["depth"], 4, own=pooling == "cls")
            torch.testing.assert_close(z, wanted)


def test_it_is_transformers_vit():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, image_size=12, patch_size=4,
        layer_norm_eps=1e-6,
    )  # fmt: skip
    theirs = transformers.ViTModel(config, add_pooling_layer=False).double().eval()
    if "layers.0.layernorm_before.weight" not in theirs.state_dict():
        pytest.skip("this transformers has other names for the weights")
    net, state = make(), {}
    for name, value in net.state_dict().items():
        if name.startswith("blocks."):
            _, layer, rest = name.split(".", 2)
            state.update(_renamed(f"layers.{layer}.", rest, value))
        else:
            state[_OUTSIDE[name]] = value
    theirs.load_state_dict(state)
    with torch.no_grad():
        wanted = theirs(pixel_values=pictures()).last_hidden_state[:, 0]
        torch.testing.assert_close(net(pictures()), wanted)


_OUTSIDE = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
    "norm.weight": "layernorm.weight",
    "norm.bias": "layernorm.bias",
}
_INSIDE = {
    "norm1": "layernorm_before",
    "attn.proj": "attention.o_proj",
    "norm2": "layernorm_after",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


def _renamed(layer, rest, value):
    module, _, leaf = rest.rpartition(".")
    if module == "attn.qkv":
        names = ("q_proj", "k_proj", "v_proj")
        return {f"{layer}attention.{name}.{leaf}": part for name, part in zip(names, value.chunk(3), strict=True)}
    return {f"{layer}{_INSIDE[module]}.{leaf}": value}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("size", [12, 16])
def test_it_is_timms(pooling, size):
    timm = pytest.importorskip("timm", exc_type=ImportError)
    options = {} if pooling == "cls" else {"class_token": False, "global_pool": "avg", "fc_norm": False}
    theirs = timm.models.VisionTransformer(
        img_size=12, patch_size=4, embed_dim=24, depth=3, num_heads=4, num_classes=0, dynamic_img_size=True, **options
    )
    net = make(pooling)
    theirs.double().eval().load_state_dict(net.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(net(pictures(size)), theirs(pictures(size)), atol=1e-6, rtol=1e-6)


def test_positions_follow_the_size_of_the_image():
    net = make()
    with torch.no_grad():
        net.pos_embed[:, 1:] = 0.7   # the same everywhere stays the same
        for rows, columns in ((3, 3), (2, 5), (7, 6)):
            got = net._positions(rows, columns)
            assert got.shape == (1, 1 + rows * columns, 24)
            torch.testing.assert_close(got[:, 1:], torch.full_like(got[:, 1:], 0.7), atol=1e-6, rtol=0)
            torch.testing.assert_close(got[:, 0], net.pos_embed[:, 0])
        ramp = torch.arange(3.0).repeat_interleave(3)   # grows by rows
        net.pos_embed[0, 1:, 0] = ramp
        got = net._positions(6, 3)[0, 1:, 0].view(6, 3)
        assert (got.diff(dim=0) > 0).all()
        torch.testing.assert_close(got, got[:, :1].expand(6, 3))


@pytest.mark.parametrize(
    ("name", "count"), [("vit-ti16", 5_524_416), ("vit-s16", 21_665_664), ("vit-b16", 85_798_656)]
)
def test_the_named_sizes_have_the_published_number_of_parameters(name, count):
    with torch.device("meta"):
        net = build_encoder(name)
    assert sum(parameter.numel() for parameter in net.parameters()) == count


def test_small_images_have_small_patches():
    net = build_encoder("vit-ti4", size=32, pooling="mean")
    assert net.pos_embed.shape == (1, 64, 192)
    assert net.cls_token is None
    projected = build_encoder("vit-ti8", size=32, dim=48).eval()
    with torch.no_grad():
        assert projected(torch.randn(2, 3, 32, 32)).shape == (2, 48)


def test_first_weights_are_drawn_as_timms():
    torch.manual_seed(0)
    net = vit("vit-ti16", size=32)
    assert net.blocks[0].attn.qkv.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert net.pos_embed.std().item() == pytest.approx(0.02, rel=0.2)
    assert net.cls_token.abs().max() < 1e-5
    assert not net.blocks[3].mlp.fc1.bias.any()


def test_a_dropped_branch_is_a_shortcut_and_the_others_make_up_for_it():
    net = make(drop_path=0.5).train()
    assert [block.drop_path for block in net.blocks] == [0.0, 0.25, 0.5]
    block, x = net.blocks[2], torch.randn(1, 5, 24, dtype=torch.float64).expand(4000, 5, 24)
    torch.manual_seed(0)
    with torch.no_grad():
        left = block._drop(x)
    kept = left.flatten(1).any(1)
    assert kept.double().mean().item() == pytest.approx(0.5, abs=0.03)
    torch.testing.assert_close(left[kept], 2 * x[kept])
    with torch.no_grad():
        torch.testing.assert_close(block.eval()._drop(x), x)


def test_dropout_acts_in_training_only():
    net, images = make(dropout=0.3), pictures()
    torch.testing.assert_close(net(images), net(images))
    net.train()
    assert not torch.allclose(net(images), net(images))


def test_every_weight_gets_a_gradient_in_bfloat16():
    net = vit("vit-ti8", size=16, drop_path=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        z = net(torch.randn(2, 3, 16, 16))
    z.float().square().sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_it_compiles_to_one_graph():
    net, graphs = make(), []

    def as_it_is(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(net, backend=as_it_is, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(pictures()), net(pictures()))
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vit("vit-x16"), r"unknown vision transformer \(got 'vit-x16'\): choose one of vit-ti4"),
        (lambda: vit("vit-b16", size=100), r"multiple of the patch size 16 \(got 100\)"),
        (lambda: vit("vit-b16", pooling="last"), r"unknown pooling \(got 'last'\): choose one of cls, mean"),
        (lambda: ViT(24, 1, 5), r"multiple of heads \(got dim=24, heads=5\)"),
        (lambda: ViT(24, 1, 4, size=32)(torch.zeros(1, 3, 32, 40)), r"the patch size 16 \(got 32 × 40 px\)"),
        (lambda: build_encoder("vit-b12"), r"unknown encoder \(got 'vit-b12'\): did you mean vit-b32"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
