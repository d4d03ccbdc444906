"""The language server, spoken to by a real client over stdio."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pygls")
pytest.importorskip("pytest_lsp")

import pytest_asyncio  # noqa: E402
from lsprotocol import types  # noqa: E402
from pygls import uris  # noqa: E402
from pygls.exceptions import JsonRpcException  # noqa: E402
from pytest_lsp.client import DEFAULT_CLIENT_FEATURES, LanguageClient, default_converter, register_lsp_features  # noqa: E402

from gradfix import codemod, engine  # noqa: E402
from gradfix.config import Config  # noqa: E402
from gradfix.runner import Runner  # noqa: E402

ROOT = Path(__file__).parent.parent
RETAIN = """\
import torch

w = torch.randn(3, requires_grad=True)
h = w * 2
h.sum().backward()
{before}print(h.grad)
"""
pytestmark = pytest.mark.asyncio(loop_scope="module")  # one server serves most tests


class Editor:
    """What an editor does, with the texts that it holds and every diagnostic that it was sent."""

    def __init__(self, client):
        self.client, self.texts, self.versions, self.sent = client, {}, {}, {}
        self.messages, self.registered = [], []
        self.news = asyncio.Condition()

        @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        async def published(params):
            async with self.news:
                self.sent.setdefault(params.uri, []).append(params)
                self.news.notify_all()

        @client.feature(types.WINDOW_SHOW_MESSAGE)
        async def shown(params):
            async with self.news:
                self.messages.append(params.message)
                self.news.notify_all()

        @client.feature(types.CLIENT_REGISTER_CAPABILITY)
        def register(params):
            self.registered.extend(params.registrations)

        others = {m: f for m, f in DEFAULT_CLIENT_FEATURES.items() if m not in client.protocol.fm.features}
        register_lsp_features(client, others)

    def open(self, path, text=None, language="python"):
        uri = uris.from_fs_path(str(path)) if isinstance(path, Path) else path
        text = path.read_bytes().decode() if text is None else text
        self.texts[uri], self.versions[uri] = text, 1
        self.client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, language, 1, text))
        )
        return uri

    def type(self, uri, text):
        self.texts[uri] = text
        self.versions[uri] += 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(uri=uri, version=self.versions[uri]),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    def close(self, uri):
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri)))

    def changed_on_disk(self, *paths):
        events = [types.FileEvent(uris.from_fs_path(str(p)), types.FileChangeType.Changed) for p in paths]
        self.client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams(events))

    def folders(self, added=(), removed=()):
        def of(paths):
            return [types.WorkspaceFolder(uris.from_fs_path(str(p)), p.name) for p in paths]

        event = types.WorkspaceFoldersChangeEvent(of(added), of(removed))
        self.client.workspace_did_change_workspace_folders(types.DidChangeWorkspaceFoldersParams(event))

    async def until(self, true, what):
        async with self.news:
            try:
                await asyncio.wait_for(self.news.wait_for(true), 20)
            except asyncio.TimeoutError:
                raise AssertionError(f"never saw {what}; sent: {self.sent}") from None

    async def diagnostics(self, uri):
        """Those of the text as it is now."""
        version = self.versions[uri]
        await self.until(lambda: any(p.version == version for p in self.sent.get(uri, ())), f"version {version} of {uri}")
        return list(self.sent[uri][-1].diagnostics)

    async def codes(self, uri):
        return [d.code for d in await self.diagnostics(uri)]

    async def until_codes(self, uri, codes):
        await self.until(lambda: uri in self.sent and [d.code for d in self.sent[uri][-1].diagnostics] == codes, codes)

    async def actions(self, uri, where=None, only=None):
        everywhere = types.Range(types.Position(0, 0), types.Position(100_000, 0))
        context = types.CodeActionContext(diagnostics=[], only=only)
        params = types.CodeActionParams(types.TextDocumentIdentifier(uri), where or everywhere, context)
        return list(await self.client.text_document_code_action_async(params))

    async def edited(self, action):
        """uri -> text, as the action would leave it."""
        if action.edit is None:
            action = await self.client.code_action_resolve_async(action)
        out = {}
        for edit in action.edit.document_changes:
            uri = edit.text_document.uri
            assert edit.text_document.version == self.versions.get(uri)
            out[uri] = applied(self.texts[uri], edit.edits)
        return out


def applied(text, edits, encoding="utf-16-le", width=2):
    """Text edits applied as the specification says, by another route than the server's."""
    lines = text.replace("\r\n", "\0\0").replace("\r", "\n").replace("\0\0", "\r\n").split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)

    def offset(position):
        if position.line >= len(lines):
            return len(text)
        line = text[starts[position.line] : starts[position.line + 1]]
        return starts[position.line] + len(line.encode(encoding)[: position.character * width].decode(encoding))

    for edit in sorted(edits, key=lambda e: (e.range.start.line, e.range.start.character), reverse=True):
        text = text[: offset(edit.range.start)] + edit.new_text + text[offset(edit.range.end) :]
    return text


