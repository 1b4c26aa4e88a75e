"""Several adapters as one: exact by concatenated ranks, linear as PEFT does it."""

import numpy as np
import pytest
from lora_bases import write_base
from some_adapters import draw, merged

from toynn.errors import AdapterError, ConfigError
from toynn.formats import adapters, gguf


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = write_base(tmp_path_factory.mktemp("base") / "base.gguf")
    with gguf.open(path) as file:
        yield file


def deltas(base, some, weights):
    """What each adapter adds to each weight, times its weight, added up in float64."""
    total = {name: np.zeros(base.tensors[name].shape) for name in base.tensors}
    for adapter, weight in zip(some, weights, strict=True):
        for name, values in merged(base, adapter).items():
            total[name] += weight * (values - base[name])
    return total


def test_cat_adds_exactly_what_all_add(base):
    names = ["token_embd.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight"]
    some = [
        draw(base, ranks=(1, 3, 4), seed=1),
        draw(base, names, ranks=(2, 5, 1), alpha=3.0, seed=2, use_rslora=True),
        draw(base, names[:2], alpha=0.0, seed=3),
    ]
    weights = [0.5, -2.0, 0.25]
    combined = adapters.combine(some, weights)
    adapters.check(combined, base)
    first = some[0].rank_of("blk.0.attn_q.weight")
    assert combined.rank_of("blk.0.attn_q.weight") == first + 5 + 4
    expected = deltas(base, some, weights)
    for name, values in merged(base, combined).items():
        np.testing.assert_allclose(values - base[name], expected[name], atol=2e-6)


def test_a_combined_adapter_is_written_and_read(base, tmp_path):
    some = [draw(base, ranks=(1, 3), seed=seed) for seed in range(2)]
    combined = adapters.combine(some, [1.0, 0.5])
    adapters.write_gguf(tmp_path / "both.gguf", combined)
    adapters.write_peft(tmp_path / "both", combined, base)
    for path in (tmp_path / "both.gguf", tmp_path / "both"):
        again = merged(base, adapters.load(path, base))
        for name, values in merged(base, combined).items():
            np.testing.assert_allclose(again[name], values, atol=1e-6)


@pytest.mark.parametrize(("method", "weights"), [("cat", [0.7, 1.5]), ("linear", [0.7, -1.5])])
def test_it_is_what_peft_computes(base, tmp_path, method, weights):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    name, (rows, columns) = "blk.0.attn_v.weight", base.tensors["blk.0.attn_v.weight"].shape
    some = [draw(base, [name], alpha=alpha, seed=int(alpha)) for alpha in (8.0, 3.0)]
    module = torch.nn.Sequential(torch.nn.Linear(columns, rows, bias=False))
    model = None
    for i, adapter in enumerate(some):
        lora = peft.LoraConfig(r=4, lora_alpha=adapter.alpha, target_modules=["0"])
        if model is None:
            model = peft.get_peft_model(module, lora, adapter_name="0")
        else:
            model.add_adapter(str(i), lora)
        layer = model.base_model.model[0]
        a, b = (torch.from_numpy(values) for values in adapter.pairs[name])
        layer.lora_A[str(i)].weight.data, layer.lora_B[str(i)].weight.data = a, b
    model.add_weighted_adapter(["0", "1"], weights, "both", combination_type=method)
    expected = model.base_model.model[0].get_delta_weight("both").numpy()
    combined = adapters.combine(some, weights, method)
    np.testing.assert_allclose(merged(base, combined)[name] - base[name], expected, atol=1e-6)


def test_what_cannot_be_combined(base):
    some = [draw(base, ranks=(rank,)) for rank in (2, 3)]
    with pytest.raises(AdapterError, match="linear needs adapters of one rank; got 2, 3"):
        adapters.combine(some, [1, 1], "linear")
    for weights in ([1], [1, np.inf], [1, 2, 3]):
        with pytest.raises(ConfigError, match="expected a finite weight for each of 2 adapters"):
            adapters.combine(some, weights)
    with pytest.raises(ConfigError, match="method must be one of cat, linear; got 'sum'"):
        adapters.combine(some, [1, 1], "sum")
    other = adapters.Adapter("gpt2", 1.0, some[0].tensors)
    with pytest.raises(AdapterError, match="expected an adapter of a llama"):
        adapters.combine([some[0], other], [1, 1])
