"""A new model that starts from a donor's embeddings.

    e = E[token]        E (vocab, donor_d_in), the donor's table: frozen
    x = W e             W (d_model, donor_d_in), the lens: a trained input projection

All layers after the lens are trained, too. The donor can be any GGUF file that toynn reads,
quantized or not. Table and lens can be replaced between ``realize_scratch`` and ``build``. An
export folds the two into one table, E W^T.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn.engines import LlamaConfig, LlamaSeqEngine
from toynn.engines.files import StrPath
from toynn.errors import ConfigError, ShapeError
from toynn.graph.reports import Memory
from toynn.optim import AdamW
from toynn.options import RecipeOptions
from toynn.recipes._donor import open_donor


class WarmStart(LlamaSeqEngine):
    """Train a Llama-like model on top of a donor's embedding table.

    Call ``realize_scratch``; then, if wanted, ``realize_warm`` or ``upload_donor``, and
    ``upload_lens``; then ``build``; then take steps. hp rows come from AdamW.for_from_scratch().

    Calls out of order raise LifecycleError.
    """

    _declared_by, _built_by = "realize_scratch", "build"
    optimizer = AdamW.for_from_scratch

    # -- Donors --------------------------------------------------------------------------------

    @staticmethod
    def donor_embed_width(path: StrPath) -> int:
        """Return the width of a donor's embeddings, the value for cfg.donor_d_in."""
        with open_donor("WarmStart.donor_embed_width", path) as donor:
            return donor.width

    @staticmethod
    def byte_tokens(path: StrPath) -> list[str] | None:
        """Return the texts of a donor's tokens for the 256 bytes, for ``realize_warm``.

        None: the donor has no tokenizer and its tokens are the bytes, as in models that toynn
        makes.
        """
        with open_donor("WarmStart.byte_tokens", path) as donor:
            return donor.byte_tokens()

    @staticmethod
    def pca_lens(path: StrPath, d_model: int) -> NDArray[np.float32]:
        """Return the lens (d_model, donor_d_in) that keeps most of the variance of a donor's table.

        Its rows are the first principal components of the table's rows, the largest first. Each has
        length 1, and its element of the largest absolute value is positive.

        Raises ConfigError for a d_model above the donor's width, GGUFError for a file that is no
        donor.
        """
        with open_donor("WarmStart.pca_lens", path) as donor:
            width, count = donor.width, donor.count
            if not 1 <= d_model <= width:
                raise ConfigError(
                    f"WarmStart.pca_lens: {path}: d_model: expected 1 to {width}; got {d_model}"
                )
            total, products = np.zeros(width), np.zeros((width, width))
            for rows in donor.rows(np.arange(count)):
                exact = rows.astype(np.float64)
                total += exact.sum(axis=0)
                products += exact.T @ exact
        mean = total / count
        _, components = np.linalg.eigh(products / count - np.outer(mean, mean))
        lens = components[:, : -d_model - 1 : -1].T
        largest = np.abs(lens).argmax(axis=1)
        lens *= np.sign(lens[np.arange(d_model), largest])[:, None]
        return np.ascontiguousarray(lens, np.float32)

    @staticmethod
    def memory_for(cfg: LlamaConfig, opts: RecipeOptions) -> Memory:
        """Return the memory that training such a model needs, without allocating it."""
        engine = LlamaSeqEngine()
        engine.declare(cfg, opts)
        return engine.step_memory()

    # -- Life cycle ----------------------------------------------------------------------------

    def realize_scratch(self, cfg: LlamaConfig, opts: RecipeOptions) -> None:
        """Draw all weights; table and lens can now be replaced. Consumes all options."""
        with self._realizing("realize_scratch"):
            self.realize_for_random_init(cfg, opts)

    def realize_warm(
        self, path: StrPath, cfg: LlamaConfig, tokens: Sequence[str] | None = None
    ) -> None:
        """Replace the table by the first cfg.vocab rows of a donor's table.

        If the tokenizers differ, ``tokens`` are the texts of the model's tokens, as GGUF files
        write them. Each token gets the row of the donor's token with the same text; a token that
        the donor lacks keeps its random row.

        Raises ConfigError if cfg or the number of tokens differs from the model's, GGUFError for a
        donor that does not fit.
        """
        self._check_window("realize_warm")
        vocab, width = self.vocab, self.config.donor_d_in
        if (cfg.vocab, cfg.donor_d_in) != (vocab, width):
            raise ConfigError(
                f"WarmStart.realize_warm: expected the vocab and donor_d_in of realize_scratch(), "
                f"{vocab} and {width}; got {cfg.vocab} and {cfg.donor_d_in}"
            )
        if tokens is not None and len(tokens) != cfg.vocab:
            raise ConfigError(
                f"WarmStart.realize_warm: expected {cfg.vocab} tokens; got {len(tokens)}"
            )
        with open_donor("WarmStart.realize_warm", path) as donor:
            if donor.width != cfg.donor_d_in:
                donor.refuse(f"the width donor_d_in, {cfg.donor_d_in}", donor.width)
            if tokens is None and donor.count < cfg.vocab:
                donor.refuse(f"rows for the vocab, {cfg.vocab}", donor.count)
            ids = np.arange(cfg.vocab) if tokens is None else donor.ids_of(tokens)
            if not (ids >= 0).any():
                donor.refuse("tokens of the texts given", "none of them")
            table = self.session.download(self.t_seq_token_embed)
            table[ids >= 0] = np.concatenate(list(donor.rows(ids[ids >= 0])))
        self.upload_donor(table)

    def upload_donor(self, table: ArrayLike) -> None:
        """Replace the table by an array (vocab, donor_d_in), or by the same numbers flattened.

        Raises ShapeError for other shapes and for numbers that are not finite.
        """
        self._upload("upload_donor", "token_embd.weight", table)

    def upload_lens(self, lens: ArrayLike) -> None:
        """Replace the lens by an array (d_model, donor_d_in), such as ``pca_lens`` returns.

        Raises ShapeError for other shapes and for numbers that are not finite.
        """
        self._upload("upload_lens", "lens.proj.weight", lens)

    def build(self) -> None:
        """Record and compile the training step; table and lens can no longer be replaced.

        If this fails, e.g. for lack of memory, the recipe is as new: ``realize_scratch`` it again.
        """
        self._check_window("build")
        with self._realizing():
            self.build_training_step()

    def _check_window(self, call: str) -> None:
        if self.is_built or not self.is_declared:
            when = "after build()" if self.is_built else "before realize_scratch()"
            self._refuse(f"{call} {when}: call it between realize_scratch() and build()")

    def _upload(self, call: str, name: str, array: ArrayLike) -> None:
        self._check_window(call)
        tensor = self._tensor(name)
        with np.errstate(over="ignore"):  # too large for float32: infinite, refused below
            values = np.asarray(array)
            if values.dtype.kind == "f":
                values = values.astype(np.float32, copy=False)
        if values.shape not in (tensor.shape, (tensor.size,)):
            raise ShapeError(
                f"WarmStart.{call}: expected shape {tensor.shape} or ({tensor.size},); "
                f"got {values.shape}"
            )
        if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            raise ShapeError(f"WarmStart.{call}: expected finite numbers; got {values.dtype}")
        self.session.upload(tensor, values.reshape(tensor.shape))