def capabilities(resolve=True, encodings=None):
    return types.ClientCapabilities(
        general=types.GeneralClientCapabilities(position_encodings=encodings) if encodings else None,
        workspace=types.WorkspaceClientCapabilities(
            workspace_edit=types.WorkspaceEditClientCapabilities(document_changes=True),
            did_change_watched_files=types.DidChangeWatchedFilesClientCapabilities(dynamic_registration=True),
        ),
        text_document=types.TextDocumentClientCapabilities(
            code_action=types.CodeActionClientCapabilities(
                data_support=True, resolve_support=types.ClientCodeActionResolveOptions(["edit"]) if resolve else None
            )
        ),
    )


async def start(folders=(), **how):
    client = LanguageClient(converter_factory=default_converter)
    editor = Editor(client)
    await client.start_io(sys.executable, "-m", "gradfix", "server", "--stdio")
    await client.initialize_session(
        types.InitializeParams(
            capabilities(**how), workspace_folders=[types.WorkspaceFolder(uris.from_fs_path(str(f)), f.name) for f in folders]
        )
    )
    return editor


async def stop(editor):
    await asyncio.wait_for(editor.client.shutdown_session(), 20)
    await editor.client.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(tmp_path_factory):
    editor = await start([tmp_path_factory.mktemp("elsewhere")])
    yield editor
    await stop(editor)


@pytest_asyncio.fixture(loop_scope="module")
async def editor(session, tmp_path):
    """The session, with the test's folder in its workspace."""
    session.folders(added=[tmp_path])
    yield session
    for uri in list(session.texts):
        session.close(uri)
        del session.texts[uri], session.versions[uri]
        session.sent.pop(uri, None)
    session.messages.clear()
    session.folders(removed=[tmp_path])


async def test_a_finding_as_the_text_is_opened(editor, tmp_path):
    uri = editor.open(tmp_path / "é.py", RETAIN.format(before='s = "𝄞é"; '))
    (found,) = await editor.diagnostics(uri)
    assert (found.code, found.source, found.severity) == ("GF101", "gradfix", types.DiagnosticSeverity.Error)
    # `s = "𝄞é"; print(` is 16 code points, 17 UTF-16 units.
    assert found.range == types.Range(types.Position(5, 17), types.Position(5, 23))
    assert "retain_grad" in found.message
    assert {(r.location.uri, r.location.range.start.line) for r in found.related_information} == {(uri, 4), (uri, 3)}


@pytest.mark.parametrize("encoding, column", [("utf-8", 20), ("utf-32", 16)])
async def test_positions_in_the_units_that_the_client_asks_for(tmp_path, encoding, column):
    editor = await start([tmp_path], encodings=[encoding])
    uri = editor.open(tmp_path / "a.py", RETAIN.format(before='s = "𝄞é"; '))
    (found,) = await editor.diagnostics(uri)
    assert found.range.start == types.Position(5, column)
    hover = await hovered(editor, uri, 5, column + 2)
    assert hover.range == found.range
    await stop(editor)


