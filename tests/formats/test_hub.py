"""Models and data by their name on the hub, from a server here that speaks the hub's API."""

import hashlib
import io
import json
import signal
import sys
import threading
import time
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from vocabs import bpe_file

from toynn.cli import main
from toynn.data.jsonl import rows
from toynn.errors import ConfigError, DataError, ToynnError
from toynn.formats import bases
from toynn.formats.hub import fetched
from toynn.jobs.paths import local_data

hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "c0ffee" + "0" * 34
SEVERAL = ("a-q4_0.gguf", "a-q8_0.gguf", "b-00001-of-00002.gguf")
SLEEPY = {"text": "Once upon a time there was a robot. " * 20}


class Hub:
    """A hub of repositories, {name: {file: bytes}}; it counts the bytes that it sends.

    A repository of data is called datasets/OWNER/NAME.
    """

    def __init__(self):
        self.repos, self.sent, self.cut, self.gated = {}, {}, None, set()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler):
                self.answer(handler)

            do_HEAD = do_GET

            def log_message(handler, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler):
        parts = handler.path.partition("?")[0].strip("/").split("/")
        api = parts[0] == "api"
        parts = parts[api + (parts[:2] == ["api", "models"]) :]
        end = 2 + (parts[0] == "datasets")
        repo, rest = "/".join(parts[:end]), parts[end:]
        files = self.repos.get(repo)
        if files is None or (repo in self.gated and not api):
            kind = "RepoNotFound" if files is None else "GatedRepo"
            return self.reply(handler, 404 if files is None else 403, b"", {"X-Error-Code": kind})
        if len(rest) > 1 and rest[1] not in ("main", "v1", COMMIT):
            return self.reply(handler, 404, b"", {"X-Error-Code": "RevisionNotFound"})
        if api and rest[:1] == ["tree"]:
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": digest(data)}
                for name, data in files.items()
            ]
            return self.reply(handler, 200, json.dumps(tree).encode())
        if api:
            siblings = [{"rfilename": name} for name in files]
            info = {"id": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
            return self.reply(handler, 200, json.dumps(info).encode())
        data = files["/".join(rest[2:])]
        more = {"ETag": f'"{digest(data)}"', "X-Repo-Commit": COMMIT}
        first = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0]
        if int(first):
            more["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.reply(
            handler, 206 if int(first) else 200, data[int(first) :], more, "/".join(rest[2:])
        )

    def reply(self, handler, status, body, more=(), name=None):
        handler.send_response(status)
        for key, value in {"Content-Length": len(body), **dict(more)}.items():
            handler.send_header(key, str(value))
        handler.end_headers()
        if handler.command == "GET" and name is not None:
            if self.cut:
                body, self.cut = body[: self.cut], None  # and the connection breaks
                handler.close_connection = True
            self.sent[name] = self.sent.get(name, 0) + len(body)
        if handler.command == "GET":
            handler.wfile.write(body)


