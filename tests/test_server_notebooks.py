"""Notebooks in the language server: a client opens one, types in its cells, moves them, and takes fixes."""

import json

import pytest

pytest.importorskip("pygls")
pytest.importorskip("pytest_lsp")

from lsprotocol import types  # noqa: E402
from pygls import uris  # noqa: E402
from test_server import applied, editor, hovered, session  # noqa: E402, F401

from gradfix.cli import run  # noqa: E402

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETUP = "import torch\nw = torch.randn(3, requires_grad=True)\n"
MISTAKE = "# é𝄞\nh = w * 2\nh.sum().backward()\n'𝄞'; print(h.grad)"


class Notebook:
    """What an editor does with a notebook."""

    def __init__(self, editor, path, *cells, uri=None):  # noqa: F811
        self.editor, self.client = editor, editor.client
        self.uri = uri or uris.from_fs_path(str(path))
        self.version, self.made = 1, 0
        self.cells: list[str] = []
        documents = [self.document(c) for c in cells]
        self.client.notebook_document_did_open(
            types.DidOpenNotebookDocumentParams(
                types.NotebookDocument(self.uri, "jupyter-notebook", 1, [self.cell(d) for d in documents]), documents
            )
        )

    def document(self, text, language="python"):
        if isinstance(text, tuple):
            text, language = text
        uri = f"vscode-notebook-cell:{self.uri.partition(':')[2]}#W{self.made}s%3D"
        self.made += 1
        self.cells.append(uri)
        self.editor.texts[uri], self.editor.versions[uri] = text, 1
        return types.TextDocumentItem(uri, language, 1, text)

    @staticmethod
    def cell(document):
        kind = types.NotebookCellKind.Markup if document.language_id == "markdown" else types.NotebookCellKind.Code
        return types.NotebookCell(kind, document.uri)

    def _changed(self, change):
        self.version += 1
        self.client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(
                types.VersionedNotebookDocumentIdentifier(self.version, self.uri),
                types.NotebookDocumentChangeEvent(cells=change),
            )
        )

    def type(self, number, text):
        uri = self.cells[number - 1]
        self.editor.texts[uri] = text
        self.editor.versions[uri] += 1
        changed = types.NotebookDocumentCellContentChanges(
            types.VersionedTextDocumentIdentifier(uri=uri, version=self.editor.versions[uri]),
            [types.TextDocumentContentChangeWholeDocument(text)],
        )
        self._changed(types.NotebookDocumentCellChanges(text_content=[changed]))

    def insert(self, at, text):
        document = self.document(text)
        self.cells.insert(at, self.cells.pop())
        array = types.NotebookCellArrayChange(at, 0, [self.cell(document)])
        self._changed(types.NotebookDocumentCellChanges(types.NotebookDocumentCellChangeStructure(array, [document], [])))

    def remove(self, at):
        uri = self.cells.pop(at)
        array = types.NotebookCellArrayChange(at, 1, [])
        structure = types.NotebookDocumentCellChangeStructure(array, [], [types.TextDocumentIdentifier(uri)])
        self._changed(types.NotebookDocumentCellChanges(structure))
        return uri

    def close(self):
        self.client.notebook_document_did_close(
            types.DidCloseNotebookDocumentParams(
                types.NotebookDocumentIdentifier(self.uri), [types.TextDocumentIdentifier(uri) for uri in self.cells]
            )
        )

    def close_at_end(self):
        self.close()
        for uri in self.cells:
            del self.editor.texts[uri], self.editor.versions[uri]

    async def codes(self, number):
        return await self.editor.codes(self.cells[number - 1])

    async def edited(self, number, only=None):
        """The texts of the cells after each action that is offered for one."""
        out = []
        for action in await self.editor.actions(self.cells[number - 1], only=only):
            after = await self.editor.edited(action)
            out.append((action.title, [after.get(uri, self.editor.texts[uri]) for uri in self.cells]))
        return out


def as_apply_does(path, cells):
    made = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": c} for c in cells]
    path.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))
    run(["apply", "--isolated", "-q", "-j1", str(path)])
    return [c["source"] for c in json.loads(path.read_text())["cells"]]


@pytest.fixture
def opened(editor):  # noqa: F811
    books = []

    def make(path, *cells, **more):
        books.append(Notebook(editor, path, *cells, **more))
        return books[-1]

    yield make
    for book in books:
        book.close_at_end()


async def test_findings_stand_in_their_cells(editor, opened, tmp_path):  # noqa: F811
    book = opened(tmp_path / "é.ipynb", SETUP, ("# prose\n`h.grad`", "markdown"), "%matplotlib inline\n!ls\n", MISTAKE)
    (found,) = await editor.diagnostics(book.cells[3])
    assert found.code == "GF101" and await book.codes(1) == [] == await book.codes(3)
    assert found.range == types.Range(types.Position(3, 12), types.Position(3, 18))  # `'𝄞'; print(` in UTF-16 units
    assert {(r.location.uri, r.location.range.start.line) for r in found.related_information} == {
        (book.cells[3], 1),
        (book.cells[3], 2),
    }
    assert "GF101" in (await hovered(editor, book.cells[3], 3, 13)).contents.value
    assert await hovered(editor, book.cells[0], 1, 1) is None