async def hovered(editor, uri, line, character):
    params = types.HoverParams(types.TextDocumentIdentifier(uri), types.Position(line, character))
    return await editor.client.text_document_hover_async(params)


def as_apply_does(path, unsafe=False):
    """The findings in a file and what can't be read of it, what `gradfix apply` makes of it, and how many it fixed."""
    settings = engine.settings_from(Config(), str(ROOT), codemod.load(), unsafe_fixes=unsafe)
    with Runner(1) as runner:
        result = engine.check([str(path)], settings, runner)
        done = engine.apply([str(path)], settings, runner)
    return (result.findings, result.problems), done.after.get(str(path), path.read_bytes()).decode(), len(done.fixed)


FIXTURES = sorted((ROOT / "fixtures").glob("*/*.py"))[:: int(os.environ.get("GRADFIX_EVERY", 10))]


async def test_fixes_are_those_of_apply(editor, tmp_path):
    """Every fixture, with characters beyond ASCII in front and CRLF in every second one."""
    single = total = 0
    for number, fixture in enumerate(FIXTURES):
        text = 's = "𝄞é"\n' + fixture.read_text()
        path = tmp_path / f"{number}.py"
        path.write_bytes(text.replace("\n", "\r\n" if number % 2 else "\n").encode())
        uri = editor.open(path)
        (found, problems), after, _ = as_apply_does(path)
        wanted = [(None, p.row) for p in problems] + [(f.code, f.span.row) for f in found]
        assert [(d.code, d.range.start.line + 1) for d in await editor.diagnostics(uri)] == wanted
        actions = await editor.actions(uri)
        fixes = [a for a in actions if a.kind == types.CodeActionKind.QuickFix]
        assert len(fixes) == sum(f.fix is not None for f in found)
        fix_all = [a for a in actions if a.kind == "source.fixAll.gradfix"]
        if fix_all:
            assert (await editor.edited(fix_all[0]))[uri] == after, fixture
            total += 1
        else:
            assert after == editor.texts[uri], fixture
        if len(fixes) == 1:
            _, wanted, rounds = as_apply_does(path, unsafe=True)
            if rounds == 1:
                assert (await editor.edited(fixes[0]))[uri] == wanted, fixture
                single += 1
        editor.close(uri)
        path.unlink()
    assert single and total


TYPO = "import torch\n\nx = torch.randn(3)\nx.require_grad = True\n"
CLEAN = "import torch\n\nx = torch.randn(3)\nx.requires_grad = True\n"
TRAIN = """\
import torch
from model import Net

net = Net()
loss = net(torch.randn(2, 4)).sum()
loss.backward()
print(net.features.grad)
"""
MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        self.features = torch.tanh(self.body(x))
        return self.body(self.features)
