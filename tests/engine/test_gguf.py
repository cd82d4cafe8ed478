"""GGUF files as targets: conversion preserves the model; unsuitable files are refused and leave no files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from workbench.core.errors import CapacityError, ModelError, WorkbenchError
from workbench.engine import load_models
from workbench.interop.gguf import export_gguf
from workbench.models import converted_models as converted_models
from workbench.models import gguf as reading
from workbench.models.bundle import bundled
from workbench.models.names import locate, weight_bytes
from workbench.models.pretrained import load_model
from workbench.service import Limits, hub
from workbench.service.chat import chat_ids
from workbench.service.checks import check_model
from workbench.service.progress import Progress

gguf = pytest.importorskip("gguf", reason="pip install gguf")

TEXTS = ["Once upon a time", "    1234 dragons\n\n  7,5", "naïve café 42%", "x = [1, 2]\n\treturn  9"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for converted copies."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled draft model as a GGUF file in float32."""
    models = load_models("text-drafter", None, "cpu", "float32")
    return export_gguf(models.target.model, models.tokenizer, tmp_path_factory.mktemp("gguf") / "drafter.gguf")


def altered(file: Path, path: Path, facts: dict[str, Any] | None = None, **kinds: str) -> Path:
    """Write a copy of a GGUF file with other metadata (None: left out) and tensor types by name suffix in `kinds`."""
    reader, facts = gguf.GGUFReader(file), dict(facts or {})
    writer = gguf.GGUFWriter(path, str(facts.pop("general.architecture", "llama")))
    family = reader.fields["general.architecture"].contents()
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or facts.get(name, 0) is None:
            continue
        value = facts.pop(name, field.contents())
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(
            name.replace(f"{family}.", f"{writer.arch}."), value, field.types[0], field.types[-1] if array else None
        )
    for name, value in facts.items():
        if value is not None:
            kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.UINT32
            writer.add_key_value(name, value, kind)
    for tensor in reader.tensors:
        kind = next((k for end, k in kinds.items() if tensor.name.endswith(f"{end}.weight")), None)
        if kind == "left out":
            continue
        if kind is None:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        else:
            quantised = gguf.quantize(np.array(tensor.data), gguf.GGMLQuantizationType[kind])
            writer.add_tensor(tensor.name, quantised, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_round_trip_through_gguf_keeps_model_and_tokenizer(file: Path) -> None:
    """Weights are equal bit for bit, so the head permutation is undone; token ids are equal, digits included."""
    back = load_models(str(file), None, "cpu", "float32")
    was = load_models("text-drafter", None, "cpu", "float32")
    mine, theirs = back.target.model.state_dict(), was.target.model.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for text in TEXTS:
        assert back.tokenizer.encode(text) == was.tokenizer.encode(text)
    assert back.eos == was.eos
    assert weight_bytes(str(file)) > 0, "the file name gives the size"


def test_tokenizer_beside_the_file_is_ignored(file: Path, tmp_path: Path) -> None:
    beside = tmp_path / file.name
    shutil.copy(file, beside)
    other = json.loads((bundled()["text-drafter"] / "tokenizer.json").read_text())
    words = other["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(other))
    copy = converted_models.convert(
        altered(beside, tmp_path / "own.gguf", {"general.name": "own"})
    )  # not the copy made above
    own = AutoTokenizer.from_pretrained(bundled()["text-drafter"])
    assert AutoTokenizer.from_pretrained(copy).encode("a b ab") == own.encode("a b ab")


def test_bos_of_a_file_comes_first_and_only_once_in_a_chat(file: Path, tmp_path: Path) -> None:
    facts = {
        "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": None,
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }  # fmt: skip
    tokenizer = load_models(str(altered(file, tmp_path / "bos.gguf", facts)), None, "cpu", "float32").tokenizer
    bos = gguf.GGUFReader(file).fields["tokenizer.ggml.bos_token_id"].contents()
    assert tokenizer.encode("hello")[0] == bos
    assert chat_ids(tokenizer, [{"role": "user", "content": "hello"}], Limits()).count(bos) == 1


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_0", "F16", "BF16"])
def test_quantised_weights_equal_ggufs_values_up_to_float16_rounding(file: Path, tmp_path: Path, kind: str) -> None:
    quantised = altered(file, tmp_path / "q.gguf", ffn_down=kind, ffn_norm="F32")
    state = load_file(converted_models.convert(quantised) / "model.safetensors")
    wanted = next(t for t in gguf.GGUFReader(quantised).tensors if t.name == "blk.0.ffn_down.weight")
    theirs = torch.from_numpy(np.array(gguf.dequantize(wanted.data, wanted.tensor_type), dtype=np.float32))
    ours = state["model.layers.0.mlp.down_proj.weight"]
    assert ours.dtype == (torch.bfloat16 if kind == "BF16" else torch.float16)
    if kind in ("F16", "BF16"):
        assert torch.equal(ours.float(), theirs), "16-bit weights stay unchanged"
    else:
        assert torch.all((ours.float() - theirs).abs() <= theirs.abs() * 2**-11 + 2**-25)
    assert state["model.layers.0.post_attention_layernorm.weight"].dtype == torch.float32


def test_heads_of_a_family_without_permutation_are_not_permuted(file: Path, tmp_path: Path) -> None:
    known = gguf.GGUFReader(file).fields
    config = Qwen2Config(vocab_size=known["llama.vocab_size"].contents(), hidden_size=32, intermediate_size=64,
                         num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
                         tie_word_embeddings=False)  # fmt: skip
    model = Qwen2ForCausalLM(config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 1)
    facts = {"embedding_length": 32, "feed_forward_length": 64, "block_count": 1, "attention.head_count": 4,
             "attention.head_count_kv": 2, "context_length": 64}  # fmt: skip
    writer = gguf.GGUFWriter(tmp_path / "qwen.gguf", "qwen2")
    for name, value in facts.items():
        writer.add_uint32(f"qwen2.{name}", value)
    writer.add_float32("qwen2.rope.freq_base", 5000.0)
    writer.add_float32("qwen2.attention.layer_norm_rms_epsilon", 1e-6)
    for name, field in known.items():
        if name.startswith("tokenizer."):
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if array else None)
    for name, weight in model.state_dict().items():
        stem, _, kind = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(stem)}.{kind}", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    back = load_model(str(tmp_path / "qwen.gguf"), torch.device("cpu"), torch.float32)
    ids = torch.tensor([[1, 5, 9, 2]])
    assert torch.equal(back(ids).logits, model.eval()(ids).logits)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "family": ({"general.architecture": "mamba"}, {}, "its family is 'mamba'"),
    "experts": ({"llama.expert_count": 8}, {}, "mixture of experts"),
    "positions": ({"llama.rope.scaling.type": "yarn"}, {}, "its RoPE is scaled"),
    "stretched": ({"llama.rope.scale_linear": 4}, {}, "its RoPE is scaled"),
    "half turned": ({"llama.rope.dimension_count": 2}, {}, "only a part of each attention head"),
    "window": ({"llama.attention.sliding_window": 4}, {}, "sliding-window attention"),
    "headless": ({"llama.attention.head_count": 0}, {}, "invalid metadata"),
    "parts": ({"split.count": 3}, {}, "one of 3 parts"),
    "splitter": ({"tokenizer.ggml.pre": "klingon"}, {}, "has the pre-tokenisation 'klingon'"),
    "adapter": ({"general.type": "adapter"}, {}, "contains 'adapter', not a model"),
    "silent": ({"llama.block_count": None}, {}, "lack the field (llama.)?block_count"),
    "lacking": ({}, {"blk.0.ffn_up": "left out"}, "lacks 1 of the model's weights \\(blk.0.ffn_up.weight"),
    "more": ({"llama.block_count": 1}, {}, "does not use"),
    "shape": ({"llama.feed_forward_length": 16}, {}, "ffn_.* is \\[.*\\], not \\["),
}


