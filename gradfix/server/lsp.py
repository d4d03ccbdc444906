"""The protocol: documents and requests in, diagnostics, code actions and hovers out.

The event loop keeps the texts and talks to the client.  All analysis is done in one thread, on a snapshot of the texts;
a newer text stops it, and nothing is published of an older one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcContentModified
from pygls.lsp.server import LanguageServer
from pygls.workspace import PositionCodec

from gradfix import __version__, engine, suppressions
from gradfix.codemod import Codemod
from gradfix.findings import Applicability, Finding, Severity, Span
from gradfix.runner import describe
from gradfix.server.folder import Cancelled, CellText, Document, Folder, Options, notebook_text
from gradfix.server.positions import Text

DELAY = 0.025  # seconds without a keystroke before the analysis starts
SOURCE = "gradfix"
FIX_ALL = "source.fixAll.gradfix"
FIX_NOTEBOOK = "notebook.source.fixAll.gradfix"
NOTEBOOKS = types.NotebookDocumentSyncOptions(
    [types.NotebookDocumentFilterWithCells(cells=[types.NotebookCellLanguage("python")], notebook="*")], save=True
)
SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFO: types.DiagnosticSeverity.Information,
}
WATCHED = ("**/*.py", "**/*.pyw", "**/*.ipynb", "**/pyproject.toml", "**/gradfix.toml", "**/.gitignore")


@dataclass
class Job:
    """A snapshot for the analysis."""

    generation: int
    documents: list[Document]
    roots: list[str]
    refresh: bool


@dataclass
class Seen:
    """What the last analysis said of an open text: a document, or a cell of one."""

    document: Document
    folder: Folder
    text: str
    version: int | None
    diagnostics: list[tuple[types.Diagnostic, Finding | None]] = field(default_factory=list)


class Server(LanguageServer):
    def __init__(self, options: Options):
        sync = types.TextDocumentSyncKind.Full
        super().__init__("gradfix", __version__, text_document_sync_kind=sync, notebook_document_sync=NOTEBOOKS)
        self.options = options
        self.open: dict[str, types.TextDocumentItem] = {}
        self.folders: dict[str, Folder] = {}  # the analysing thread's
        self.seen: dict[str, Seen] = {}
        self.published: dict[str, tuple] = {}
        self.complaints: set[str] = set()
        self.generation = 0
        self.refresh = False
        self.due = 0.0
        self.analyst = ThreadPoolExecutor(1, thread_name_prefix="analysis")
        self.wake = asyncio.Event()
        self.settled = asyncio.Event()
        self.worker: asyncio.Task | None = None

    # ------------------------------------------------------------------ when to analyse
    def touch(self, refresh: bool = False, delay: float = DELAY) -> None:
        """Something changed: analyse soon, and stop what runs for the state before."""
        self.generation += 1
        self.refresh |= refresh
        self.due = asyncio.get_running_loop().time() + delay
        self.settled.clear()
        self.wake.set()
        if self.worker is None:
            self.worker = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.wake.wait()
            while (left := self.due - loop.time()) > 0:
                await asyncio.sleep(left)
            self.wake.clear()
            job = Job(self.generation, self._documents(), self._roots(), self.refresh)
            self.refresh = False
            try:
                seen = await loop.run_in_executor(self.analyst, self._analyse, job)
            except Cancelled:
                continue
            except Exception as error:
                self._log(f"the analysis failed: {describe(error)}")
                seen = {}
            if job.generation == self.generation:
                self.seen = seen
                self._publish()
                self.settled.set()

    def stop(self) -> None:
        self.generation += 1
        if self.worker is not None:
            self.worker.cancel()
        self.analyst.shutdown(wait=False, cancel_futures=True)

    def shutdown(self) -> None:
        """The connection has ended, perhaps without a word."""
        self.stop()
        super().shutdown()

    def _documents(self) -> list[Document]:
        return [Document(uri, path_of(uri), d.text, d.version) for uri, d in self.open.items()] + [
            self._notebook(uri, notebook) for uri, notebook in self._notebooks().items()
        ]

    def _notebooks(self) -> dict[str, types.NotebookDocument]:
        return {notebook.uri: notebook for notebook in self.workspace.notebook_documents.values()}

    def _notebook(self, uri: str, notebook: types.NotebookDocument) -> Document:
        known, cells = self.workspace.text_documents, []
        for cell in notebook.cells:
            document = known.get(unquote(cell.document))
            code = cell.kind == types.NotebookCellKind.Code and document is not None
            language = document.language_id or "python" if code else None
            cells.append(CellText(cell.document, document.source if code else "", code and document.version, language))
        path = path_of(uri)
        path = path if path.endswith(".ipynb") else path + ".ipynb"  # one without a file
        return Document(uri, path, notebook_text(cells), notebook.version, cells=cells)

    def open_uris(self) -> dict[str, int | None]:
        """The texts that the editor holds, and their versions."""
        cells = (cell for uri, notebook in self._notebooks().items() for cell in self._notebook(uri, notebook).cells)
        return {uri: d.version for uri, d in self.open.items()} | {c.uri: c.version for c in cells if c.language is not None}

    def _roots(self) -> list[str]:
        found = [uris.to_fs_path(uri) for uri in self.workspace.folders]
        if not found and self.workspace.root_path:
            found = [self.workspace.root_path]
        return [os.path.normpath(path) for path in found if path]

    def _log(self, message: str) -> None:
        self.window_log_message(types.LogMessageParams(types.MessageType.Error, message))

    # ------------------------------------------------------------------ in the analysing thread
    def _analyse(self, job: Job) -> dict[str, Seen]:
        roots = {root: self.folders.get(root) for root in job.roots}
        groups: dict[str, list[Document]] = {}
        for document in job.documents:
            root = innermost(job.roots, document.path) or document.path
            roots.setdefault(root, self.folders.get(root))
            groups.setdefault(root, []).append(document)
        for root in roots:
            if roots[root] is None and root in groups:
                roots[root] = Folder(root, self.options, alone=root not in job.roots)
            elif roots[root] is not None and job.refresh:
                roots[root].refresh()
        self.folders = {root: folder for root, folder in roots.items() if folder is not None}
        seen = {}
        for root, documents in groups.items():
            folder = self.folders[root]
            folder.runner.cancelled = lambda: self.generation != job.generation
            folder.check(documents)
            texts = Texts(folder, documents, self.workspace.position_codec)
            for document in documents:
                for part in [document] if document.cells is None else [c for c in document.cells if c.language is not None]:
                    seen[part.uri] = Seen(document, folder, part.text, part.version)
                for uri, diagnostic, finding in self._diagnostics(folder, document, texts):
                    if uri in seen:
                        seen[uri].diagnostics.append((diagnostic, finding))
        return seen

    def _diagnostics(self, folder: Folder, document: Document, texts: Texts):
        """URIs of the document or its cells, diagnostics and their findings."""
        for problem in document.problems:
            uri, text = texts.of(document.path, problem.cell or (1 if document.cells else None))
            place = types.Range(*[text.position(problem.row or 1, (problem.col or 1) - 1)] * 2)
            yield uri, types.Diagnostic(place, problem.reason, severity=types.DiagnosticSeverity.Error, source=SOURCE), None
        pages = {rule.code: page_of(rule) for rule in folder.rules}
        for finding in document.findings:
            related = [
                types.DiagnosticRelatedInformation(where, r.message)
                for r in finding.related
                if (where := texts.location(r.path, r.cell, r.span)) is not None
            ]
            where = texts.location(finding.path, finding.cell, finding.span)
            diagnostic = types.Diagnostic(
                range=where.range,
                message=finding.message,
                severity=SEVERITIES[finding.severity],
                code=finding.code,
                code_description=types.CodeDescription(url) if (url := pages.get(finding.code)) else None,
                source=SOURCE,
                related_information=related or None,
            )
            yield where.uri, diagnostic, finding

    def _edit(self, seen: Seen, finding: Finding | None, generation: int) -> types.WorkspaceEdit | None:
        """The edit of a fix (None: of all safe fixes), for the texts of that generation."""
        if generation != self.generation:
            raise Cancelled
        if finding is None:
            found = seen.folder.fix_all(seen.document)
            replaced = {seen.document.path: found} if found else {}
        else:
            replaced = seen.folder.changed_by(finding)
        texts = Texts(seen.folder, self._known(seen), self.workspace.position_codec)
        edits: dict[str, list[types.TextEdit]] = {}
        for path, replacements in replaced.items():
            for r in replacements:
                uri, text = texts.of(path, r.cell)
                place = types.Range(text.position(r.row, r.column - 1), text.position(r.end_row, r.end_column - 1))
                edits.setdefault(uri, []).append(types.TextEdit(place, r.content))
        return self._workspace_edit(edits) if edits else None

    def _known(self, seen: Seen) -> list[Document]:
        """The documents that the last analysis of the folder saw."""
        return list({id(s.document): s.document for s in self.seen.values() if s.folder is seen.folder}.values())

    def _workspace_edit(self, edits: dict[str, list[types.TextEdit]]) -> types.WorkspaceEdit:
        capabilities = self.client_capabilities.workspace
        if capabilities is None or capabilities.workspace_edit is None or not capabilities.workspace_edit.document_changes:
            return types.WorkspaceEdit(changes=edits)
        versions = self.open_uris()
        return types.WorkspaceEdit(
            document_changes=[
                types.TextDocumentEdit(types.OptionalVersionedTextDocumentIdentifier(uri, versions.get(uri)), list(mine))
                for uri, mine in edits.items()
            ]
        )

    # ------------------------------------------------------------------ out
    def _publish(self) -> None:
        for uri, seen in self.seen.items():
            diagnostics = [d for d, _ in seen.diagnostics]
            new = (seen.version, diagnostics)
            if self.published.get(uri) != new:
                self.published[uri] = new
                self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, diagnostics, seen.version))
        held = self.open_uris()
        for uri in [uri for uri in self.published if uri not in held]:
            del self.published[uri]
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))
        complaints = {f.config_error for f in self.folders.values() if f.config_error is not None}
        for complaint in sorted(complaints - self.complaints):
            self.window_show_message(types.ShowMessageParams(types.MessageType.Error, f"GradFix: {complaint}"))
        self.complaints = complaints

    async def seen_now(self, uri: str) -> Seen | None:
        """What the analysis says of the text as it is now, once it has said it."""
        if uri in self.open_uris():
            await self.settled.wait()
        return self.seen.get(uri)

    async def edit(self, seen: Seen, finding: Finding | None) -> types.WorkspaceEdit | None:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self.analyst, partial(self._edit, seen, finding, self.generation))
        except Cancelled:
            raise JsonRpcContentModified("the text has changed") from None
        except engine.Broken as broken:
            self._log(f"{', '.join(broken.paths)}: {broken.reason}")
            return None


class Texts:
    """The texts of a folder's files as the editor holds them or the analysis read them, and by which names it knows them."""

    def __init__(self, folder: Folder, documents: list[Document], codec: PositionCodec):
        self.folder, self.codec = folder, codec
        self.documents = {document.path: document for document in documents}
        self.known: dict[tuple[str, int | None], tuple[str, Text] | None] = {}

    def of(self, path: str, cell: int | None) -> tuple[str, Text] | None:
        """URI and text of a file, or of a cell of a notebook that is open."""
        if (path, cell) not in self.known:
            document = self.documents.get(path)
            held = document if cell is None or document is None or document.cells is None else document.cells[cell - 1]
            if held is not None:
                self.known[path, cell] = held.uri, Text(held.text, self.codec)
            else:
                text = self.folder.text_of(path)
                self.known[path, cell] = None if text is None else (uris.from_fs_path(path), Text(text, self.codec))
        return self.known[path, cell]

    def location(self, path: str, cell: int | None, span: Span) -> types.Location | None:
        found = self.of(path, cell)
        if found is None:
            return None
        if cell is not None and path not in self.documents:
            span = self.folder.fixes.in_file(path, cell, span)
        uri, text = found
        return types.Location(uri, text.range(span))


