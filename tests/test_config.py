import dataclasses
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import config as configs
from toolkit import methods
from toolkit.config import Config, Data, Model, Run, Train
from toolkit.errors import UserError


def write(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_empty_file_is_the_default(tmp_path):
    assert configs.load(write(tmp_path, "")) == Config()


@given(
    name=st.text(st.characters(exclude_characters="/\\\0", codec="utf-8"), min_size=1).filter(
        lambda t: t not in (".", "..") and t.isprintable()
    ),
    seed=st.integers(0, 2**60),
    lr=st.floats(1e-9, 1e3),
)
def test_what_is_written_reads_back_equal(name, seed, lr):
    config = Config(run=Run(name=name, seed=seed), train=Train(lr=lr), data=Data(name="file", path='C:\\a"b.npz'))
    assert configs.from_tables(tomllib.loads(configs.to_toml(config))) == config


def test_described_defaults_are_the_defaults():
    assert configs.from_tables(tomllib.loads(configs.describe())) == Config()
    assert all(f.metadata["doc"] for cls in configs.SECTIONS.values() for f in dataclasses.fields(cls))


def test_overrides_apply_in_order(tmp_path):
    path = write(tmp_path, "[train]\nepochs = 5\n")
    config = configs.load(
        path, ["train.epochs=7", "model.kind=sage", 'run.name="x y"', "train.epochs = 9", "train.lr=1"]
    )
    assert (config.train.epochs, config.model.kind, config.run.name, config.train.lr) == (9, "sage", "x y", 1.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[modle]\n", r"unknown section \[modle\]; did you mean 'model'"),
        ("[model]\nlayer = 3\n", r"unknown key model\.layer; did you mean 'layers'"),
        ("[model]\nlayers = 'three'\n", r"model\.layers is 'three', a str; it must be an integer"),
        ("[model]\nlayers = true\n", r"model\.layers is True, a bool"),
        ("[model]\nlayers = 2.5\n", r"model\.layers is 2\.5, a float"),
        ("[model]\nlayers = 0\n", r"model\.layers is 0; give a number >= 1"),
        ("[model]\nkind = 'gcnn'\n", r"model\.kind is 'gcnn'; did you mean 'gcn'"),
        ("[model]\ndropout = 1.0\n", r"model\.dropout is 1\.0"),
        ("[model]\nkind='gat'\nhidden=10\nheads=4\n", r"model\.hidden 10 is not a multiple of model\.heads 4"),
        ("[train]\nlr = nan\n", r"train\.lr is nan; give a finite number"),
        ("[train]\nlr = -1.0\n", r"train\.lr is -1\.0"),
        ("[data]\nname = 'file'\n", r"data\.path is '' and data\.name is 'file'"),
        ("[data]\ntrain_ratio = 0.9\nval_ratio = 0.2\n", r"train_ratio 0\.9 and data\.val_ratio 0\.2"),
        ("[run]\nname = '../x'\n", r"run\.name is '\.\./x'"),
        ("[run]\nseed = 99999999999999999999\n", r"run\.seed is 99999999999999999999; give at most"),
        ("[model]\nhidden = 1000000000\n", r"model\.hidden is 1000000000; give at most 1048576"),
        ("[model]\nlayers = 100000\n", r"model\.layers is 100000; give at most"),
        ("[data]\nproject_to = 9223372036854775808\n", r"data\.project_to is 9223372036854775808"),
        ("[train]\nthreads = 1000000000\n", r"train\.threads is 1000000000"),
        ("[partition]\nseed = 4294967296\n", r"partition\.seed is 4294967296"),
        ('[run]\nname = "a\\nb"\n', r"run\.name is 'a\\nb'"),
        ("[train]\nepochs = " + "9" * 5000, "is not valid TOML"),
        ("x = " + "[" * 5000, "is not valid TOML"),
        ("model = 3\n", r"'model' must be a table"),
        ("[model\n", r"is not valid TOML"),
    ],
)
def test_refusals_name_the_value_and_the_remedy(tmp_path, text, sentence):
    with pytest.raises(UserError, match=sentence):
        configs.load(write(tmp_path, text))


@pytest.mark.parametrize("override", ["epochs=3", "train.epochs", "=3", "train.=3", ".epochs=3"])
def test_malformed_overrides(tmp_path, override):
    with pytest.raises(UserError, match=r"section\.key=value"):
        configs.load(write(tmp_path, ""), [override])


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000])
def test_values_that_break_the_parser(tmp_path, value):
    with pytest.raises(UserError, match=r"train\.epochs"):
        configs.load(write(tmp_path, ""), [f"train.epochs={value}"])


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="can't read the configuration"):
        configs.load(tmp_path / "none.toml")


def test_unknown_methods_name_the_nearest():
    with pytest.raises(UserError, match="did you mean 'vanilla'"):
        methods.lookup(configs.Method(name="vanila"))


def test_methods_doc_lists_the_table():
    for row in methods.TABLE:
        assert f"| {row.name} |" in methods.__doc__


@given(st.sampled_from(["heads", "out_heads", "hidden"]), st.integers(-5, 0))
def test_model_numbers_are_positive(key, value):
    with pytest.raises(UserError, match=f"model.{key}"):
        Model(**{key: value})


@pytest.mark.parametrize(
    ("name", "given", "expanded"),
    [
        ("adaqp", {}, ("quantised", "adaptive", True, "auto")),
        ("adaqp-q", {"lam": 0.2}, ("quantised", "adaptive", False, "auto")),
        ("adaqp-p", {}, ("float32", "fixed", True, "auto")),
        ("uniform", {"overlap": False}, ("quantised", "uniform", False, "auto")),
        ("random", {}, ("quantised", "adaptive", True, "random")),
        ("fixed", {"bits": 2}, ("quantised", "fixed", True, "auto")),
        ("vanilla", {"codec": "quantised"}, ("quantised", "fixed", True, "auto")),
    ],
)
def test_a_name_sets_its_keys_and_a_run_saves_them(name, given, expanded):
    config = configs.from_tables({"method": {"name": name, **given}})
    method = config.method
    assert (method.codec, method.widths, method.overlap, method.policy) == expanded
    assert methods.lookup(method).name == name
    saved = tomllib.loads(configs.to_toml(config))
    assert saved["method"]["codec"] == expanded[0] and configs.from_tables(saved) == config


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"name": "adaqp", "codec": "float32"},
            r"method\.name is 'adaqp', which sets method\.codec to 'quantised', and method\.codec is 'float32'; leave",
        ),
        ({"name": "adaqp-q", "overlap": True}, r"sets method\.overlap to false, and method\.overlap is true"),
        ({"name": "random", "policy": "exact"}, r"sets method\.policy to 'random'"),
        ({"name": "adaqp", "lead": -1}, r"method\.lead is -1; give a number >= 0"),
        ({"name": "adaqp", "drift": -0.5}, r"method\.drift is -0\.5"),
    ],
)
def test_contradictions_are_refused(table, sentence):
    with pytest.raises(UserError, match=sentence):
        configs.from_tables({"method": table})


def test_a_name_without_its_keys_is_refused_in_python():
    with pytest.raises(UserError, match=r"which sets method\.codec"):
        configs.Method(name="adaqp")
