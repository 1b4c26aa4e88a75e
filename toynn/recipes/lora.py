"""LoRA over the frozen weights of a GGUF file, quantized or not, or of a Hugging Face folder.

    y = W x + b + s B A dropout(x)      W (out, in) in the file; A (r, in), B (out, r) trained

or with magnitudes (DoRA), or from the principal part of W on (PiSSA): see toynn/nn/lora.py.

The file is mapped, and products read it as it is stored. A step computes the forward pass and the
gradients of A and B. Memory is needed only for A and B, their gradients and moments, and the
activations.
Source: Hu et al. 2021, arXiv:2106.09685.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from toynn.engines import AdapterOptions, LlamaSeqEngine, SequenceEngine, engine_for
from toynn.engines.converting import fuse_into
from toynn.formats import adapters, bases
from toynn.formats.adapters import Adapter
from toynn.graph.reports import Memory
from toynn.models import Source
from toynn.options import RecipeOptions
from toynn.recipes._sequence import SequenceRecipe
from toynn.system.critical import Section

__all__ = ["LoRA"]

StrPath = str | PathLike[str]


class LoRA(SequenceRecipe[SequenceEngine[Any]]):
    """Train low-rank adapters of the projections of a model in a GGUF file or HF folder.

    Its hp rows are AdamW.for_lora()'s: the update with bias correction.

    Calls in another order raise LifecycleError.
    """

    _kind = LlamaSeqEngine

    def realize(
        self,
        gguf: StrPath | Source,
        cfg: Any,
        rank: int | AdapterOptions,
        opts: RecipeOptions,
        alpha: float | None = None,
        targets: Sequence[str] | str = ("q",),
        dropout: float = 0.0,
        use_rslora: bool = False,
        checkpointing: bool = False,
        **more: Any,
    ) -> None:
        """Map a file's weights, draw the adapters, compile the step.

        ``cfg`` is the file's own if it is None, and must agree with it if not. Either ``rank`` is
        all AdapterOptions, or ``alpha``, ``targets``, ``dropout``, ``use_rslora`` and ``more`` are
        theirs, too. Their ``init`` "normal" draws A from N(0, opts.init_scale), "peft" from
        U(-1/sqrt(in), 1/sqrt(in)); B is zero. "pissa" and "pissa_niter_N" begin with the principal
        part of each matrix (N: by so many passes of a quicker search), which is taken away; the
        adapter that is written has twice the rank, and applies to the unchanged model.
        ``checkpointing`` may be given here or in ``opts``, of which t_seq, t_batch, seed and
        init_scale are consumed too; untied and qkv_bias, if True, must hold for the file.
        """
        options = rank
        if not isinstance(options, AdapterOptions):
            options = AdapterOptions(options, alpha, targets, dropout, use_rslora, **more)
        opts = replace(opts, checkpointing=checkpointing or opts.checkpointing)
        with self._over("realize", gguf) as (engine, file):
            engine.enable_lora(options)
            engine.realize_for_mmap(file, cfg, opts)
            engine.init_adapters(options.init, opts.seed, opts.init_scale)
            engine.build_training_step()

    def realize_from_adapter(
        self,
        gguf: StrPath | Source,
        adapter: StrPath | Adapter,
        opts: RecipeOptions,
        dropout: float = 0.0,
        loraplus_lr_ratio: float = 1.0,
    ) -> None:
        """Map a file's weights, go on with an adapter of it, compile the step.

        ``adapter`` is a GGUF file, a PEFT folder, or one that was read; targets, rank and alpha are
        its own. AdamW starts anew. Raises AdapterError if it is for another model.
        """
        with self._over("realize_from_adapter", gguf) as (engine, file):
            found = _read(adapter, file)
            engine.enable_lora(AdapterOptions.of(found, dropout, loraplus_lr_ratio))
            engine.realize_for_mmap(file, None, opts)
            engine.load_adapter(found)
            engine.build_training_step()

    @contextmanager
    def _over(
        self, call: str, gguf: StrPath | Source
    ) -> Iterator[tuple[SequenceEngine[Any], Source]]:
        """Make an engine for a file; it becomes the recipe's if all that is done with it works."""
        self._check_new(call)
        with _opened(gguf) as file:
            engine = engine_for(file)(self.engine.backend)
            self._prepare(engine)
            yield engine, file
        self.engine = engine

    def _prepare(self, engine: SequenceEngine[Any]) -> None:
        """Ask a new engine for what its step is to be, before anything is declared."""

    # -- Adapters and files --------------------------------------------------------------------

    def load_adapter(self, adapter: StrPath | Adapter) -> None:
        """Replace the adapters by those of a GGUF file or PEFT folder; AdamW starts anew.

        Gradients that ``accumulate`` has added up are dropped: they are of the adapters before.
        Raises AdapterError unless the new ones have the same targets, ranks and scales.
        """
        found = _read(adapter, self._base("load_adapter"))
        with Section():
            self.engine.load_adapter(found)
            self.engine.session.reset(moments=True)

    def export_adapter(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write the adapters as a GGUF file, which llama.cpp loads with --lora."""
        base = self._base("export_adapter")
        base.check_unchanged()
        adapters.write_gguf(path, self.engine.adapter(), base, overwrite=overwrite)

    def export_peft(self, folder: StrPath, *, overwrite: bool = False) -> None:
        """Write the adapters as a folder, which PEFT loads on the same model."""
        base = self._base("export_peft")
        base.check_unchanged()
        adapters.write_peft(folder, self.engine.adapter(), base, overwrite=overwrite)

    def write_run(self, folder: Path) -> None:
        """Write the adapters into the folder of a run: adapter.gguf, and PEFT's two files.

        Without the one that has no place for them: see ``unwritten``.
        """
        if not self.unwritten["gguf"]:
            self.export_adapter(folder / "adapter.gguf", overwrite=True)
        if not self.unwritten["peft"]:
            self.export_peft(folder, overwrite=True)

    @property
    def unwritten(self) -> Mapping[str, str]:
        """Why the adapters cannot be written as "gguf" and as "peft"; empty where they can be."""
        return self.engine.unwritten

    def read_run(self, folder: Path) -> None:
        """Go back to the adapters that ``write_run`` wrote; AdamW starts anew."""
        self.load_adapter(folder if self.unwritten["gguf"] else folder / "adapter.gguf")

    def check_unchanged(self) -> None:
        """Raise GGUFError, or DataError of a folder, where the base is no longer what was opened.

        The size and the time of each file tell, not the bytes. Bytes that are no longer there when
        the model is computed (a file cut short in place) end the process: the system sends SIGBUS.
        """
        self._base("check_unchanged").check_unchanged()

    def save(self, path: StrPath, outtype: str | None = None, *, overwrite: bool = False) -> None:
        """Write the model with its adapters merged in, as a GGUF file. See toynn.formats.fuse.

        ``outtype`` None keeps the types of the tensors: a quantized one is quantized again, which
        rounds a part of the adapter away. Matrices of a folder all get the type that most have,
        of those that can be written (not MXFP4), or q8_0.
        """
        self._base("save").check_unchanged()
        with bases.open(self._base("save").path, check=False) as base:
            fuse_into(base, self.engine.adapter(), path, outtype=outtype, overwrite=overwrite)

    def _base(self, call: str) -> Source:
        file = self._built(call).file
        assert file is not None
        return file

    @staticmethod
    def memory_for(
        gguf: StrPath | Source,
        rank: int,
        opts: RecipeOptions,
        targets: Sequence[str] | str = ("q",),
        dropout: float = 0.0,
        **more: Any,
    ) -> Memory:
        """Return the memory that training such adapters would need, the mapped file left out.

        ``more`` is as AdapterOptions has it.
        """
        options = AdapterOptions(rank, targets=targets, dropout=dropout, **more)
        with _opened(gguf, check=False) as file:
            engine = engine_for(file)()
            engine.enable_lora(options)
            engine.declare_for_mmap(file, None, opts)
            return engine.step_memory()


def _read(adapter: StrPath | Adapter, base: Source) -> Adapter:
    if not isinstance(adapter, Adapter):
        return adapters.load(adapter, base)
    adapters.check(adapter, base)
    return adapter


@contextmanager
def _opened(gguf: StrPath | Source, check: bool = True) -> Iterator[Source]:
    """Open a file or folder, unless it is open. A session keeps its mapping when it is closed."""
    if isinstance(gguf, str | PathLike):
        with bases.open(gguf, check=check) as file:
            yield file
    else:
        yield gguf
