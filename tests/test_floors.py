"""The house: imports go downward only, and the two wings meet only through files."""

import ast
from pathlib import Path

import pytest

from pdkv import wings

PATHS = {
    path.stem: path
    for path in sorted(wings.SOURCE.rglob("*.py"))
    if path.stem not in ("__init__", "convert_bundled_model")
}
MODULES = sorted(PATHS)
FOLDERS = {"shared": {"", "study"}, "command line": {""}, "analysing": {"analysing", "reporting"}}


def fault_of(importer: str, imported: str) -> str | None:
    """Why an import breaks the house, or None."""
    here, there = wings.place_of(importer), wings.place_of(imported)
    if here is None or there is None:
        return f"{importer if here is None else imported} has no floor: enter it in pdkv.wings"
    if there[1] > here[1]:
        return f"{importer} (floor {here[1]}) imports {imported} (floor {there[1]}): imports go downward"
    if {here[0], there[0]} == {"measuring", "analysing"}:
        return f"{importer} ({here[0]}) imports {imported} ({there[0]}): the wings meet only through files"
    return None


@pytest.mark.parametrize("module", MODULES)
def test_module_keeps_to_its_floor_and_wing(module: str) -> None:
    assert wings.place_of(module), f"{module} has no floor: enter it in pdkv.wings"
    faults = [fault for imported in wings.imports_of(module) if (fault := fault_of(module, imported))]
    assert not faults, "\n".join(faults)


def test_every_placed_module_exists() -> None:
    placed = [name for floors in wings.WINGS.values() for names in floors.values() for name in names]
    assert sorted(placed) == sorted(set(placed)), "a module stands in two places"
    assert set(placed) == set(MODULES)


def test_every_module_lies_in_its_wings_folder() -> None:
    for module, path in PATHS.items():
        wing, _ = wings.place_of(module) or ("", 0)
        assert path.parent.relative_to(wings.SOURCE).name in FOLDERS.get(wing, {wing}), path


def test_no_two_modules_share_a_name() -> None:
    names = [path.stem for path in wings.SOURCE.rglob("*.py") if path.stem != "__init__"]
    assert sorted(names) == sorted(set(names))


def test_imports_within_a_floor_have_no_cycle() -> None:
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"import cycle: {' -> '.join((*above, module))}"
        if module not in done:
            for imported in wings.imports_of(module):
                visit(imported, (*above, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_rules_can_fail() -> None:
    assert "downward" in (fault_of("plan", "trial") or "")
    assert "wings meet" in (fault_of("trial", "stats") or "")
    assert "no floor" in (fault_of("trial", "junk_drawer") or "")
    assert fault_of("trial", "plan") is None


def test_engine_side_script_imports_nothing_of_the_package() -> None:
    """It runs under the engine's Python, where pdkv is not installed."""
    assert not wings.imports_of("convert_bundled_model")


def test_only_the_command_line_exits() -> None:
    """A module that is a process of its own (``python -m``) may, behind its ``__main__`` guard."""
    for module in MODULES:
        tree = ast.parse(PATHS[module].read_text(encoding="utf-8"))
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
        ]
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        exits = called & {"sys.exit", "os._exit", "exit", "quit", "SystemExit"}
        assert module == "cli" or not exits, f"{module} calls {exits}; raise UserError"


CACHED = (wings.digest, wings.imports_of, wings.folder_digest, wings._dump, wings._parse, wings._paths)


class TestDigest:
    @pytest.fixture
    def source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "pdkv"
        for module in ("measuring/prompts", "measuring/plan", "measuring/trial", "analysing/stats", "units"):
            path = folder / f"{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x = 1\n")
        (folder / "measuring" / "trial.py").write_text(
            "from pdkv import units\nfrom pdkv.measuring.plan import x\n\n\ndef f():\n    return x\n"
        )
        (folder / "measuring" / "plan.py").write_text("def g():\n    import pdkv.measuring.prompts\n")
        (folder / "templates").mkdir()
        (folder / "templates" / "summary.md").write_text("# Title\n")
        monkeypatch.setattr(wings, "SOURCE", folder)
        return folder

    def digests(self) -> dict[str, str]:
        for function in CACHED:
            function.cache_clear()
        return {
            "trial": wings.digest("trial"),
            "stats": wings.digest("stats"),
            "templates": wings.folder_digest("templates"),
        }

    @pytest.fixture(autouse=True)
    def _forget(self) -> object:
        yield
        for function in CACHED:
            function.cache_clear()

    def changed_by(self, path: Path, text: str) -> set[str]:
        before = self.digests()
        path.write_text(text)
        after = self.digests()
        return {step for step in before if before[step] != after[step]}

    def test_own_source_changes_it(self, source: Path) -> None:
        assert self.changed_by(source / "measuring" / "trial.py", "x = 2\n") == {"trial"}

    def test_imported_source_changes_it_even_if_imported_late(self, source: Path) -> None:
        assert self.changed_by(source / "measuring" / "prompts.py", "x = 2\n") == {"trial"}

    def test_the_other_wing_does_not(self, source: Path) -> None:
        assert self.changed_by(source / "analysing" / "stats.py", "x = 2\n") == {"stats"}

    def test_shared_floors_do_not(self, source: Path) -> None:
        assert self.changed_by(source / "units.py", "x = 2\n") == set()

    def test_comments_docstrings_and_layout_do_not(self, source: Path) -> None:
        start = '"""Says what."""\nfrom pdkv import units\nfrom pdkv.measuring.plan import (\n    x,\n)\n'
        text = start + 'def f():\n    "Why."\n    return x  # so\n'
        assert self.changed_by(source / "measuring" / "trial.py", text) == set()

    def test_templates_are_apart(self, source: Path) -> None:
        assert self.changed_by(source / "templates" / "summary.md", "# Other\n") == {"templates"}