@pytest.mark.parametrize("what", REFUSED)
def test_unsuitable_file_is_refused_with_a_reason_and_leaves_no_files(
    file: Path, tmp_path: Path, cache: Path, what: str
) -> None:
    facts, kinds, says = REFUSED[what]
    if what == "more" and gguf.GGUFReader(file).fields["llama.block_count"].contents() < 2:
        facts = {"llama.block_count": 0}
    with pytest.raises(ModelError, match=says) as caught:
        converted_models.convert(altered(file, tmp_path / "wrong.gguf", facts, **kinds))
    assert caught.value.remedy
    assert converted_models.copies() == []
    assert [path.name for path in cache.iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.parametrize("share", [0.999, 0.7, 0.02, 0.0001])
def test_truncated_download_is_refused_as_such(file: Path, tmp_path: Path, cache: Path, share: float) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    for opens in (locate, lambda name: hub.fetch(name, Progress(name), 1 << 40)):
        with pytest.raises(ModelError, match=r"cut|no GGUF"):
            opens(str(cut))
    assert converted_models.copies() == []


def test_other_file_is_refused_before_loading(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("<html>404</html>")
    os.mkfifo(tmp_path / "pipe.gguf")
    for name, says in (("text", "first bytes are not GGUF's"), ("pipe", "a pipe"), ("none", "No such file")):
        with pytest.raises(ModelError, match=says):
            check_model(str(tmp_path / f"{name}.gguf"))


def test_full_disk_is_reported_and_leaves_no_files(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(reading, "save_file", full)
    with pytest.raises(CapacityError, match=r"full.*WORKBENCH_CACHE"):
        converted_models.convert(file)
    monkeypatch.undo()
    monkeypatch.setenv("WORKBENCH_CACHE", str(cache.parent))
    assert [p.name for p in cache.iterdir() if p.is_dir()] == []
    assert converted_models.is_intact(converted_models.convert(file)), "with free space the conversion succeeds"


CONVERT = (
    "import sys; from pathlib import Path; from workbench.models import converted_models; "
    "converted_models.convert(Path(sys.argv[1]))"
)


def run(file: Path, code: str = CONVERT, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, str(file)], stderr=subprocess.PIPE, text=True, **more)


@pytest.mark.processes
def test_file_size_limit_of_the_system_raises_a_named_error(file: Path, cache: Path) -> None:
    """The kernel stops the write inside safetensors, whose error has a message but no error number."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    process = run(file, preexec_fn=limit)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "CapacityError" in stderr, stderr[-2000:]
    assert [p.name for p in cache.iterdir() if p.is_dir()] == []


KILLED = """
import os, signal, sys
from pathlib import Path
from workbench.models import converted_models as converted, gguf
write = gguf.save_file
def half(tensors, path, **more):
    write(tensors, path, **more)
    os.truncate(path, os.path.getsize(path) // 2)
    os.kill(os.getpid(), signal.SIGKILL)
gguf.save_file = half
converted.convert(Path(sys.argv[1]))
"""


@pytest.mark.processes
def test_killed_conversion_leaves_no_valid_copy_and_the_next_one_succeeds(file: Path, cache: Path) -> None:
    process = run(file, KILLED)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    parts = [p for p in cache.iterdir() if p.is_dir()]
    assert len(parts) == 1, "the partial copy is there"
    assert converted_models.copies() == []
    place = converted_models.convert(file)
    assert [p for p in cache.iterdir() if p.is_dir()] == [place] == converted_models.copies()
    assert place not in parts
    load_model(str(file), torch.device("cpu"), torch.float32)


def test_concurrent_conversions_make_one_copy(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand for processes: the lock is the system's, on a file that each opens separately."""
    made, inside = [], threading.Event()
    dequantise = reading.dequantise

    def slow(source: Path, folder: Path, report: Callable[[int, int], None]) -> None:
        made.append(folder)
        inside.set()
        second.join(0.3)  # the other thread has started and waits
        dequantise(source, folder, report)

    monkeypatch.setattr(reading, "dequantise", slow)
    second = threading.Thread(target=lambda: (inside.wait(120), places.append(converted_models.convert(file))))
    places: list[Path] = []
    second.start()
    places.append(converted_models.convert(file))
    second.join(60)
    assert len(made) == 1
    assert places[0] == places[1]


def test_waiting_for_another_processs_copy_reports_progress_and_can_be_cancelled(file: Path) -> None:
    reports: list[int] = []

    class Left(Exception):
        pass

    def report(done: int, total: int) -> None:
        reports.append(done)
        if len(reports) == 2:
            raise Left

    place = converted_models.copy_folder(file.stem, converted_models.sum_of(file))
    place.parent.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()

    def wait() -> None:
        with contextlib.suppress(Left):
            converted_models.convert(file, report)
        ended.set()

    with FileLock(place.with_name(f".{place.name}.lock")):
        threading.Thread(target=wait, daemon=True).start()
        assert ended.wait(20), "it waits for the lock without progress reports"
    assert reports == [0, 0]
    assert converted_models.copies() == []


def test_damaged_copy_is_made_again(file: Path) -> None:
    place = converted_models.convert(file)
    data = bytearray((place / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (place / "model.safetensors").write_bytes(data)
    assert not converted_models.is_intact(place)
    assert converted_models.convert(file) == place
    assert converted_models.is_intact(place)


def test_copy_of_an_older_format_is_removed_by_a_new_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a quarter of a gigabyte remains forever, and is listed as a separate model."""
    other = copy_of_this_format(file, monkeypatch, converted_models.FORMAT + 2)
    old = copy_of_this_format(file, monkeypatch, converted_models.FORMAT)
    new = copy_of_this_format(file, monkeypatch, converted_models.FORMAT + 1)
    assert converted_models.copies() == sorted([new, other])  # the copy of a later version stays
    assert not old.exists()


def copy_of_this_format(file: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> Path:
    with monkeypatch.context() as patched:
        patched.setattr(converted_models, "FORMAT", number)
        return converted_models.convert(file)


def test_progress_counts_bytes_of_the_file_and_ends_complete(file: Path) -> None:
    progress = Progress("m")
    seen: list[dict[str, Any]] = []
    reach = progress.reach
    progress.reach = lambda n: (reach(n), seen.append(progress.to_wire()))[0]  # type: ignore[method-assign]
    hub.fetch(str(file), progress, 1 << 40)
    total = file.stat().st_size
    assert seen[0] == {"stage": "dequantising", "done": 0, "total": total}
    assert [s["done"] for s in seen] == sorted(s["done"] for s in seen)
    assert total - 4096 < seen[-1]["done"] <= total


def test_large_models_are_written_in_shards_that_load(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SHARD", 200_000)
    place = converted_models.convert(file)
    index = json.loads((place / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == len(list(place.glob("*.safetensors"))) > 2
    back = load_model(str(file), torch.device("cpu"), torch.float32).state_dict()
    was = load_model("text-drafter", torch.device("cpu"), torch.float32).state_dict()
    assert all(torch.equal(back[name], was[name]) for name in was)


def test_error_without_the_gguf_package_names_the_installation_command(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(WorkbenchError, match="pip install gguf"):
        converted_models.convert(file)


def test_two_files_of_the_same_name_have_two_copies(file: Path, tmp_path: Path) -> None:
    other = altered(file, tmp_path / file.name, ffn_down="F16")
    assert converted_models.convert(file) != converted_models.convert(other)
    assert set(converted_models.copies()) == {converted_models.copy_of(file), converted_models.copy_of(other)}
    tokenizer: Any = AutoTokenizer.from_pretrained(locate(str(other)))
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(bundled()["text-drafter"]).get_vocab()
