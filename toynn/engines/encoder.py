"""The engine around an encoder, or a decoder used as one: texts to vectors or to classes.

    encoder = Encoder.load("all-MiniLM-L6-v2")                    a folder or a GGUF file
    vectors = encoder.encode(["What is it?", "It is a cat."])     (2, 384)

    classifier = Encoder.load("bert-base", Task("sequence", 3), options)
    classifier.train(Texts.pack(ids, labels), hp, is_first)       then as with any engine
    logits = classifier.outputs(texts)                            (n, 3)

Texts are packed: they are not padded, see nothing of each other, and have the bits that each has
alone. A head that the file does not have is drawn anew (``new_weights`` names it). All weights are
trained, the head alone, or adapters and the head over a frozen file (``enable_lora``, ``map``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toynn import ops
from toynn.data.batch import Batch
from toynn.data.texts import TOKENS, Texts
from toynn.engines import files
from toynn.engines.engine import Inputs, Recorded
from toynn.engines.files import StrPath
from toynn.engines.sequence import SequenceEngine
from toynn.engines.targets import AdapterOptions
from toynn.engines.vectors import LOSSES, WholeBatch, inputs_of, record_loss, units
from toynn.errors import ConfigError, LabelError, LifecycleError, ShapeError
from toynn.formats import adapters, bases, hf, safetensors, sentences
from toynn.formats.adapters import Adapter
from toynn.formats.files import write_atomically
from toynn.formats.gguf import Strings
from toynn.formats.hf.config import CLASSES
from toynn.formats.safetensors import SafeTensors
from toynn.formats.sentences import POOLINGS, Sentences
from toynn.formats.tokenizer import Tokenizer
from toynn.formats.tokenizer.folder import has_tokenizer
from toynn.graph.tape import Tensor
from toynn.models import (
    ARCHITECTURES,
    ENCODERS,
    HEAD,
    SequenceModel,
    Source,
    architecture,
    check_tensors,
    refuse,
)
from toynn.models.encoder import LABELS, PROBLEM
from toynn.models.tables import Weight
from toynn.nn import Layers
from toynn.numerics import checks
from toynn.options import RecipeOptions
from toynn.system.critical import exclusive

Floats = NDArray[np.float32]
Text = str | Sequence[int] | tuple[str, str]

AT_ONCE = 512  # the most texts in one pass of encode() and outputs(), which has TOKENS at most
FEW = 16  # tokens; products of fewer rows have other bits, so texts without use join them


@dataclass(frozen=True)
class Task:
    """What an encoder's training step computes. Raises ConfigError for values that do not fit.

    Attributes
    ----------
    kind
        "vectors"; or "sequence" or "tokens": a head with ``labels`` outputs.
    labels
        Number of outputs of the head; 0: those of the file.
    loss
        For classes: "cross_entropy" (one class; dense labels may be smoothed or weighted),
        "binary" (several, or one yes or no), "squared" (numbers). For vectors: "infonce" (texts are
        n anchors, n positives, and any negatives), "cosent" (n texts, then n others; labels are
        n scores) or "triplet" (n anchors, n positives, n negatives). "": that of the kind,
        cross_entropy or infonce.
    factor
        Of cosines, in losses of vectors.
    symmetric
        For infonce: whether positives also look for their anchors; the mean of both is the loss.
    margin
        For triplet: how much further the negative should be than the positive.
    teacher_weight
        For infonce: the share of a teacher in the labels. Labels of a batch are the vectors of its
        texts by the teacher, of any width; its share is softmax(factor cos(anchor, candidate)).
    dims
        For vectors: the loss is the sum of those of the first d numbers, each d here (Matryoshka).
    mini_batch
        For vectors: the most texts that a tape embeds; a batch may have any number (GradCache). 0:
        a tape has the whole batch.
    head_only
        Whether only the head is trained.
    names
        The names of the classes. A file's head whose classes have other names is not used.
    """

    kind: Literal["vectors", "sequence", "tokens"] = "vectors"
    labels: int = 0
    loss: str = ""
    factor: float = 20.0
    symmetric: bool = False
    margin: float = 5.0
    teacher_weight: float = 0.0
    dims: tuple[int, ...] = ()
    mini_batch: int = 0
    head_only: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        losses = LOSSES if self.kind == "vectors" else _LOSSES
        if self.kind not in ("vectors", "sequence", "tokens"):
            raise ConfigError(f"Task: kind must be vectors, sequence or tokens; got {self.kind!r}")
        object.__setattr__(self, "loss", self.loss or losses[0])
        if self.loss not in losses or (self.kind == "tokens" and self.loss != losses[0]):
            raise ConfigError(
                f"Task: the loss of {self.kind} must be one of {', '.join(losses)}; got "
                f"{self.loss!r}"
            )
        if self.head_only and self.kind == "vectors":
            raise ConfigError("Task: head_only needs a head: kind sequence or tokens")
        if min((1, *self.dims)) < 1 or self.mini_batch < 0:
            raise ConfigError("Task: dims must be at least 1, mini_batch at least 0")
        if self.teacher_weight and (self.loss != "infonce" or self.symmetric):
            raise ConfigError("Task: a teacher_weight is for infonce, not symmetric")


_LOSSES = ("cross_entropy", "binary", "squared")
#: The losses of a head of sequences by Hugging Face's problem_type.
_PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")
PROBLEMS = dict(zip(_PROBLEMS, _LOSSES, strict=True))
ADAPTERS = "adapter.safetensors"  # the adapters and the head, beside the merged weights


class Encoder(SequenceEngine[Any]):
    """An encoder, or any decoder that toynn has; its vectors, or its head.

    Calls in another order raise LifecycleError.
    """

    _declared_by = "load"
    #: Texts of an example of infonce: anchor, positive, and any negatives.
    columns = 2
    #: Texts of a usual batch, and whether its labels are dense; set before the step is built.
    texts, dense = 0, False
    #: Weights (K,) of positive labels in the loss "binary"; None: 1.
    positive_weights: Floats | None = None

    def _clear(self) -> None:
        super()._clear()
        self.task = Task()
        #: How rows become vectors; set from the file, and to be changed before the first pass.
        self.sentences = Sentences("mean")
        self.class_names: tuple[str, ...] = ()  # by number, if known
        self.new_weights: tuple[str, ...] = ()  # drawn, as the file has none of them
        self.cut = 0  # texts that were cut to ``longest``
        self._whole: WholeBatch | None = None  # with a mini_batch, once needed
        self._source: Path | None = None

    @property
    def architectures(self) -> tuple[str, ...]:  # type: ignore[override]
        """Values of general.architecture that it reads."""
        return (*ENCODERS, *ARCHITECTURES)

    @property
    def model(self) -> SequenceModel[Any]:
        """The architecture of the configuration; of a decoder perhaps with a head of classes."""
        model = super().model
        classifies = not model.encodes and self.task.kind == "sequence"
        return model.classifying(self.task.labels) if classifies else model

    # -- The model -----------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        path: StrPath,
        task: Task | None = None,
        options: RecipeOptions | None = None,
        *,
        backend: str = "cpu",
        build: bool = True,
    ) -> Self:
        """Return an encoder with the weights of a folder or a GGUF file, in float32.

        With a task there is a training step, unless ``build`` is False; without, there is the
        file's own head, if it has one, and no training. Raises GGUFError, DataError, ConfigError.
        """
        engine = cls(backend)
        with bases.open(path, check=True) as file:
            engine.read(file, options or RecipeOptions(), task)
        if task is not None and build:
            engine.build_training_step()
        return engine

    def realize(
        self,
        model: StrPath | Source,
        opts: RecipeOptions,
        task: Task,
        lora: AdapterOptions | None = None,
    ) -> None:
        """Read a file or folder, or map it under adapters (``lora``); compile the training step.

        t_batch * t_seq is the room of a usual batch in tokens, ``texts`` its number of texts.
        Raises what ``load`` does.
        """
        with self._realizing("realize"), bases.opened(model) as file:
            if lora is None:
                self.read(file, opts, task)
            else:
                self.enable_lora(lora)
                self.map(file, opts, task)
                self.init_adapters(lora.init, opts.seed, opts.init_scale)
            self.build_training_step()

    def read(self, file: Source, opts: RecipeOptions, task: Task | None = None) -> None:
        """Declare an open file's model and take its weights; there is no training step yet."""
        self.declare_from(file, opts, task)
        self._fill(self._values(file, self.tensors))
        file.check_unchanged()
        self._carried = files.passed_on(file)

    def map(self, file: Source, opts: RecipeOptions, task: Task | None = None) -> None:
        """Use a file's weights as they are stored, frozen; ``enable_lora`` comes before, if at all.

        The weights of a head are in memory, and trained: the file's, or new ones. Raises
        ConfigError for a head that the architecture has not, or without labels.
        """
        self.declare_over(file, opts, task)
        copies = ((name, values()) for name, values in self._copies.items())
        head = [name for name in self._loadable if name.startswith("cls")]
        self._fill(chain(copies, self._values(file, head)))
        self._adapters.zero()
        self._carried = files.passed_on(file)

    def declare_over(self, file: Source, opts: RecipeOptions, task: Task | None = None) -> None:
        """Declare what ``map`` uses; allocates nothing. Raises ConfigError as ``map`` does."""
        self._begin(file, task)
        self.declare_for_mmap(file, None, opts)

    def _values(self, file: Source, names: Iterable[str]) -> Iterator[tuple[str, ArrayLike]]:
        """Yield weights of the file, and drawn ones that it does not have."""
        start = self.model.start(self.config, self.options) if self.new_weights else ()
        drawn = {name: values for name, values in start if name in self.new_weights}
        yield from ((name, drawn[name] if name in drawn else file[name]) for name in names)

    def _begin(self, file: Source, task: Task | None) -> None:
        self._check_new("read")
        self._source, folder = Path(file.path), Path(file.path)
        names = file.metadata.get(f"{file.architecture}.{LABELS}")
        self.class_names = tuple(map(str, names)) if isinstance(names, list | Strings) else ()
        number = file.metadata.get(f"{file.architecture}.pooling_type", 0)
        if folder.is_dir():
            pooled = sentences.read(folder)
        else:
            if not isinstance(number, int) or number not in range(len(POOLINGS)):
                refuse(file, f"pooling_type must be one of 0 to {len(POOLINGS) - 1}; got {number}")
            told = POOLINGS[number]
            pooled = Sentences("" if told == "rank" else told, told in POOLINGS[1:4])
        usual = "last" if file.architecture in ARCHITECTURES else "mean"
        self.sentences = pooled if pooled.pooling else replace(pooled, pooling=usual)
        self._asked = task

    def declare_from(self, file: Source, opts: RecipeOptions, task: Task | None = None) -> None:
        """Declare an open file's model with the task's head, before memory is allocated.

        Raises ConfigError for a head that the architecture has not, or without labels.
        """
        self._begin(file, task)
        super().declare_from(file, opts)

    def _config_of(self, file: Source) -> tuple[Any, dict[str, Any]]:
        cfg, options = super()._config_of(file)
        return self._suited(file, cfg), options

    def _check_tensors(self, file: Source) -> None:
        """Raise the file's error unless it has the model's tensors; a head may be new or unread."""
        shapes = self.model.shapes(self.config, self.options)
        shapes |= {name: array.shape for name, array in self.model.beside(self.config).items()}
        stored = {name: shape for name, shape in shapes.items() if name not in self.new_weights}
        spare = [name for name in file.tensors if name.startswith("cls")]
        spare += [HEAD] * bool(self.model.classes)  # which that of classes replaces
        check_tensors(file, stored, spare)

    def _suited(self, file: Source, cfg: Any) -> Any:
        """Return the configuration with the head of the task, by default the file's own."""
        encodes = file.architecture in ENCODERS
        stored = cfg.labels if encodes else files.classes_of(file)
        head = cfg.head if encodes else "sequence" if stored else ""
        if self._asked is None:
            kind: Any = head or "vectors"
            said = str(file.metadata.get(f"{file.architecture}.{PROBLEM}", ""))
            loss = PROBLEMS.get(said, "") if kind == "sequence" else ""
            self.task = Task(kind, stored, loss)
        else:
            self.task = self._asked
        if self.task.kind == "vectors":
            return replace(cfg, head="", labels=0, pooler=False) if encodes else cfg
        if self.task.kind == "tokens" and not encodes:
            raise ConfigError(
                f"{file.path}: {file.architecture} is a decoder, whose rows do not see what comes "
                "after a token; for classes of tokens use an encoder"
            )
        labels = self.task.labels or stored
        if not labels:
            raise ConfigError(f"{file.path}: it has no head: give Task(labels=)")
        self.task = replace(self.task, labels=labels)
        same = (head, stored) == (self.task.kind, labels)
        same = same and self.task.names in ((), self.class_names)
        if self.task.names or len(self.class_names) != labels:
            self.class_names = self.task.names
        if not encodes:
            self.new_weights = () if same else (CLASSES,)
            return cfg
        # A head of tokens has cls only where the architecture has it with a norm.
        dense = any(row.name == "cls.norm" for row in architecture(cfg.arch).table)
        pooler = cfg.pooler if same else self.task.kind == "sequence" or dense
        cfg = replace(cfg, head=self.task.kind, labels=labels, pooler=pooler)
        weights = architecture(cfg.arch).shapes(cfg, RecipeOptions())
        self.new_weights = tuple(
            name
            for name, shape in weights.items()
            if name.startswith("cls")
            and (
                name not in file.tensors
                or file.tensors[name].shape != shape
                or (name.startswith("cls.output") and not same)
            )
        )
        return cfg

    def _declare_weights(self, weights: Mapping[str, Weight]) -> None:
        """Declare all weights, of which perhaps the head alone is trained; over a file, it is."""
        head = {name: w for name, w in weights.items() if name.startswith("cls")}
        others = {name: w for name, w in weights.items() if name not in head}
        if self.file is None:
            frozen = self.task.head_only
            others = {name: replace(w, is_frozen=frozen) for name, w in others.items()}
            super()._declare_weights(others | head)
            return
        super()._declare_weights(others)
        of_head = {name: self.session.parameter(name, w.shape) for name, w in head.items()}
        self._loadable, self.parameters = self._loadable | of_head, self.parameters | of_head

    def declare(self, cfg: Any, opts: RecipeOptions) -> None:
        """Declare the weights; the session's ``finalize_weights`` allocates them.

        Raises ConfigError for a model that has two tables of RoPE.
        """
        super().declare(cfg, replace(opts, t_seq=opts.t_seq or min(cfg.context, 512)))
        if cfg.arch in ARCHITECTURES and self.model.is_long(cfg, cfg.context):
            raise ConfigError(f"{cfg.arch}: two tables of RoPE are not read by an encoder yet")
        self._gains = units(self.session, {cfg.d_model, *self.task.dims})

    # -- Recording -----------------------------------------------------------------------------

    @property
    def _usual(self) -> tuple[Any, ...]:
        texts = self.t_batch * (self.columns if self.task.kind == "vectors" else 2)
        texts = self.task.mini_batch or self.texts or texts
        return self.t_batch * self.t_seq, texts, self.dense, self.columns

    @property
    def _pooling(self) -> str:
        """How rows become what a loss of vectors or a head of sequences reads."""
        if self.task.kind == "vectors":
            return self.sentences.pooling
        return self.model.pooling(self.config)

    def _record_rows(self, size: int, texts: int, *, train: bool) -> tuple[Layers, Tensor]:
        """Record what a head or a loss reads: a row (S, C) for each text, or all rows (N, C)."""
        s, dropout = self.session, self._dropout() if train else None
        inputs = self._record_inputs(size, packed=True)
        if getattr(self.config, "types", 0):
            s.input("types", (size,), "i32", inputs["count"])
        types = inputs.get("types")
        layers = self.layers(1, dropout=dropout, segments=inputs["segments"], types=types)
        if self.task.kind == "tokens":
            return layers, self.final(layers, None)
        if self._pooling == "mean":
            bounds = s.input("bounds", (texts + 1,), "i32")
            x = ops.pooling(s, self.final(layers, None), bounds)
        else:
            x = self.final(layers, s.input("ends", (texts,), "i32"))
        if self.task.kind == "vectors" and self.sentences.normalize:
            x = ops.rmsnorm(s, x, self._gains[x.shape[1]], 1e-30)
        return layers, x

    def _record_outputs(self, size: int, texts: int) -> Recorded:
        layers, x = self._record_rows(size, texts, train=False)
        if self.task.kind != "vectors":
            x = self.model.outputs(layers, self.config, x)
        return Recorded(tape=self.session.tape, logits=self.session.output(x))

    def _record_loss(self, *kind: Any, **_: Any) -> Recorded:
        """Record the task's loss of a batch of texts with at most ``size`` tokens."""
        size, texts, dense, columns = kind
        s, task, logits = self.session, self.task, None
        layers, x = self._record_rows(size, texts, train=True)
        s.input("hp", (7,))
        if task.mini_batch:
            gradient, logits = s.input("gradient", x.shape), s.output(x)
            loss = ops.sum(s, ops.mul(s, x, gradient))
        elif task.kind == "vectors":
            loss = record_loss(s, x, columns, task, self._gains)
        else:
            logits = self.model.outputs(layers, self.config, x)
            rows = size if task.kind == "tokens" else texts
            loss = self._record_classes(logits, rows, dense=dense)
        s.set_loss(loss)
        return Recorded(tape=s.tape, logits=logits, loss=loss)

    def _record_classes(self, logits: Tensor, rows: int, *, dense: bool) -> Tensor:
        s, task = self.session, self.task
        shape = (rows, task.labels)
        if task.loss == "cross_entropy" and not dense:
            count = s.tape.inputs["count"] if task.kind == "tokens" else None
            return ops.cross_entropy(s, logits, s.input("labels", (rows,), "i32", count))
        labels = s.input("labels", shape)
        if task.loss == "cross_entropy":
            return ops.cross_entropy(s, logits, labels)
        if task.loss == "squared":
            return ops.squared_error(s, logits, labels)
        return ops.binary_cross_entropy(s, logits, labels, s.input("weights", shape))

    # -- Running -------------------------------------------------------------------------------

    def _checked(self, batch: Batch) -> Texts:
        if not isinstance(batch, Texts):
            raise ShapeError(f"expected a batch of Texts; got {type(batch).__name__}")
        ids = np.asarray(batch.inputs)
        if ids.ndim != 1 or ids.size == 0:
            raise ShapeError(f"texts: ids must be flat, at least one; got {ids.shape}")
        first = checks.converted("segments", batch.segments, ids.shape, "i32")
        checks.segments_within(ids.size)("segments", first)
        longest = int((np.arange(ids.size) - first).max()) + 1
        if longest > self.context:
            raise ShapeError(f"texts: one has {longest} tokens; the context is {self.context}")
        return batch

    def _checked_examples(self, batch: Batch) -> Texts:
        texts, task = self._checked(batch), self.task
        if texts.labels is None and task.loss not in ("infonce", "triplet"):
            raise LabelError(f"texts: the loss {task.loss} needs labels; got none")
        if task.kind == "vectors" and texts.examples % self.columns:
            raise ShapeError(
                f"texts: {texts.examples} texts are not examples of {self.columns} columns: "
                "anchors, positives, negatives"
            )
        return texts

    def _fitted(self, batch: Batch) -> tuple[Recorded, Batch, Inputs]:
        texts, task = self._checked_examples(batch), self.task
        examples, size = texts.examples, texts.tokens
        labels = np.zeros(0) if texts.labels is None else np.asarray(texts.labels)
        dense = task.loss == "cross_entropy" and labels.dtype.kind == "f"
        room = self.batch_of(texts) * self.t_seq
        step = self._step_for(room, examples, dense, self.columns)
        inputs = self._inputs(step, texts)
        if task.kind == "vectors":
            inputs |= inputs_of(task, examples, self.columns, texts.labels)
        elif task.kind == "tokens":
            if labels.shape != (size,):
                raise ShapeError(f"labels: must be ({size},), one a token; got {labels.shape}")
            inputs["labels"] = np.append(labels, np.zeros(room - size, np.int32))
        else:
            shape = (examples, task.labels)
            if task.loss != "cross_entropy" and labels.size == examples * task.labels:
                labels = labels.reshape(shape)
            inputs["labels"] = labels
        if task.loss == "binary":
            extra = 0 if self.positive_weights is None else self.positive_weights - 1
            inputs["weights"] = (1 + extra * labels).astype(np.float32)
        return step, texts, inputs

    def _inputs(self, step: Recorded, texts: Texts) -> Inputs:
        """Return the inputs of texts, padded to the tape's room; padding is not computed."""
        tensors = step.tape.inputs
        size, room = texts.tokens, tensors["tokens"].shape[0]
        first, rows, pad = np.asarray(texts.segments), np.arange(size), np.zeros(room, np.int32)
        pad = pad[size:]
        inputs: Inputs = {
            "count": np.array(size),
            "tokens": np.append(texts.inputs, pad),
            "positions": np.append(rows - first, pad),
            "segments": np.append(first, np.arange(size, room)),
        }
        if "types" in tensors:
            types = np.zeros(size, np.int32) if texts.types is None else texts.types
            inputs["types"] = np.append(types, pad)
        bounds = texts.bounds_of_texts
        if "bounds" in tensors:
            more = tensors["bounds"].shape[0] - len(bounds)
            inputs["bounds"] = np.append(bounds, np.full(more, size)).astype(np.int32)
        if "ends" in tensors:
            ends = bounds[1:] - 1 if self._pooling == "last" else bounds[:-1]
            more = tensors["ends"].shape[0] - len(ends)
            inputs["ends"] = np.append(ends, np.zeros(more, np.int32))
        return inputs

    # -- Batches in parts: see vectors.py ------------------------------------------------------

    @exclusive
    def train(self, batch: Batch, hp: ArrayLike, is_first: bool) -> float:
        """Train on one batch, with a mini_batch in parts; see ``Engine.train``.

        Raises what it does: ShapeError, LabelError, NonFiniteError.
        """
        if not self.task.mini_batch:
            return super().train(batch, hp, is_first)
        loss = self.accumulate(batch)
        self.update(hp, is_first)
        return loss

    @exclusive
    def accumulate(self, batch: Batch | ArrayLike, *arrays: ArrayLike | None) -> float:
        """Add one batch's gradients to the next step's; return its loss; see ``Engine``.

        Raises what ``train`` does: ShapeError, LabelError.
        """
        if not self.task.mini_batch:
            return super().accumulate(batch, *arrays)
        texts = self._checked_examples(Batch.of(batch, *arrays))
        loss, gradient, parts = self._loss_in_parts(texts, train=True)
        for step, inputs, first, last in parts:
            inputs["gradient"][: last - first] = len(parts) * gradient[first:last]
            self._feed(step.tape, inputs)
            self.session.run("grads", weight=texts.rows / len(parts), tape=step.tape)
        self.batches += len(parts)
        return loss

    @exclusive
    def evaluate(self, batch: Batch | ArrayLike, *arrays: ArrayLike | None) -> float:
        """Return the loss of one batch; see ``Engine``. Raises ShapeError, LabelError."""
        if not self.task.mini_batch:
            return super().evaluate(batch, *arrays)
        texts = self._checked_examples(Batch.of(batch, *arrays))
        return float(self._loss_in_parts(texts, train=False)[0])

    def _loss_in_parts(self, texts: Texts, *, train: bool) -> tuple[float, Any, list[Any]]:
        """Return the loss of a batch, its gradient by the vectors, and the parts it was read in.

        A part is its step, the step's inputs, the first of its texts, and the end of the last one.
        Both runs of a part have the same dropout masks.
        """
        bounds, parts, first = texts.bounds_of_texts, list[Any](), 0
        vectors = np.empty((texts.examples, self.config.d_model), np.float32)
        self._built("step")
        while first < texts.examples:
            room = bounds[first] + self.t_batch * self.t_seq
            last = int(np.searchsorted(bounds, room, "right")) - 1
            last = min(max(last, first + 1), first + self.task.mini_batch)
            rows = slice(bounds[first], bounds[last])
            types = None if texts.types is None else texts.types[rows]
            segments = np.asarray(texts.segments)[rows] - bounds[first]
            part = Texts(texts.inputs[rows], None, None, segments, types=types)
            kind = self.batch_of(part) * self.t_seq, self.task.mini_batch, False, self.columns
            step = self._step_for(*kind)
            inputs: Any = self._inputs(step, part)
            inputs["gradient"] = np.zeros((self.task.mini_batch, vectors.shape[1]), np.float32)
            if "dropout" in step.tape.inputs:
                inputs["dropout"] = np.array([self.batches + len(parts), train], np.int32)
            vectors[first:last] = self.compute(step, inputs)[: last - first]
            parts.append((step, inputs, first, last))
            first = last
        return *self._loss_of(vectors, texts.labels, train=train), parts

    def loss_of(self, vectors: Floats, labels: Any = None) -> float:
        """Return the task's loss of vectors (n columns, d_model), as ``encode`` returns them.

        Raises ShapeError for labels that do not fit.
        """
        return self._loss_of(vectors, labels, train=False)[0]

    def _loss_of(self, vectors: Floats, labels: Any, *, train: bool) -> tuple[float, Any]:
        if self._whole is None:
            options = self.options.of_session() | {"backend": self.backend}
            self._whole = WholeBatch(self.task, self.config.d_model, **options)
        return self._whole.loss(vectors, self.columns, labels, train=train)

    # -- Results -------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file or folder. Raises what Tokenizer.of does."""
        if self._source is None:
            raise LifecycleError("Encoder.tokenizer before load()")
        return Tokenizer.of(self._source, self.vocab if self._source.is_dir() else None)

    @property
    def longest(self) -> int:
        """The most tokens of a text: the context, or fewer if the folder says so."""
        return int(min(self.context, self.sentences.length or self.context))

    def tokens_of(self, text: Text, prompt: str = "") -> tuple[list[int], list[int]]:
        """Return ids and token types of a text, of two texts, or of ids; cut to ``longest``.

        Of two texts the second is cut first, then the first. Raises what ``Tokenizer.encode`` does.
        """
        if not isinstance(text, str) and not (
            isinstance(text, tuple) and len(text) == 2 and isinstance(text[0], str)
        ):
            ids = [int(id) for id in cast("Sequence[int]", text)]
            self.cut += len(ids) > self.longest
            return (ids := ids[: self.longest]), [0] * len(ids)
        parts = (prompt + text,) if isinstance(text, str) else (prompt + text[0], str(text[1]))
        return self.fitted(*(self.tokenizer.encode(part, add_special=False) for part in parts))[:2]

    def fitted(self, *texts: Sequence[int]) -> tuple[list[int], list[int], int]:
        """Return ids and types of one text or two, framed and cut as ``tokens_of`` says.

        Also return how many tokens were cut.
        """
        parts = [list(ids) for ids in texts]
        frame = len(self.tokenizer.framed([], *([[]] * (len(parts) - 1)))[0])
        over = rest = max(sum(map(len, parts)) + frame - self.longest, 0)
        self.cut += over > 0
        for ids in reversed(parts):
            cut = min(rest, len(ids))
            del ids[len(ids) - cut :]
            rest -= cut
        return *self.tokenizer.framed(*parts), over

    def encode(self, texts: Sequence[Text], *, prompt: str = "") -> Floats:
        """Return the vectors (n, d_model) of texts, or of lists of ids.

        ``prompt`` is put before each text. Raises LifecycleError for a task with a head, and
        ShapeError for a text without tokens.
        """
        vectors = self.vectors(texts, prompt=prompt)
        return np.concatenate([np.empty((0, self.config.d_model), np.float32), *vectors])

    def vectors(
        self, texts: Iterable[Text], *, prompt: str = "", tokens: int = TOKENS
    ) -> Iterator[Floats]:
        """Yield what ``encode`` returns, in parts of at most so many ``tokens``, or one text.

        Raises what ``encode`` does: LifecycleError, ShapeError.
        """
        if self.task.kind != "vectors":
            raise LifecycleError(f"Encoder.encode: the task is {self.task.kind}: see outputs()")
        yield from self._results(texts, prompt, tokens)

    def outputs(self, texts: Sequence[Text]) -> Floats:
        """Return the logits (n, labels) of texts, of pairs of texts, or of lists of ids.

        For token classes they are those of all tokens, one text after the other: see ``tokens_of``.
        Raises LifecycleError for a task without a head, ShapeError for a text without tokens.
        """
        if self.task.kind == "vectors":
            raise LifecycleError("Encoder.outputs: there is no head: see encode()")
        logits = self._results(texts, "", TOKENS)
        return np.concatenate([np.empty((0, self.task.labels), np.float32), *logits])

    def _results(self, texts: Iterable[Text], prompt: str, tokens: int) -> Iterator[Floats]:
        self._session_for("encode()")
        waiting: list[tuple[list[int], list[int]]] = []
        total = 0
        for text in chain(texts, (None,)):
            ids = None if text is None else self.tokens_of(text, prompt)
            if ids is not None and not ids[0]:
                raise ShapeError("encode: expected at least one token in each text; got none")
            size = len(ids[0]) if ids else 0
            full = total + size > tokens or len(waiting) == AT_ONCE
            if waiting and (ids is None or full):
                yield self.outputs_of(Texts.pack(*zip_texts(waiting)))
                waiting, total = [], 0
            if ids is not None:
                waiting.append(ids)
                total += size

    @exclusive
    def outputs_of(self, batch: Batch) -> Floats:
        """Return the vectors or logits of a batch of Texts: a row for each text or token.

        Raises ShapeError for a batch that is none.
        """
        s, texts = self._session_for("outputs_of()"), self._checked(batch)
        if (size := texts.tokens) < FEW:
            types = None if texts.types is None else np.append(texts.types, [0] * FEW)
            segments = np.append(texts.segments, np.arange(size, size + FEW))
            more = Texts(np.append(texts.inputs, [0] * FEW), None, None, segments, types=types)
            return self.outputs_of(more)[: size if self.task.kind == "tokens" else texts.examples]
        room, examples = (1 << (n - 1).bit_length() for n in (texts.tokens, texts.examples))
        step = s.record(("outputs", room, examples), lambda: self._record_outputs(room, examples))
        rows = texts.tokens if self.task.kind == "tokens" else texts.examples
        return self.compute(step, self._inputs(step, texts))[:rows]

    # -- Files ---------------------------------------------------------------------------------

    def export_gguf(self, path: StrPath, outtype: str = "f32", *, overwrite: bool = False) -> None:
        """Write the model, with the tokenizer of the file or folder that it was read from.

        Raises DataError for a tokenizer that llama.cpp has not, such as a WordPiece with capitals.
        """
        if self._source is not None and self._source.is_dir() and has_tokenizer(self._source):
            self.carry_tokenizer(self._source)
        super().export_gguf(path, outtype, overwrite=overwrite)

    def export_hf(self, path: StrPath, tokenizer: StrPath | None = None) -> str:
        """Write the model as a new folder, with the tokenizer of where it was read from.

        For vectors the folder has sentence-transformers' files, too. Return why the folder has no
        tokenizer, or "".
        """
        return super().export_hf(path, self._tokenizer if tokenizer is None else tokenizer)

    @property
    def _tokenizer(self) -> Path | None:
        """The folder that it was read from, if that has a tokenizer."""
        folder = self._source
        return folder if folder is not None and has_tokenizer(folder) else None

    def check_has_tokenizer(self) -> None:
        """Raise ConfigError if a folder of the model would have none, and could not be read."""
        *_, why = files.tokenizer_files(self, self._tokenizer)
        if why:
            raise ConfigError(f"{self._source}: the run's folder would have no tokenizer: {why}")

    def whole_weights(self) -> dict[str, Floats]:
        """Return the weights in float32, the adapters merged into those of the mapped file."""
        if self.file is None:
            return self.weights()
        head = {name: w for name, w in self._loadable.items() if name.startswith("cls")}
        adapter = self._adapted("whole_weights").copy() if self.adapters else None
        with bases.open(self.file.path, check=False) as base:
            values = {name: np.array(base[name], np.float32) for name in self._mapped}
        for name in adapter.pairs if adapter is not None else ():
            adapters.merge(values[name], cast(Adapter, adapter), name)
        return values | self._downloaded(head)

    def _check_exported(self, call: str) -> None:
        """Raise LifecycleError if there are no weights; of mapped ones, folders can be written."""
        if call != "export_hf":
            super()._check_exported(call)
        self._session_for(f"{call}()")
        self.check_unchanged()

    def write_run(self, folder: Path) -> None:
        """Write the model to a run folder, as ``export_hf`` does; adapters also apart."""
        self._built("write_run")

        def write(path: Path, *model: Any, **more: Any) -> None:
            for name, content in hf.contents(path, *model, **more).items():
                if name == hf.WEIGHTS or not (path / name).exists():
                    (path / name).parent.mkdir(exist_ok=True)
                    write_atomically(path / name, content)

        if self.file is not None:
            self.check_unchanged()
            trained = {name: self.session.download(w) for name, w in self._loadable.items()}
            write_atomically(folder / ADAPTERS, safetensors.parts(trained))
        files.write_hf(folder, self, self._tokenizer, write)

    def read_run(self, folder: Path) -> None:
        """Load what ``write_run`` wrote."""
        self._built("read_run")
        if self.file is not None:
            with closing(SafeTensors(folder / ADAPTERS)) as trained:
                self.load_weights({name: trained[name] for name in trained.tensors})
            return
        with bases.open(folder, check=False) as file:
            self.load_weights({name: file[name] for name in self._loadable})

    def told(self, *, folder: bool = False) -> dict[str, Any]:
        """Return pooling and the names of classes, as a file has them."""
        options: dict[str, Any] = {}
        if not folder:
            pooling = self.sentences.pooling if self.task.kind == "vectors" else "rank"
            options["pooling_type"] = POOLINGS.index(pooling)
        elif self.config.arch in ENCODERS:
            options["head"] = self.config.head
        if self.class_names:
            options[LABELS] = list(self.class_names)
        if self.task.kind == "sequence":
            options[PROBLEM] = _PROBLEMS[_LOSSES.index(self.task.loss)]
        return options

    def files_beside(self) -> dict[str, bytes]:
        """Return sentence-transformers' files of a folder; none with a head."""
        return self.sentences.files(self.config.d_model) if self.task.kind == "vectors" else {}


def zip_texts(
    texts: Sequence[tuple[list[int], list[int]]],
) -> tuple[list[list[int]], None, list[list[int]]]:
    """Return ids, no labels, and token types: the arguments of ``Texts.pack``."""
    return [ids for ids, _ in texts], None, [types for _, types in texts]