def page_of(rule: Codemod) -> str | None:
    """What an editor opens to explain a rule: a page about it, else its module, which starts with its documentation."""
    source = getattr(sys.modules.get(rule.module_name), "__file__", None)
    return rule.url or (uris.from_fs_path(source) if source else None)


def path_of(uri: str) -> str:
    path = uris.to_fs_path(uri)
    return os.path.normpath(path) if path else uri


def innermost(roots: list[str], path: str) -> str | None:
    holding = [root for root in roots if path.startswith(root.rstrip(os.sep) + os.sep)]
    return max(holding, key=len, default=None)


def overlaps(a: types.Range, b: types.Range) -> bool:
    """Do the two share a character or touch (a cursor is an empty range)?"""
    return (a.start.line, a.start.character) <= (b.end.line, b.end.character) and (b.start.line, b.start.character) <= (
        a.end.line,
        a.end.character,
    )


def wanted(kind: str, only: list[str] | None) -> bool:
    return only is None or any(kind == o or kind.startswith(o + ".") for o in only)


# ---------------------------------------------------------------------- what the client asks
def create(options: Options) -> Server:
    server = Server(options)

    @server.feature(types.INITIALIZED)
    def initialized(ls: Server, params: types.InitializedParams):
        workspace = ls.client_capabilities.workspace
        watching = workspace.did_change_watched_files if workspace is not None else None
        if watching is not None and watching.dynamic_registration:
            watchers = [types.FileSystemWatcher(glob_pattern=pattern) for pattern in WATCHED]
            options = types.DidChangeWatchedFilesRegistrationOptions(watchers)
            registration = types.Registration("gradfix-watch", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
            ls.client_register_capability(types.RegistrationParams([registration]), lambda answer: None)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def did_open(ls: Server, params: types.DidOpenTextDocumentParams):
        document = params.text_document
        if document.uri.split("#")[0].endswith(".ipynb"):
            return  # a cell, from a client that knows no notebooks: alone it means little
        if document.language_id == "python" or document.uri.endswith((".py", ".pyw")):
            ls.open[document.uri] = document
            ls.touch(refresh=True, delay=0)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(ls: Server, params: types.DidChangeTextDocumentParams):
        document = ls.open.get(params.text_document.uri)
        if document is not None:
            text = ls.workspace.get_text_document(document.uri).source
            ls.open[document.uri] = types.TextDocumentItem(
                document.uri, document.language_id, params.text_document.version, text
            )
            ls.touch()

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def did_save(ls: Server, params: types.DidSaveTextDocumentParams):
        ls.touch(refresh=True)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(ls: Server, params: types.DidCloseTextDocumentParams):
        if ls.open.pop(params.text_document.uri, None) is not None:
            ls.touch(refresh=True)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def did_open_notebook(ls: Server, params: types.DidOpenNotebookDocumentParams):
        ls.touch(refresh=True, delay=0)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def did_change_notebook(ls: Server, params: types.DidChangeNotebookDocumentParams):
        ls.touch()

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_SAVE)
    def did_save_notebook(ls: Server, params: types.DidSaveNotebookDocumentParams):
        ls.touch(refresh=True)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def did_close_notebook(ls: Server, params: types.DidCloseNotebookDocumentParams):
        ls.touch(refresh=True)

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def did_change_watched_files(ls: Server, params: types.DidChangeWatchedFilesParams):
        ls.touch(refresh=True)

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def did_change_workspace_folders(ls: Server, params: types.DidChangeWorkspaceFoldersParams):
        ls.touch(refresh=True)

    @server.feature(types.SHUTDOWN)
    def shutdown(ls: Server, params: None):
        ls.stop()

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions([types.CodeActionKind.QuickFix, FIX_ALL, FIX_NOTEBOOK], resolve_provider=True),
    )
    async def code_action(ls: Server, params: types.CodeActionParams):
        uri, only = params.text_document.uri, params.context.only
        seen = await ls.seen_now(uri)
        if seen is None or not seen.document.fixable:
            return []
        actions = []
        if wanted(types.CodeActionKind.QuickFix, only):
            for number, (diagnostic, finding) in enumerate(seen.diagnostics):
                if finding is None or not overlaps(diagnostic.range, params.range):
                    continue
                if engine.has_fix(finding, seen.folder.settings):
                    safe = finding.fix.applicability is Applicability.SAFE
                    actions.append(
                        types.CodeAction(
                            title=f"GradFix ({finding.code}): {finding.fix.message}{'' if safe else ' (unsafe)'}",
                            kind=types.CodeActionKind.QuickFix,
                            diagnostics=[diagnostic],
                            is_preferred=safe or None,
                            data={"uri": uri, "version": seen.document.version, "finding": number},
                        )
                    )
        kind = FIX_NOTEBOOK if only is not None and wanted(FIX_NOTEBOOK, only) else FIX_ALL
        if wanted(kind, only) and seen.folder.has_safe_fix(seen.document):
            data = {"uri": uri, "version": seen.document.version, "finding": None}
            actions.append(types.CodeAction("GradFix: Apply all safe fixes", kind, data=data))
        if not resolves_edits(ls.client_capabilities):
            actions = [a for a in [await resolved(ls, action) for action in actions] if a.edit is not None]
        return actions

    @server.feature(types.CODE_ACTION_RESOLVE)
    async def resolve(ls: Server, action: types.CodeAction):
        return await resolved(ls, action)

    async def resolved(ls: Server, action: types.CodeAction) -> types.CodeAction:
        data = action.data
        seen = await ls.seen_now(data["uri"])
        if seen is None or seen.document.version != data["version"]:
            raise JsonRpcContentModified("the text has changed")
        number = data["finding"]
        action.edit = await ls.edit(seen, None if number is None else seen.diagnostics[number][1])
        return action

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(ls: Server, params: types.HoverParams):
        seen = await ls.seen_now(params.text_document.uri)
        if seen is None:
            return None
        here = types.Range(params.position, params.position)
        rules = {rule.code: rule for rule in seen.folder.rules}
        for diagnostic, finding in seen.diagnostics:
            if finding is not None and rules[finding.code].doc and overlaps(diagnostic.range, here):
                return types.Hover(markdown(rules[finding.code]), diagnostic.range)
        text = Text(seen.text, ls.workspace.position_codec)
        row, col = text.point(params.position)
        for comment in suppressions.parse(seen.document.path, seen.text).comments:
            if comment.row == row and comment.col <= col <= comment.end_col:
                silenced = [r for r in rules.values() if comment.rules is not None and comment.covers(r.code, r.name)]
                if silenced:
                    value = "\n".join(f"- **{r.code}** {r.name}: {r.summary}" for r in silenced)
                    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, value))
        return None

    return server


def markdown(rule) -> types.MarkupContent:
    return types.MarkupContent(types.MarkupKind.Markdown, f"**{rule.code}** {rule.name}\n\n{rule.doc}")


def resolves_edits(capabilities: types.ClientCapabilities) -> bool:
    """Can the client ask for the edit of a code action when it is chosen?"""
    document = capabilities.text_document
    support = document.code_action.resolve_support if document is not None and document.code_action is not None else None
    return support is not None and "edit" in support.properties and bool(document.code_action.data_support)


def serve(options: Options) -> None:
    """Talk to the client over stdin and stdout until it says exit."""
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # what anything prints must not reach the client
    create(options).start_io(sys.stdin.buffer, out)