def digest(data):
    return hashlib.sha1(data).hexdigest()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model with a tokenizer: as a .gguf file, and as a folder."""
    folder = tmp_path_factory.mktemp("made")
    bpe_file(folder / "vocab.gguf")
    (folder / "text.txt").write_text(SLEEPY["text"])
    words = f"train from-scratch --arch llama --tokenizer {folder}/vocab.gguf --d-model 32"
    words += f" --layers 1 --heads 2 --data {folder}/text.txt --seq 16 --batch 1 --steps 1"
    words += f" --report none --out {folder}/run --threads 1"
    assert main(words.split()) == 0
    assert main(f"export --model {folder}/run --to hf --out {folder}/hf".split()) == 0
    return folder


@pytest.fixture
def server(tmp_path, monkeypatch, model):
    made = Hub()
    made.repos["o/files"] = {
        "README.md": b"",
        "m-q8_0.gguf": (model / "run/model.gguf").read_bytes(),
    }
    made.repos["o/folder"] = {
        "README.md": b"",
        "original/config.json": b"{}",
        **{each.name: each.read_bytes() for each in (model / "hf").iterdir()},
    }
    made.repos["o/several"] = dict.fromkeys((*SEVERAL, "b-00002-of-00002.gguf"), b"")
    made.repos["o/none"] = {"README.md": b"", "weights.bin": b""}
    url = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, made.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # whatever the user has set
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_file_and_a_folder_are_models(server, model, capsys):
    assert main(["info", "hf:o/files"]) == 0
    assert main(["info", "hf:o/folder"]) == 0
    assert set(server.sent) == {"m-q8_0.gguf"} | {each.name for each in (model / "hf").iterdir()}
    server.sent.clear()
    words = ["--temp", "0", "--prompt", "Once", "--max-tokens", "4", "--threads", "1"]
    texts = set()
    for named in ("hf:o/files", "hf:o/files/m-q8_0.gguf@v1", str(model / "run")):
        capsys.readouterr()
        assert main(["generate", "--model", named, *words]) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1 and not server.sent  # from the cache


def unreachable(*_, **__):
    raise RuntimeError("connection refused")  # the transport's errors have no common class


@pytest.mark.parametrize("offline", [True, False])
def test_without_a_network_the_cache_is_taken(server, monkeypatch, offline):
    path = fetched("hf:o/files")
    if offline:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr(hub.HfApi, "repo_info", unreachable)
    server.repos.clear()
    assert fetched("hf:o/files") == path
    with pytest.raises(ConfigError, match=r"cannot be reached.*, and the cache has no o/folder"):
        fetched("hf:o/folder")


def test_a_download_that_broke_goes_on(server, monkeypatch):
    size = len(server.repos["o/files"]["m-q8_0.gguf"])
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what it keeps at least
    monkeypatch.setattr(time, "sleep", lambda _: None)
    server.cut = size // 1000 * 1000
    path = fetched("hf:o/files")
    assert path.read_bytes() == server.repos["o/files"]["m-q8_0.gguf"]
    assert server.sent["m-q8_0.gguf"] == size  # nothing was sent twice


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hf:one", "expected hf:OWNER/NAME"),
        ("hf:o/files:test", "expected hf:OWNER/NAME"),
        ("hf:", "expected hf:OWNER/NAME"),
        ("hf:o/nobody", "the hub has no model o/nobody; or it is private"),
        ("hf:o/files@v9", "o/files has no revision v9"),
        ("hf:o/files/m.gguf", "o/files has no file m.gguf: it has m-q8_0.gguf"),
        (
            "hf:o/several",
            f"3 models: name one, as in hf:o/several/a-q4_0.gguf: {', '.join(SEVERAL)}",
        ),
        (
            "hf:o/none",
            "or config.json with .safetensors; o/none has README.md, weights.bin",
        ),
        ("hf:o/-bad-", "-bad-"),
        ("hf:o/files@../../../../outside", "got a part that is . or .."),
        ("hf:o/../files", "got a part that is . or .."),
        ("hf:../files", "got a part that is . or .."),
    ],
)
def test_what_is_refused(server, text, said):
    with pytest.raises(ConfigError) as caught:
        fetched(text)
    assert said in str(caught.value) and str(caught.value).startswith(text)


def test_a_gated_model(server):
    server.gated.add("o/files")
    with pytest.raises(ConfigError, match="o/files is gated: accept its terms"):
        fetched("hf:o/files")


def test_a_file_in_a_folder_is_the_model_where_it_is_the_only_one(server):
    server.repos["o/deep"] = {"README.md": b"", "Q8_0/m.gguf": b"12345678"}
    assert fetched("hf:o/deep").read_bytes() == b"12345678"


def test_what_a_transport_raises_while_it_downloads(server, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("peer closed connection\nand more")

    monkeypatch.setattr(hub, "hf_hub_download", broken)
    with pytest.raises(ConfigError, match=r"cannot download o/files .* \(peer closed connection\)"):
        fetched("hf:o/files")


def test_why_the_hub_cannot_be_reached_is_said(server, monkeypatch):
    monkeypatch.setattr(hub.HfApi, "repo_info", unreachable)
    with pytest.raises(ConfigError, match=r"reached \(connection refused\), and the cache has no"):
        fetched("hf:o/files")


@pytest.mark.parametrize("body", [b"<html>", b"[1, 2]", b"3", b'{"id": "o/files", "siblings": 3}'])
def test_an_answer_that_is_not_the_hubs_is_called_that(server, monkeypatch, body):
    monkeypatch.setattr(server, "answer", lambda handler: server.reply(handler, 200, body))
    with pytest.raises(ConfigError, match=r"^hf:o/files: http://127.* does not answer as the hub"):
        fetched("hf:o/files")


@pytest.fixture
def silent(server, monkeypatch):
    """A hub that never answers, until the test ends; set once it was asked."""
    asked, over = threading.Event(), threading.Event()
    monkeypatch.setattr(server, "answer", lambda handler: (asked.set(), over.wait(60)))
    yield asked
    over.set()


def test_a_hub_that_never_answers_is_not_waited_for(silent, monkeypatch):
    monkeypatch.setattr("toynn.formats.hub.PATIENCE", 0.1)
    with pytest.raises(
        ConfigError, match=r"reached \(no answer within 0\.1 seconds\), and the cache"
    ):
        fetched("hf:o/files")


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads")
def test_ctrl_c_ends_the_wait_for_the_hub(silent, capsys):
    main_thread = threading.main_thread().ident

    def press():
        silent.wait(60)
        signal.pthread_kill(main_thread, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    assert main(["info", "hf:o/files"]) == 130
    assert "stopped" in capsys.readouterr().err


def test_files_are_downloaded_in_the_thread_that_ctrl_c_interrupts(server, monkeypatch):
    """A pool of threads would go on downloading, and the process would wait for it."""
    threads, download = [], hub.file_download.http_get

    def get(*args, **more):
        threads.append(threading.current_thread())
        return download(*args, **more)

    monkeypatch.setattr(hub.file_download, "http_get", get)
    fetched("hf:o/folder")
    assert len(threads) > 1 and set(threads) == {threading.current_thread()}


def test_a_series_is_fetched_whole(server):
    path = fetched("hf:o/several/b-00001-of-00002.gguf")
    assert {each.name for each in path.parent.iterdir()} == {SEVERAL[2], "b-00002-of-00002.gguf"}


def test_the_context_of_a_model_that_sees_is_that_of_its_part_for_text(tmp_path):
    text = {"model_type": "gemma3_text", "max_position_embeddings": 32768}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert bases.context_length(tmp_path) == 32768


def test_without_the_library(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["info", "hf:o/files"]) == 2
    assert "pip install huggingface_hub" in capsys.readouterr().err


# -- Data ------------------------------------------------------------------------------------------


def parquet(*texts, column="text"):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    file = io.BytesIO()
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({column: list(texts)}), file)
    return file.getvalue()


LAYOUT = {
    "README.md": b"# words",
    "data/train-00000-of-00002-2d5a1467.parquet": lambda: parquet("one", "two"),
    "data/train-00001-of-00002-5852b56a.parquet": lambda: parquet("three"),
    "data/validation-00000-of-00001.parquet": lambda: parquet("four"),
}


@pytest.fixture
def data(server):
    """Data in the hub's layout; with a folder for each configuration; as lines of JSON."""
    made = {name: each if isinstance(each, bytes) else each() for name, each in LAYOUT.items()}
    server.repos["datasets/o/words"] = made
    several = {f"{each}/train-00000-of-00001.parquet": parquet(each) for each in ("main", "qa")}
    server.repos["datasets/o/several"] = several | {"README.md": b""}
    server.repos["datasets/o/lines"] = {"a_train.jsonl": b'{"text": "x"}\n', "a_eval.jsonl": b""}
    return server


