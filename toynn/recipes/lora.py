"""LoRA over the frozen weights of a GGUF file, quantized or not, or of a Hugging Face folder.

    y = W x + b + s B A dropout(x)      W (out, in) in the file; A (r, in), B (out, r) trained

DoRA adds magnitudes; PiSSA starts A and B from the principal part of W; LoRA-FA trains only B. See
toynn/nn/lora.py.

The file is memory-mapped, and products read it as it is stored. A step computes the forward pass
and the gradients of A and B. Only A and B, their gradients and moments, and the activations need
memory.
Source: Hu et al. 2021, arXiv:2106.09685.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toynn.engines import AdapterOptions, SequenceEngine
from toynn.engines.converting import fuse_into
from toynn.engines.files import StrPath
from toynn.formats import adapters, bases
from toynn.formats.adapters import Adapter
from toynn.graph.reports import Memory
from toynn.models import Source
from toynn.options import RecipeOptions
from toynn.system.critical import Section


class LoRA(SequenceEngine[Any]):
    """Train low-rank adapters of a model in a GGUF file or Hugging Face folder.

    hp rows come from AdamW.for_lora(): the update with bias correction.

    Calls out of order raise LifecycleError.
    """

    _declared_by = _built_by = "realize"

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

        ``cfg`` None means the file's configuration; any other must agree with it. ``rank`` is the
        rank or all AdapterOptions. With a rank, ``alpha``, ``targets``, ``dropout``, ``use_rslora``
        and ``more`` are further fields of AdapterOptions.

        The field ``init`` "normal" draws A from N(0, opts.init_scale), "peft" from
        U(-1/sqrt(in), 1/sqrt(in)); B is zero. "pissa" starts from the principal part of each matrix
        and subtracts that part from the matrix; "pissa_niter_N" finds it faster, in N passes. Such
        an adapter is written with twice the rank, so that it applies to the unchanged model.

        ``checkpointing`` may be given here or in ``opts``. t_seq, t_batch, seed and init_scale of
        ``opts`` are consumed, too; untied and qkv_bias, if True, must hold for the file.
        """
        options = rank
        if not isinstance(options, AdapterOptions):
            options = AdapterOptions(options, alpha, targets, dropout, use_rslora, **more)
        opts = replace(opts, checkpointing=checkpointing or opts.checkpointing)
        with self._realizing("realize"), bases.opened(gguf) as file:
            self.enable_lora(options)
            self.realize_for_mmap(file, cfg, opts)
            self.init_adapters(options.init, opts.seed, opts.init_scale)
            self.build_training_step()

    def realize_from_adapter(
        self,
        gguf: StrPath | Source,
        adapter: StrPath | Adapter,
        opts: RecipeOptions,
        dropout: float = 0.0,
        **training: Any,
    ) -> None:
        """Map a file's weights, continue from an adapter, compile the step.

        ``adapter`` is a GGUF file, a PEFT folder or an Adapter; it decides targets, rank and alpha.
        ``training`` are loraplus_lr_ratio and use_lorafa of AdapterOptions.
        AdamW starts anew. Raises AdapterError if the adapter is for another model.
        """
        with self._realizing("realize_from_adapter"), bases.opened(gguf) as file:
            trained = _read(adapter, file)
            self.enable_lora(AdapterOptions.of(trained, dropout, **training))
            self.realize_for_mmap(file, None, opts)
            super().load_adapter(trained)
            self.build_training_step()

    # -- Adapters and files --------------------------------------------------------------------

    def load_adapter(self, adapter: StrPath | Adapter) -> None:
        """Replace the adapters by those of a GGUF file or PEFT folder; AdamW starts anew.

        Gradients from ``accumulate`` are dropped, since they belong to the old adapters. Raises
        AdapterError unless the new adapters have the same targets, ranks and scales.
        """
        trained = _read(adapter, self._base("load_adapter"))
        with Section():
            super().load_adapter(trained)
            self.session.reset(moments=True)

    def export_adapter(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write the adapters as a GGUF file, which llama.cpp loads with --lora."""
        base = self._base("export_adapter")
        adapters.write_gguf(path, self.adapter(), base, overwrite=overwrite)

    def export_peft(self, folder: StrPath, *, overwrite: bool = False) -> None:
        """Write the adapters as a folder, which PEFT loads on the same model."""
        base = self._base("export_peft")
        adapters.write_peft(folder, self.adapter(), base, overwrite=overwrite)

    def write_run(self, folder: Path) -> None:
        """Write the adapters to a run folder: adapter.gguf, and PEFT's two files.

        A format that cannot hold them is left out: see ``unwritten``.
        """
        if not self.unwritten["gguf"]:
            self.export_adapter(folder / "adapter.gguf", overwrite=True)
        if not self.unwritten["peft"]:
            self.export_peft(folder, overwrite=True)

    def read_run(self, folder: Path) -> None:
        """Load the adapters that ``write_run`` wrote; AdamW starts anew."""
        self.load_adapter(folder if self.unwritten["gguf"] else folder / "adapter.gguf")

    def check_unchanged(self) -> None:
        """Raise GGUFError, or DataError for a folder, if the base has changed since it was opened.

        Each file's size and time are compared, not its bytes. If a mapped file is cut short, the
        next product that reads the lost bytes ends the process: the system sends SIGBUS.
        """
        self._base("check_unchanged")

    def save(self, path: StrPath, outtype: str | None = None, *, overwrite: bool = False) -> None:
        """Write the model with its adapters merged in, as a GGUF file. See toynn.formats.fuse.

        ``outtype`` None keeps the types of the tensors; a quantized tensor is quantized again,
        which rounds part of the adapter away. From a folder, all matrices get the most frequent
        type that can be written (MXFP4 cannot), or q8_0.
        """
        with bases.open(self._base("save").path, check=False) as base:
            fuse_into(base, self.adapter(), path, outtype=outtype, overwrite=overwrite)

    def _base(self, call: str) -> Source:
        """Return the unchanged base of a built recipe."""
        self._built(call)
        assert self.file is not None
        self.file.check_unchanged()
        return self.file

    @staticmethod
    def memory_for(
        gguf: StrPath | Source,
        rank: int,
        opts: RecipeOptions,
        targets: Sequence[str] | str = ("q",),
        dropout: float = 0.0,
        **more: Any,
    ) -> Memory:
        """Return the memory that training such adapters needs, without the mapped file.

        ``more`` are further fields of AdapterOptions.
        """
        options = AdapterOptions(rank, targets=targets, dropout=dropout, **more)
        with bases.opened(gguf, check=False) as file:
            engine = SequenceEngine[Any]()
            engine.enable_lora(options)
            engine.declare_for_mmap(file, None, opts)
            return engine.step_memory()


def _read(adapter: StrPath | Adapter, base: Source) -> Adapter:
    if not isinstance(adapter, Adapter):
        return adapters.load(adapter, base)
    adapters.check(adapter, base)
    return adapter
