"""A module imports only what stands before it in the flow of data, and the simulator imports no trainer."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# The order in which the reader meets them; a module may import from its own group and the ones above.
ORDER = [
    [
        "toolkit",
        "toolkit.errors",
        "toolkit.presets",
        "toolkit.config",
        "toolkit.keyed",
        "toolkit.rounding",
        "toolkit.report",
    ],
    ["toolkit.launch", "toolkit.selfcheck", "toolkit.methods", "toolkit.plan"],
    ["toolkit.graph"],
    ["toolkit.traffic", "toolkit.counts", "toolkit.doctor"],
    ["toolkit.comm"],
    ["toolkit.nn"],
    ["toolkit.train"],
    ["toolkit.verify"],
    ["toolkit.commands"],
    ["toolkit.cli"],
]


def level(module: str) -> int:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        for index, group in enumerate(ORDER):
            if ".".join(parts[:length]) in group:
                return index
    raise AssertionError(f"{module} has no place in ORDER")


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            package = ROOT / node.module.replace(".", "/")
            for alias in node.names:
                inside = (package / f"{alias.name}.py").exists() or (package / alias.name).is_dir()
                found.append(f"{node.module}.{alias.name}" if inside else node.module)
    return found


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", sorted((ROOT / "toolkit").rglob("*.py")), ids=module_of)
def test_imports_point_backwards(path):
    own = level(module_of(path))
    for name in imports(path):
        if name.split(".")[0] == "toolkit":
            assert level(name) <= own, f"{module_of(path)} imports {name}, which stands after it"


@pytest.mark.parametrize("path", sorted((ROOT / "simulator").rglob("*.py")), ids=module_of)
def test_the_simulator_stands_alone(path):
    allowed = {"simulator", "numpy", "scipy", "networkx", "pyomo", "matplotlib"}
    import sys

    for name in imports(path):
        top = name.split(".")[0]
        assert top in allowed or top in sys.stdlib_module_names, f"{module_of(path)} imports {name}"