def words_of(path):
    return [row["text"] for _, row in rows(Path(path), lambda *_: None)]


def test_shards_are_one_data_set_and_only_they_are_fetched(data, monkeypatch):
    told = []
    path = local_data("hf:o/words:2", lambda *said: told.append(said))
    assert path.endswith(f"{COMMIT}/data/train-*-of-00002-*.parquet:2")
    assert words_of(path[:-2]) == ["one", "two", "three"]
    assert set(data.sent) == {name for name in LAYOUT if "train" in name}
    assert told[0][1].endswith("other splits: validation (such as hf:o/words:validation)")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert local_data("hf:o/words:train") == path[:-2]
    with pytest.raises(DataError, match="there is no split validation"):
        local_data("hf:o/words:validation")
    with pytest.raises(ConfigError, match="cannot be reached, and the cache has no o/lines"):
        local_data("hf:o/lines")


@pytest.mark.parametrize("offline", [True, False])
def test_the_only_split_in_the_cache_is_not_taken_for_another(data, monkeypatch, offline):
    named, told = ("hf:o/words:validation", "hf:o/several/qa"), []
    paths = [local_data(each) for each in named]
    if offline:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr(hub.HfApi, "repo_info", unreachable)
    with pytest.raises(
        DataError, match=r"no split is called train in the cache \(connect .* valid"
    ):
        local_data("hf:o/words")
    with pytest.raises(DataError, match=r"there is one configuration in the cache .* slash: qa$"):
        local_data("hf:o/several")
    assert [local_data(each, lambda *said: told.append(said)) for each in named] == paths
    for (part, said), text in zip(told, named, strict=True):
        assert part == "data" and said.startswith(f"{text}: the hub cannot be reached: ")
    told.clear()
    local_data("hf:o/several/qa/train-00000-of-00001.parquet", lambda *said: told.append(said))
    assert not told  # it is what was named