"""


async def test_the_whole_project_and_unsaved_texts_count(editor, tmp_path):
    (tmp_path / "model.py").write_text("Net = unknown\n")
    (tmp_path / "train.py").write_text(TRAIN)
    train = editor.open(tmp_path / "train.py")
    assert await editor.codes(train) == []
    model = editor.open(tmp_path / "model.py")
    editor.type(model, MODEL)
    await editor.until_codes(train, ["GF101"])
    (found,) = editor.sent[train][-1].diagnostics
    assert model in {r.location.uri for r in found.related_information}
    editor.close(model)  # without saving
    del editor.texts[model]
    await editor.until_codes(train, [])
    await editor.until(lambda: not editor.sent[model][-1].diagnostics, "the closed file's diagnostics go")
    (tmp_path / "model.py").write_text(MODEL)  # by another program
    editor.changed_on_disk(tmp_path / "model.py")
    await editor.until_codes(train, ["GF101"])


async def test_only_the_last_of_many_edits_counts(editor, tmp_path):
    uri = editor.open(tmp_path / "a.py", CLEAN)
    await editor.diagnostics(uri)
    for i in range(200):
        editor.type(uri, (TYPO if i % 2 else CLEAN) + "# x" * i + "\n")
        if i % 20 == 0:
            await asyncio.sleep(0.02)
    assert await editor.codes(uri) == ["GF203"]
    versions = [p.version for p in editor.sent[uri]]
    assert versions == sorted(versions) and len(versions) < 60
    action = (await editor.actions(uri))[0]
    assert (await editor.edited(action))[uri] == editor.texts[uri].replace("require_grad", "requires_grad")


async def test_findings_stay_while_the_text_is_no_python(editor, tmp_path):
    uri = editor.open(tmp_path / "a.py", TYPO)
    assert await editor.codes(uri) == ["GF203"]
    editor.type(uri, "def f(\n" + TYPO)
    problem, kept = await editor.diagnostics(uri)
    assert problem.code is None and problem.message.startswith("syntax error: ") and problem.range.start.line == 0
    assert kept.code == "GF203" and kept.range.start.line == 4
    assert await editor.actions(uri) == []
    assert "requires_grad" in (await hovered(editor, uri, 4, 3)).contents.value
    editor.type(uri, TYPO.replace("x.require_grad = True", "x.require_grad = ("))  # the line itself
    assert await editor.codes(uri) == [None]
    editor.type(uri, "def f():\n    pass\n" + TYPO)
    (found,) = await editor.diagnostics(uri)
    assert found.code == "GF203" and found.range.start.line == 5


async def test_text_that_never_was_python(editor, tmp_path):
    uri = editor.open(tmp_path / "a.py", "def f(\n" + TYPO)
    assert await editor.codes(uri) == [None]
    editor.type(uri, "\ud800 = 1\n")
    assert await editor.codes(uri) == [None]
    editor.type(uri, "")
    assert await editor.codes(uri) == []
    editor.type(uri, TYPO)
    assert await editor.codes(uri) == ["GF203"]


async def test_the_config_is_read_again(editor, tmp_path):
    config = tmp_path / "pyproject.toml"
    uri = editor.open(tmp_path / "a.py", TYPO)
    assert await editor.codes(uri) == ["GF203"]
    config.write_text('[tool.gradfix]\nignore = ["GF203"]\n')
    editor.changed_on_disk(config)
    await editor.until_codes(uri, [])
    config.write_text('[tool.gradfix]\nignore = ["GF2"]\nnonsense = 1\n')
    editor.changed_on_disk(config)
    await editor.until(lambda: editor.messages, "a message")
    (message,) = editor.messages
    assert str(config) in message and "nonsense" in message
    editor.type(uri, TYPO + "\n")
    assert await editor.codes(uri) == []  # the last config that was right
    config.write_text('[tool.gradfix]\nunfixable = ["GF203"]\n')
    editor.changed_on_disk(config)
    await editor.until_codes(uri, ["GF203"])
    assert await editor.actions(uri) == []
    config.write_text('[tool.gradfix]\nexclude = ["a.py"]\n')
    editor.changed_on_disk(config)
    await editor.until_codes(uri, [])
    config.unlink()
    (tmp_path / "gradfix.toml").write_text('per-file-ignores = { "b.py" = ["ALL"] }\n')
    editor.changed_on_disk(config)
    await editor.until_codes(uri, ["GF203"])
    other = editor.open(tmp_path / "b.py", TYPO)
    assert await editor.codes(other) == []


async def test_rules_that_need_more_of_the_analysis(editor, tmp_path):
    uri = editor.open(tmp_path / "a.py", TYPO + "y = x.cuda(async=True)\n")
    assert await editor.codes(uri) == [None]
    (tmp_path / "gradfix.toml").write_text('extend-select = ["GF9"]\n')
    editor.changed_on_disk(tmp_path / "gradfix.toml")
    await editor.until_codes(uri, ["GF203", "GF906"])
    assert (await editor.edited((await editor.actions(uri))[1]))[uri] == TYPO + "y = x.cuda(non_blocking=True)\n"
    (tmp_path / "gradfix.toml").unlink()
    editor.changed_on_disk(tmp_path / "gradfix.toml")
    await editor.until_codes(uri, [None])


async def test_folders_come_and_go(editor, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, ignored in ((one, "GF203"), (two, "GF101")):
        folder.mkdir()
        (folder / "gradfix.toml").write_text(f'ignore = ["{ignored}"]\n')
        (folder / "model.py").write_text(MODEL)
    uris_ = [editor.open(folder / "train.py", TRAIN + TYPO) for folder in (one, two)]
    assert [await editor.codes(uri) for uri in uris_] == [["GF101", "GF203"]] * 2  # the outer folder has no config
    editor.folders(added=[one, two])
    await editor.until_codes(uris_[0], ["GF101"])
    await editor.until_codes(uris_[1], ["GF203"])
    editor.folders(removed=[two])
    await editor.until_codes(uris_[1], ["GF101", "GF203"])
    editor.folders(removed=[one])
    await editor.until_codes(uris_[0], ["GF101", "GF203"])


async def test_files_outside_and_texts_without_a_file(editor, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "gradfix.toml").write_text('select = ["GF203"]\n')
    (outside / "model.py").write_text(MODEL)
    assert await editor.codes(editor.open(outside / "train.py", TRAIN + TYPO)) == ["GF203"]
    assert await editor.codes(editor.open("untitled:Untitled-1", TYPO)) == ["GF203"]


async def test_what_check_leaves_out_is_left_out(editor, tmp_path):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".gitignore").write_text("generated/\n")
    (tmp_path / "generated").mkdir()
    assert await editor.codes(editor.open(tmp_path / ".venv" / "a.py", TYPO)) == []
    # An ignored file that is opened is wanted, as one that is named on the command line.
    assert await editor.codes(editor.open(tmp_path / "generated" / "a.py", TYPO)) == ["GF203"]
    assert await editor.codes(editor.open(tmp_path / "b.py", TYPO + "# gradfix: skip-file\n")) == []
    editor.open(tmp_path / "notes.md", "x.require_grad = True\n", language="markdown")
    assert await editor.codes(editor.open(tmp_path / "c.py", TYPO)) == ["GF203"]
    assert uris.from_fs_path(str(tmp_path / "notes.md")) not in editor.sent


async def test_a_request_can_be_cancelled(editor, tmp_path):
    for i in range(40):
        (tmp_path / f"m{i}.py").write_text(TRAIN + MODEL)
    uri = editor.open(tmp_path / "a.py", TYPO)
    context = types.CodeActionContext(diagnostics=[])
    where = types.Range(types.Position(0, 0), types.Position(9, 0))
    params = types.CodeActionParams(types.TextDocumentIdentifier(uri), where, context)
    client = editor.client
    waiting = client.protocol.send_request_async(types.TEXT_DOCUMENT_CODE_ACTION, params, msg_id="mine")
    waiting = asyncio.ensure_future(waiting)
    await asyncio.sleep(0)
    client.cancel_request(types.CancelParams("mine"))
    with pytest.raises(JsonRpcException) as error:
        await asyncio.wait_for(waiting, 20)
    assert error.value.code == types.LSPErrorCodes.RequestCancelled
    assert await editor.codes(uri) == ["GF203"]


async def test_an_old_code_action_is_refused(editor, tmp_path):
    uri = editor.open(tmp_path / "a.py", TYPO)
    action = (await editor.actions(uri))[0]
    editor.type(uri, "\n" + TYPO)
    with pytest.raises(JsonRpcException) as error:
        await editor.client.code_action_resolve_async(action)
    assert error.value.code == types.LSPErrorCodes.ContentModified


async def test_which_actions_are_offered(editor, tmp_path):
    uri = editor.open(tmp_path / "a.py", RETAIN.format(before="") + TYPO)
    safe, unsafe, fix_all = await editor.actions(uri)
    assert safe.title == "GradFix (GF101): Insert `h.retain_grad()` before backward" and safe.is_preferred
    assert unsafe.title.startswith("GradFix (GF203): ") and unsafe.title.endswith(" (unsafe)") and not unsafe.is_preferred
    assert fix_all.title == "GradFix: Apply all safe fixes"
    assert [a.kind for a in await editor.actions(uri, only=["quickfix"])] == ["quickfix"] * 2
    assert [a.kind for a in await editor.actions(uri, only=["source.fixAll"])] == ["source.fixAll.gradfix"]
    assert await editor.actions(uri, only=["refactor"]) == []
    first_line = types.Range(types.Position(0, 0), types.Position(0, 0))
    assert await editor.actions(uri, first_line, only=["quickfix"]) == []
    cursor = types.Range(types.Position(5, 8), types.Position(5, 8))
    (action,) = await editor.actions(uri, cursor, only=["quickfix"])
    assert [*action.diagnostics] == [(await editor.diagnostics(uri))[0]]
    assert (await editor.edited(fix_all))[uri] == editor.texts[uri].replace("h.sum()", "h.retain_grad()\nh.sum()")


async def test_hover_explains_the_rule(editor, tmp_path):
    uri = editor.open(tmp_path / "a.py", TYPO + "y = 1  # gradfix: ignore[retain-grad]\nz = 1  # noqa: GF101\n")
    hover = await hovered(editor, uri, 3, 4)
    rule = next(r for r in codemod.load() if r.code == "GF203")
    page = (await editor.diagnostics(uri))[0].code_description
    assert rule.url is None and rule.summary in Path(uris.to_fs_path(page.href)).read_text(encoding="utf-8").replace("\n", " ")
    assert hover.contents.kind == "markdown" and rule.doc in hover.contents.value
    assert await hovered(editor, uri, 0, 0) is None
    for line, column in ((4, 30), (5, 16)):
        assert "retain-grad" in (await hovered(editor, uri, line, column)).contents.value


async def test_a_client_that_knows_little(tmp_path):
    """No lazy edits, no versions in edits, no watching, one root folder."""
    client = LanguageClient(converter_factory=default_converter)
    editor = Editor(client)
    await client.start_io(sys.executable, "-m", "gradfix", "server", "--ignore", "GF101")
    root = uris.from_fs_path(str(tmp_path))
    await client.initialize_session(types.InitializeParams(types.ClientCapabilities(), root_uri=root))
    (tmp_path / "model.py").write_text(MODEL)
    uri = editor.open(tmp_path / "train.py", TRAIN + TYPO)
    assert await editor.codes(uri) == ["GF203"] and editor.registered == []
    for action in await editor.actions(uri):
        assert applied(editor.texts[uri], action.edit.changes[uri]) == TRAIN + CLEAN
    (tmp_path / "gradfix.toml").write_text('ignore = ["GF203"]\n')
    client.text_document_did_save(types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(uri)))
    await editor.until_codes(uri, [])
    await stop(editor)


async def test_it_ends_with_its_client(tmp_path):
    for i in range(300):
        (tmp_path / f"m{i}.py").write_text(TRAIN.replace("model", f"m{i}") + MODEL)
    editor = await start([tmp_path])
    editor.open(tmp_path / "m0.py")
    await asyncio.sleep(0.3)  # it analyses
    process = editor.client._server
    process.stdin.close()  # the editor crashed
    assert await asyncio.wait_for(process.wait(), 10) == 0
    await editor.client.stop()


async def test_wrong_options_are_said_before_the_editor_is_answered():
    for arguments in (["--select", "nonsense"], ["--target-torch", "x"], ["--isolated", "--config", "a.toml"]):
        done = subprocess.run([sys.executable, "-m", "gradfix", "server", *arguments], capture_output=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 2 and done.stdout == b"" and done.stderr.startswith(b"error: ")


async def test_the_session_asked_to_watch_files(session):
    (registration,) = session.registered
    patterns = {w["globPattern"] for w in registration.register_options["watchers"]}
    assert {"**/*.py", "**/pyproject.toml", "**/gradfix.toml"} <= patterns
