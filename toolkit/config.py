"""What a run is made of: frozen dataclasses, read from TOML and written back.

A field's ``doc`` metadata is its help text: ``bitring config`` prints it, so it stands once.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from toolkit.errors import UserError, nearest
from toolkit.presets import PRESETS, expand, refuse_contradictions


def _f(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise UserError(sentence)


LARGEST = 2**62  # what 64-bit arithmetic takes with room to spare
UNSAID_BITS = 4  # method.bits where nobody says otherwise
WIDEST = 2**20  # entries of a row


def _in_range(section: Any, name: str, key: str, low: int, high: int) -> None:
    value = getattr(section, key)
    limit = f"a number >= {low}" if value < low else f"at most {high}"
    _require(low <= value <= high, f"{name}.{key} is {value}; give {limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run itself."""

    name: str = _f("run", "name of the run; its folder is <out>/<name>-<date>")
    out: str = _f("runs", "folder under which run folders are made")
    seed: int = _f(0, "seed of weights and dropout; --seeds K takes seed, seed + 1, ... (graph and split stay)")
    timeout_s: float = _f(
        10.0, "end the job when a rank is stopped, silent or out of step with the rest this long; 0: never"
    )
    grace_s: float = _f(60.0, "after SIGTERM, how long `bitring train -np` lets the ranks end their epoch and save")
    tensorboard: bool = _f(False, "curves for TensorBoard too, in <run folder>/tensorboard (pip install tensorboard)")

    def __post_init__(self) -> None:
        least = f"run.timeout_s is {self.timeout_s}; give seconds >= 1, or 0 for no watch"
        _require(self.timeout_s == 0 or self.timeout_s >= 1, least)
        _require(self.grace_s >= 0, f"run.grace_s is {self.grace_s}; give seconds >= 0")
        _in_range(self, "run", "seed", 0, LARGEST)
        bad = set(self.name) & set("/\\") or self.name in ("", ".", "..") or not self.name.isprintable()
        _require(not bad, f"run.name is {self.name!r}; give a plain name without slashes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Which graph, and how it is prepared."""

    name: str = _f(
        "digits", "a data set by name (`bitring data list`), 'sbm', 'rmat', or 'file', 'folder' with data.path"
    )
    root: str = _f("", "folder that holds the named data sets; empty: $BITRING_DATA, else ./data")
    path: str = _f("", "a graph of your own: a .npz file ('file') or a folder ('folder'); see docs/datasets.md")
    format: Literal["auto", "npz", "arrays", "graphsaint", "ogb"] = _f(
        "auto", "what lies at data.path; auto: told by the names of the files"
    )
    delimiter: Literal["auto", "comma", "tab", "space", "semicolon"] = _f(
        "auto", "what stands between the columns of an edge list; auto: told by its first line"
    )
    symmetrise: bool = _f(True, "add the reverse of every edge")
    self_loops: Literal["drop", "keep"] = _f("drop", "self-loops of the file (GCN and GAT add their own)")
    duplicates: Literal["drop", "keep"] = _f("drop", "repeated edges: one of each, or each counted")
    feature_norm: Literal["none", "row", "standard"] = _f(
        "none", "none; row: each row divided by its sum; standard: each column to mean 0, deviation 1"
    )
    project_to: int = _f(0, "random projection of the features to this many columns; 0: off")
    split: Literal["auto", "file", "per_class", "ratio"] = _f(
        "auto", "file: its own; per_class; ratio; auto: its own if it has one, else per_class (multi-label: ratio)"
    )
    split_index: int = _f(0, "which of the data set's own splits, from 0, if it has several")
    split_seed: int = _f(0, "seed of per_class and ratio splits")
    train_per_class: int = _f(20, "training nodes per class (split = per_class)")
    val_per_class: int = _f(30, "validation nodes per class (split = per_class); the rest is tested")
    train_ratio: float = _f(0.6, "share of training nodes (split = ratio)")
    val_ratio: float = _f(0.2, "share of validation nodes (split = ratio); the rest is tested")
    make_up: bool = _f(False, "make up seeded features, labels for a graph that has none (reports say so)")
    nodes: int = _f(10_000, "nodes of a generated graph (sbm, rmat)")
    edges: int = _f(100_000, "undirected edges of a generated graph (sbm, rmat), before duplicates are dropped")
    features: int = _f(64, "feature columns of a generated or made-up graph")
    classes: int = _f(10, "classes of a generated or made-up graph")
    mixing: float = _f(0.2, "sbm: share of edges drawn without regard to the class")
    noise: float = _f(1.0, "generated features: deviation of the noise around the class centre")
    generator_seed: int = _f(0, "seed of a generated graph and of made-up features")
    knn: int = _f(8, "digits: nearest neighbours a node is joined to")

    def __post_init__(self) -> None:
        ratio_ok = self.train_ratio > 0 and self.val_ratio >= 0 and self.train_ratio + self.val_ratio <= 1
        _require(
            ratio_ok,
            f"data.train_ratio {self.train_ratio} and data.val_ratio {self.val_ratio} "
            "must be positive and sum to at most 1",
        )
        for key in ("nodes", "train_per_class", "knn"):
            _in_range(self, "data", key, 1, LARGEST)
        for key in ("features", "classes"):
            _in_range(self, "data", key, 1, WIDEST)
        for key in ("edges", "val_per_class", "split_index", "split_seed", "generator_seed"):
            _in_range(self, "data", key, 0, LARGEST)
        _in_range(self, "data", "project_to", 0, WIDEST)
        _require(0 <= self.mixing <= 1, f"data.mixing is {self.mixing}; give a share between 0 and 1")
        _require(self.noise >= 0, f"data.noise is {self.noise}; give a deviation >= 0")
        own = self.name in ("file", "folder")
        _require(
            own == bool(self.path),
            f"data.path is {self.path!r} and data.name is {self.name!r}; "
            "a path goes with data.name = 'file' or 'folder', and the other way round",
        )
        for key in ("format", "delimiter"):
            value = getattr(self, key)
            _require(
                own or value == "auto",
                f"data.{key} is {value!r} and data.name is {self.name!r}; leave it out, it goes with data.path",
            )
        _require(
            self.split_index == 0 or self.split in ("auto", "file"),
            f"data.split_index is {self.split_index} and data.split is {self.split!r}; "
            "an index chooses among a data set's own splits, use data.split = 'file'",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Which rank owns which node."""

    method: Literal["metis", "random", "range"] = _f("metis", "metis; random: balanced, seeded; range: by node number")
    objective: Literal["cut", "volume"] = _f("cut", "what METIS lowers: edges cut, or communication volume")
    balance: Literal["nodes", "edges", "train"] = _f("nodes", "what every rank gets an equal share of")
    seed: int = _f(0, "seed of METIS and of random")
    tries: int = _f(4, "METIS seeds tried (seed, seed + 1, ...), of which the best is kept")
    choose_by: Literal["total", "busiest"] = _f(
        "busiest", "best try: fewest bytes in all, or at the rank that sends and receives most"
    )
    numbering: Literal["identity", "ring"] = _f(
        "ring", "which part goes to which rank: as METIS says, or least bytes in the ring's slowest channels"
    )
    cache: str = _f(
        "", "folder of cached partitions; empty: $BITRING_CACHE/partitions, else ~/.cache/bitring/partitions"
    )

    def __post_init__(self) -> None:
        _in_range(self, "partition", "tries", 1, 1000)
        _in_range(self, "partition", "seed", 0, 2**30)  # METIS's is a 32-bit number


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The network."""

    kind: Literal["gcn", "sage", "gat"] = _f("gcn", "gcn, sage (mean aggregator) or gat")
    layers: int = _f(2, "number of graph layers")
    hidden: int = _f(64, "width of hidden layers (gat: of all heads together)")
    heads: int = _f(4, "attention heads of hidden layers (gat)")
    out_heads: int = _f(1, "attention heads of the last layer, averaged (gat)")
    norm: Literal["layer", "batch", "none"] = _f(
        "none", "normalisation after each hidden layer; batch: over the nodes of all ranks"
    )
    residual: bool = _f(False, "add each hidden layer's input to its output, from the second on")
    activation: Literal["relu", "elu"] = _f("relu", "activation after each hidden layer")
    dropout: float = _f(0.5, "share of each hidden row that is dropped (exactly that many entries of every row)")
    input_dropout: float = _f(0.0, "the same for the input features; 0 lets layer 0 be aggregated once for all")

    def __post_init__(self) -> None:
        _in_range(self, "model", "layers", 1, 1000)
        for key in ("hidden", "heads", "out_heads"):
            _in_range(self, "model", key, 1, WIDEST)
        for key in ("dropout", "input_dropout"):
            _require(0 <= getattr(self, key) < 1, f"model.{key} is {getattr(self, key)}; give a share in [0, 1)")
        _require(
            self.kind != "gat" or self.hidden % self.heads == 0,
            f"model.hidden {self.hidden} is not a multiple of model.heads {self.heads}; make it one",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How rows travel: transport x codec x freshness, over a plan."""

    name: str = _f(
        "vanilla",
        "a row of `bitring methods`; vanilla leaves every key open, another one sets its own: "
        "adaqp, adaqp-q, adaqp-p, uniform, random, fixed",
    )
    transport: Literal["ring", "horovod"] = _f("ring", "ring all2all over mpi4py, or Horovod's alltoall")
    ring: Literal["posted", "rendezvous", "barrier"] = _f(
        "posted", "posted: all messages at once; rendezvous: round after round; barrier: rounds in step"
    )
    codec: Literal["float32", "bfloat16", "quantised"] = _f(
        "float32", "how a row is written on the wire; quantised: stochastically rounded to few bits"
    )
    widths: Literal["fixed", "uniform", "adaptive"] = _f(
        "fixed",
        "quantised: fixed: method.bits for every message; uniform: each draws from 2, 4, 8 every period; "
        "adaptive: chosen every period from what was sent (AdaQP)",
    )
    policy: str = _f(
        "auto", "adaptive widths: who chooses; auto: adaptive, posted or ring_lp, whichever is simulated to be fastest"
    )
    lam: float = _f(0.5, "adaptive widths: 0: least time, 1: least variance")
    budget: Literal["each", "joint"] = _f(
        "each",
        "adaptive widths: each exchange weighs its own time and variance (AdaQP), or joint: all of them together",
    )
    group_size: int = _f(100, "adaptive widths: messages of a channel that share a width")
    machine: str = _f("", "adaptive widths: a machine.toml or a preset; empty: the network is measured")
    bits: Literal[1, 2, 4, 8, 32] = _f(UNSAID_BITS, "bits of an entry (codec quantised, widths fixed); 32: unquantised")
    drift: float = _f(
        0.25, "adaptive widths: measure the network anew when exchanges take this share longer or shorter; 0: never"
    )
    hidden: bool = _f(True, "adaptive widths: messages that hide behind the product of local rows cost nothing")
    lead: int = _f(5, "adaptive widths: epochs that a choice may take beside training (a period at most)")
    period: int = _f(50, "epochs between assignments of widths")
    quantise_all: bool = _f(
        False, "as the papers' systems do, quantise layer 0 and evaluation too; needs plan paper, and costs accuracy"
    )
    overlap: bool = _f(True, "let messages travel while the rows at home are aggregated; false: wait for them first")
    plan: str = _f("exact", "exact; paper; or steps of the exact plan joined by '+': once, kept, narrow, needed")

    @property
    def lossy(self) -> bool:
        """Whether the codec changes rows."""
        return self.codec == "bfloat16" or (self.codec == "quantised" and (self.widths != "fixed" or self.bits < 32))

    def __post_init__(self) -> None:
        refuse_contradictions(
            {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, PRESETS.get(self.name, {})
        )
        for key, least in (("period", 1), ("group_size", 1), ("lead", 0)):
            _in_range(self, "method", key, least, LARGEST)
        _require(self.drift >= 0, f"method.drift is {self.drift}; give a share > 0, or 0 for never")
        _require(0 <= self.lam <= 1, f"method.lam is {self.lam}; give a number between 0 and 1")
        _require(
            self.widths == "fixed" or self.codec == "quantised",
            f"method.widths is {self.widths} and method.codec is {self.codec}; widths go with codec quantised",
        )
        _require(
            self.bits == UNSAID_BITS or (self.codec == "quantised" and self.widths == "fixed"),
            f"method.bits is {self.bits}, which codec {self.codec} with widths {self.widths} does not use; "
            'it goes with codec quantised and widths fixed (method.name = "fixed")',
        )
        _require(
            not self.quantise_all or (self.codec == "quantised" and self.plan == "paper"),
            f"method.quantise_all goes with codec quantised and plan paper, not {self.codec} and {self.plan}; "
            "leave it out: layer 0 and evaluation are exact then",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """The training loop."""

    epochs: int = _f(200, "epochs at most")
    optimizer: Literal["adam", "adamw", "sgd"] = _f("adam", "adam, adamw or sgd")
    lr: float = _f(0.01, "learning rate")
    momentum: float = _f(0.9, "momentum (sgd)")
    weight_decay: float = _f(5e-4, "weight decay")
    schedule: Literal["constant", "cosine", "linear"] = _f(
        "constant", "learning rate over the epochs: constant, or falling to 0 like a cosine or a line"
    )
    warmup_epochs: int = _f(0, "epochs in which the learning rate rises to train.lr")
    clip_norm: float = _f(0.0, "largest norm of the weight gradients, all together; 0: as they are")
    decay_layers: Literal["all", "first"] = _f("all", "layers that weight decay touches (Kipf and Welling: first)")
    patience: int = _f(0, "stop after this many evaluations without a better validation; 0: never")
    eval_every: int = _f(1, "epochs between evaluations")
    noise_every: int = _f(
        0, "epochs between measurements of the codec's noise (`bitring noise`), six passes each; 0: never"
    )
    metric: Literal["accuracy", "micro_f1", "macro_f1", "roc_auc"] = _f(
        "accuracy", "what the best validation is judged by"
    )
    class_weights: Literal["none", "balanced"] = _f(
        "none", "balanced: a rare class weighs as much in the loss as a frequent one"
    )
    reduction: Literal["auto", "horovod", "mpi"] = _f(
        "auto", "weight gradients: Horovod (grouped), one mpi4py Allreduce, or by size"
    )
    overlap_gradients: bool = _f(
        True, "under Horovod, sum each weight gradient as soon as backward has formed it; false: grouped, after it"
    )
    checkpoint_every: int = _f(0, "epochs between checkpoints; 0: one a minute; besides: the best, the last")
    keep_checkpoints: int = _f(2, "how many checkpoints are kept, the best one apart")
    threads: int = _f(0, "threads per rank; 0: cores of the host / ranks on it")
    dtype: Literal["float32", "float64"] = _f("float32", "arithmetic; float64 is for verification")
    device: Literal["cpu", "cuda"] = _f(
        "cpu", "where ranks compute; cuda: on this host's GPUs, several ranks on one where there are more ranks"
    )

    def __post_init__(self) -> None:
        for key in ("epochs", "eval_every"):
            _in_range(self, "train", key, 1, LARGEST)
        for key in ("patience", "checkpoint_every", "warmup_epochs", "noise_every"):
            _in_range(self, "train", key, 0, LARGEST)
        _in_range(self, "train", "keep_checkpoints", 1, LARGEST)
        _in_range(self, "train", "threads", 0, 4096)
        for key in ("weight_decay", "momentum", "clip_norm"):
            _require(getattr(self, key) >= 0, f"train.{key} is {getattr(self, key)}; give a number >= 0")
        _require(self.lr > 0, f"train.lr is {self.lr}; give a rate > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole run. The sections are the tables of the TOML file."""

    run: Run = field(default_factory=Run)
    data: Data = field(default_factory=Data)
    partition: Partition = field(default_factory=Partition)
    model: Model = field(default_factory=Model)
    method: Method = field(default_factory=Method)
    train: Train = field(default_factory=Train)

    def __post_init__(self) -> None:
        _require(
            not (self.method.codec == "quantised" and self.train.dtype == "float64"),
            "method.codec is quantised, which rounds float32 rows, and train.dtype is float64; change one of them",
        )
        _require(
            self.train.noise_every == 0 or self.method.lossy,
            f"train.noise_every is {self.train.noise_every}, and the codec adds no noise; "
            "set it to 0, or method.codec to quantised with method.bits below 32",
        )


SECTIONS: dict[str, type] = {f.name: f.default_factory for f in dataclasses.fields(Config)}  # type: ignore[misc]


def load(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Read a TOML file and apply ``section.key=value`` overrides, in order.

    Raises UserError for a missing or malformed file, an unknown section or key (naming the
    nearest known one), and a value of the wrong type or outside its range.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"can't read the configuration {path}: {error.strerror}; name a TOML file") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError, and so is a number too long
        raise UserError(f"{path} is not valid TOML: {error}") from None
    for override in overrides or []:
        section, key, value = parse_override(override)
        table = tables.setdefault(section, {})
        if not isinstance(table, dict):
            raise UserError(f"{path}: '{section}' must be a table, written [{section}]")
        table[key] = value
    return from_tables(tables, str(path))


def from_tables(tables: dict[str, Any], source: str = "configuration") -> Config:
    """Build a Config from nested dicts, refusing what is unknown or of the wrong type."""
    parts: dict[str, Any] = {}
    for section, table in tables.items():
        if section not in SECTIONS:
            raise UserError(f"{source}: unknown section [{section}]; {nearest(section, SECTIONS)}")
        if not isinstance(table, dict):
            raise UserError(f"{source}: '{section}' must be a table, written [{section}]")
        given = expand(table) if section == "method" else table
        parts[section] = _section(SECTIONS[section], section, given, source)
    return Config(**parts)


def to_toml(config: Config) -> str:
    """The whole configuration as TOML, defaults included: reading it back gives an equal Config."""
    lines = []
    for section in SECTIONS:
        lines.append(f"[{section}]")
        part = getattr(config, section)
        lines += [f"{f.name} = {_toml_value(getattr(part, f.name))}" for f in dataclasses.fields(part)]
        lines.append("")
    return "\n".join(lines)


def describe() -> str:
    """Every key with its default, its choices and what it does: valid TOML, all commented."""
    lines = []
    for section, cls in SECTIONS.items():
        lines.append(f"[{section}]  # {cls.__doc__}")
        hints = get_type_hints(cls)
        for f in dataclasses.fields(cls):
            lines.append(f"# {f.metadata['doc']}{_choices(hints[f.name])}")
            lines.append(f"{f.name} = {_toml_value(f.default)}")
        lines.append("")
    return "\n".join(lines)


def _choices(hint: Any) -> str:
    return f" ({' | '.join(map(str, get_args(hint)))})" if get_origin(hint) is Literal else ""


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace(
            "\x7f", "\\u007f"
        )  # all that TOML escapes and JSON does not
    return repr(value)


def parse_override(text: str) -> tuple[str, str, Any]:
    name, equals, raw = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise UserError(f"--set {text!r} is not of the form section.key=value, such as train.epochs=50")
    try:
        value = tomllib.loads(f"v = {raw.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()  # a bare word is a string: --set model.kind=sage
    except (ValueError, RecursionError) as error:
        raise UserError(f"--set {section}.{key}: {error}") from None
    return section, key, value


def _section(cls: type, section: str, table: dict[str, Any], source: str) -> Any:
    hints = get_type_hints(cls)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise UserError(f"{source}: unknown key {section}.{key}; {nearest(key, hints)}")
        values[key] = _checked(value, hints[key], f"{section}.{key}", source)
    return cls(**values)


ARTICLES = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def _checked(value: Any, hint: Any, name: str, source: str) -> Any:
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value not in choices or type(value) is not type(choices[0]):  # true is 1 to Python
            known = (
                nearest(value, map(str, choices))
                if isinstance(value, str)
                else f"known: {', '.join(map(str, choices))}"
            )
            raise UserError(f"{source}: {name} is {value!r}; {known}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not hint:
        raise UserError(f"{source}: {name} is {value!r}, a {type(value).__name__}; it must be {ARTICLES[hint]}")
    if hint is float and not abs(value) < float("inf"):
        raise UserError(f"{source}: {name} is {value}; give a finite number")
    return value
