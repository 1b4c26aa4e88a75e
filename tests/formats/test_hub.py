"""Models by their name on the hub, from a server on this machine that speaks the hub's API."""

import hashlib
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from vocabs import bpe_file

from toynn.cli import main
from toynn.errors import ConfigError
from toynn.formats import bases
from toynn.formats.hub import fetched

hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "c0ffee" + "0" * 34
SEVERAL = ("a-q4_0.gguf", "a-q8_0.gguf", "b-00001-of-00002.gguf")
SLEEPY = {"text": "Once upon a time there was a robot. " * 20}


class Hub:
    """A hub of repositories, {name: {file: bytes}}; it counts the bytes that it sends."""

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
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, handler):
        parts = handler.path.partition("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        repo, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
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
        monkeypatch.setattr(hub.HfApi, "list_repo_files", unreachable)
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
        ("hf:", "expected hf:OWNER/NAME"),
        ("hf:o/nobody", "there is no model o/nobody; or it is private"),
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

    monkeypatch.setattr(hub, "snapshot_download", broken)
    with pytest.raises(ConfigError, match=r"cannot download o/files .* \(peer closed connection\)"):
        fetched("hf:o/files")


def test_why_the_hub_cannot_be_reached_is_said(server, monkeypatch):
    monkeypatch.setattr(hub.HfApi, "list_repo_files", unreachable)
    with pytest.raises(ConfigError, match=r"reached \(connection refused\), and the cache has no"):
        fetched("hf:o/files")


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