async def test_cells_are_one_program(editor, opened, tmp_path):  # noqa: F811
    parts = MISTAKE.split("\n")
    book = opened(tmp_path / "a.ipynb", SETUP, *parts[1:])
    (found,) = await editor.diagnostics(book.cells[3])
    assert [r.location.uri for r in found.related_information] == [book.cells[2], book.cells[1]]
    book.type(2, "h = w * 2; h.retain_grad()")
    assert await book.codes(2) == []
    await editor.until_codes(book.cells[3], [])


async def test_fixes_are_those_of_apply(editor, opened, tmp_path):  # noqa: F811
    texts = [SETUP, MISTAKE, MISTAKE.replace("h", "k").replace("k.sum()", "%time k.sum()").replace("torck", "torch")]
    wanted = as_apply_does(tmp_path / "b.ipynb", texts)
    (tmp_path / "b.ipynb").unlink()
    book = opened(tmp_path / "a.ipynb", *texts)
    assert await book.codes(2) == await book.codes(3) == ["GF101"]
    assert "h.retain_grad()\nh.sum()" in wanted[1] and "k.retain_grad()" in wanted[2]
    second = await book.edited(2)
    assert second[0][1] == [texts[0], wanted[1], texts[2]]
    assert (await book.edited(3))[0][1] == [texts[0], texts[1], wanted[2]]
    assert second[1] == ("GradFix: Apply all safe fixes", wanted)
    assert [text for _, text in await book.edited(2, only=["notebook.source.fixAll"])] == [wanted]
    assert [text for _, text in await book.edited(1, only=["source.fixAll"])] == [wanted]


async def test_cells_come_and_go(editor, opened, tmp_path):  # noqa: F811
    book = opened(tmp_path / "a.ipynb", SETUP)
    assert await book.codes(1) == []
    book.insert(1, MISTAKE)
    assert await book.codes(2) == ["GF101"]
    book.insert(1, "w = w * 3\n")
    book.insert(0, "x = 1")
    assert await book.codes(4) == ["GF101"] and len(book.cells) == 4
    gone = book.remove(3)
    await editor.until_codes(gone, [])
    book.insert(3, "w = torch.zeros(3, requires_grad=True)\nw.sum().backward()\nw -= w.grad\n")
    assert await book.codes(4) == ["GF502"]
    book.close()
    for uri in book.cells:
        await editor.until_codes(uri, [])


async def test_a_cell_that_is_no_python(editor, opened, tmp_path):  # noqa: F811
    book = opened(tmp_path / "a.ipynb", SETUP, MISTAKE, "y = (")
    (wrong,) = await editor.diagnostics(book.cells[2])
    assert wrong.code is None and wrong.range.start.line == 0 and await book.codes(2) == ["GF101"]
    book.type(3, "y = ()")
    assert await book.codes(3) == []


async def test_a_notebook_reads_modules_and_the_unsaved_text_counts(editor, opened, tmp_path):  # noqa: F811
    (tmp_path / "made.py").write_text("def make(w):\n    return w * 2\n")
    book = opened(tmp_path / "a.ipynb", SETUP + "import made\n", "h = made.make(w)\nh.sum().backward()\nprint(h.grad)\n")
    (found,) = await editor.diagnostics(book.cells[1])
    assert found.code == "GF101"
    module = editor.open(tmp_path / "made.py")
    editor.type(module, editor.texts[module].replace(" * 2", ""))
    await editor.until_codes(book.cells[1], [])


async def test_other_languages_and_notebooks_without_a_file(editor, opened, tmp_path):  # noqa: F811
    book = opened(None, SETUP, ("SELECT h.grad", "sql"), MISTAKE, uri="untitled:Untitled-1.ipynb?jupyter-notebook")
    assert await book.codes(3) == ["GF101"] and await book.codes(2) == []


async def test_a_cell_without_its_notebook_is_let_be(editor, tmp_path):  # noqa: F811
    uri = editor.open(f"vscode-notebook-cell:{tmp_path}/a.ipynb#W0", SETUP + MISTAKE)
    other = editor.open(tmp_path / "a.py", SETUP + MISTAKE)
    assert await editor.codes(other) == ["GF101"] and uri not in editor.sent


async def test_an_empty_notebook(editor, opened, tmp_path):  # noqa: F811
    book = opened(tmp_path / "a.ipynb")
    book.insert(0, SETUP)
    book.insert(1, MISTAKE)
    assert await book.codes(2) == ["GF101"]
