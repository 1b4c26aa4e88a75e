"""What precision "auto" stands for: the kind of CPU decides, and no clock."""

from types import SimpleNamespace

import pytest

import toynn
from toynn import _kernels
from toynn._kernels import cpu
from toynn.backends import config
from toynn.cli import main
from toynn.errors import BackendUnavailable


@pytest.mark.parametrize(
    ("vendor", "family", "pays"),
    [
        ("AuthenticAMD", 25, True),  # Zen 4
        ("AuthenticAMD", 26, True),  # Zen 5
        ("AuthenticAMD", 23, False),
        ("GenuineIntel", 6, False),  # measured on Sapphire Rapids: half the rate of floats
        ("", 0, False),
    ],
)
def test_pairs_where_they_were_measured_to_be_faster(vendor, family, pays):
    assert cpu.pairs_pay(vendor, family) == pays


@pytest.mark.parametrize(
    ("tiles", "pairs", "unit", "maker", "chosen", "why"),
    [
        (True, False, "AVX512_BF16", ("GenuineIntel", 6), "medium", "AMX"),
        (False, True, "AVX512_BF16", ("AuthenticAMD", 25), "medium", "AVX512_BF16"),
        (False, True, "BFMMLA", ("", 0), "highest", "BFMMLA) was never timed on such a CPU"),
        *(
            (False, False, unit, ("GenuineIntel", 6), "highest", why)
            for unit, why in (
                ("AVX512_BF16", "slower than float32 on a CPU of GenuineIntel, family 6"),
                ("", f"needs {cpu.PAIRS_NEED}"),
            )
        ),
    ],
)
def test_auto_by_the_kind_of_cpu(tiles, pairs, unit, maker, chosen, why, monkeypatch):
    module = SimpleNamespace(multiplies_tiles=lambda: tiles, multiplies_pairs=lambda: pairs)
    module.multiplies_int8 = module.multiplies_quads = lambda: False
    monkeypatch.setattr(_kernels, "load", lambda *_: module)
    monkeypatch.setattr(cpu, "maker", lambda: maker)
    monkeypatch.setattr(cpu, "pairs_unit", lambda: unit)
    monkeypatch.setattr(cpu, "gains_by_pairs", lambda: pairs)
    precision, reason = toynn.automatic_precision()
    assert precision == chosen
    assert why in reason
    assert config.describe()["precision auto"] == f"{chosen}: {reason}"


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ("AVX2", "int8 (AVX2) takes 0.79 of the time; the loss changes less"),
        ("AVX_VNNI", "int8 (AVX_VNNI) takes 0.46 of the time; the loss changes less"),
        ("AVX512_VNNI", "int8 (AVX512_VNNI) takes 0.44 of the time; the loss changes less"),
        ("", ""),
    ],
)
def test_auto_says_what_int8_would_give_where_medium_gives_nothing(unit, said, monkeypatch):
    module = SimpleNamespace(multiplies_tiles=lambda: False, multiplies_pairs=lambda: False)
    module.multiplies_quads = lambda: unit
    monkeypatch.setattr(_kernels, "load", lambda *_: module)
    precision, reason = toynn.automatic_precision()
    assert precision == "highest" and said in reason and ("int8" in reason) == bool(said)


def test_what_is_chosen_is_a_precision_of_this_cpu():
    told, chosen = config.describe(), toynn.automatic_precision()[0]
    bfloat16 = told["medium multiplies in"].startswith("bfloat16")
    assert bfloat16 if chosen == "medium" else not bfloat16 or cpu.pairs_unit() == "BFMMLA"


def test_the_backend_that_runs_decides(monkeypatch, tmp_path, capsys):
    """Whatever this CPU is: another backend does not multiply on it in the CPU's way."""
    monkeypatch.setattr("toynn.backends.cpu.automatic", lambda: ("medium", "of the CPU"))
    assert (
        toynn.automatic_precision() == toynn.automatic_precision("cpu") == ("medium", "of the CPU")
    )
    precision, why = toynn.automatic_precision("reference")
    assert precision == "highest" and "float64" in why
    assert config.describe()["  auto on reference"] == f"highest: {why}"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the cat sat on the mat " * 20)
    flags = "--d-model 8 --heads 2 --layers 1 --seq 8 --batch 2 --steps 1 --warmup 0 --out run"
    words = ["--data", "text.txt", "--precision", "auto", "--backend", "reference", *flags.split()]
    assert main(["train", "gpt2", *words]) == 0
    assert f"precision   highest: {why}" in " ".join(
        capsys.readouterr().out.split("\n            ")
    )
    assert 'precision = "highest"' in (tmp_path / "run" / "config.toml").read_text()
    with pytest.raises(BackendUnavailable, match="nowhere"):
        toynn.automatic_precision("nowhere")