@pytest.mark.parametrize("command", ["check", "eval"])
def test_check_and_eval_say_what_they_read_from_the_cache(
    data, model, monkeypatch, capsys, command
):
    data.repos["datasets/o/words"]["data/validation-00000-of-00001.parquet"] = parquet("four" * 9)
    words = [command, "--model", str(model / "run"), "--data", "hf:o/words:validation", "--json"]
    words += ["--seq", "16"]
    assert main(words) == 0
    before = capsys.readouterr()
    assert "the hub cannot be reached" not in before.err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(words) == 0
    after = capsys.readouterr()
    said = " ".join(after.err.split())
    assert "data hf:o/words:validation: the hub cannot be reached: data/validation-" in said
    assert json.loads(after.out).keys() == json.loads(before.out).keys()  # and nothing else


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hf:o/words:val@v1", ["four"]),
        ("hf:o/words/data/train-00001-of-00002-5852b56a.parquet", ["three"]),
        ("hf:o/several/qa", ["qa"]),
        ("hf:o/several/main:train", ["main"]),
        ("hf:o/several/main/:train", ["main"]),
        ("hf:o/lines", ["x"]),
    ],
)
def test_what_a_name_of_data_means(data, text, words):
    assert words_of(local_data(text)) == words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hf:o/nothing", "the hub has no dataset o/nothing"),
        ("hf:o/words:test", "there is no split test: name one after a colon: train, validation"),
        ("hf:o/several", "there are 2 configurations: name one after a slash: main, qa"),
        ("hf:o/words/en", "expected files (.parquet, .jsonl, "),
        (
            "hf:o/lines/a_eval.jsonl:test",
            "a_eval.jsonl is one file, which has no splits: leave :test",
        ),
        ("hf:o/words:", "name a split as in hf:OWNER/NAME:test"),
    ],
)
def test_data_that_are_refused(data, text, said):
    with pytest.raises(ToynnError) as caught:
        local_data(text)
    assert said in str(caught.value) and str(caught.value).startswith(text)


def test_data_whose_download_broke_go_on_and_a_missing_shard_is_said(data, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    name = "data/validation-00000-of-00001.parquet"
    data.cut = len(data.repos["datasets/o/words"][name]) // 100 * 100
    assert words_of(local_data("hf:o/words:validation")) == ["four"]
    assert data.sent[name] == len(data.repos["datasets/o/words"][name])
    del data.repos["datasets/o/words"]["data/train-00001-of-00002-5852b56a.parquet"]
    with pytest.raises(DataError, match="expected 2 shards; got 1: train-00000-of-00002"):
        local_data("hf:o/words")


def test_a_run_on_data_of_the_hub(data, model, tmp_path, capsys):
    """Nothing is fetched before all options are checked; a run goes on without a network."""
    train = ["train", "lora", "--model", "hf:o/files", "--seq", "16", "--threads", "1"]
    train += ["--data", "hf:o/words", "--report", "none", "--tokenizer", "hf:o/files"]
    assert main(["info", "hf:o/files", "--tokenizer", "hf:o/files", "--sek", "1"]) == 2
    for wrong in (["--stepz", "1"], ["--beta", "1"], ["--valid", "hf:o/words", "--holdout", "2"]):
        assert main([*train, *wrong]) == 2 and not data.sent
    valid = ["--valid", "hf:o/words:validation", "--steps", "1", "--out", str(tmp_path / "run")]
    assert main([*train, *valid]) == 0
    said = "".join(capsys.readouterr().out.split())
    assert "train-*-of-00002-*.parquet:3examples" in said
    assert "validation-00000-of-00001.parquet:1example," in said
    data.repos.clear()
    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "2"]) == 0
    path = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["train"]["data"]
    assert path.endswith(f"/datasets--o--words/snapshots/{COMMIT}/data/train-*-of-00002-*.parquet")
    capsys.readouterr()
    assert main(["check", "--data", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"][0]["parts"]["train"]["rows"] == 3


def test_a_run_is_trained_and_resumed(server, model, tmp_path, monkeypatch):
    """config.toml pins the commit, so the run goes on without a network."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(SLEEPY))
    words = f"train lora --model hf:o/folder --tokenizer hf:o/files --data {tmp_path}/rows.jsonl"
    words += f" --seq 16 --threads 1 --steps 1 --report none --out {tmp_path}/run"
    assert main(words.split()) == 0
    config = (tmp_path / "run" / "config.toml").read_text()
    assert f"models--o--folder/snapshots/{COMMIT}" in config
    server.repos.clear()
    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "2"]) == 0
    adapter = json.loads((tmp_path / "run" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == "o/folder"
