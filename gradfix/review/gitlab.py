"""Posting to GitLab, by python-gitlab: one thread for each comment, and a note with the rest."""

from __future__ import annotations

import contextlib

from gradfix.review import ReviewError
from gradfix.review.changes import Changes, FileChange, parse_hunks
from gradfix.review.payload import marked
from gradfix.review.posting import TIMEOUT, NotPosted, Unclear, insist, server, variable

try:
    import gitlab
    import requests
except ImportError:
    raise ReviewError("--post gitlab needs python-gitlab: pip install 'gradfix[review]'") from None


@contextlib.contextmanager
def reading():
    try:
        yield
    except gitlab.GitlabError as error:
        raise NotPosted(f"GitLab: {describe(error)}") from None
    except requests.RequestException as error:
        raise NotPosted(f"GitLab can't be reached: {type(error).__name__}") from None


@contextlib.contextmanager
def writing():
    """Quotas (429) python-gitlab waits for by itself: such a request did nothing."""
    try:
        yield
    except gitlab.GitlabError as error:
        status = error.response_code or 0
        raise (Unclear if status >= 500 else NotPosted)(f"GitLab: {describe(error)}") from None
    except requests.RequestException as error:
        raise Unclear(f"GitLab can't be reached: {type(error).__name__}") from None


def describe(error: gitlab.GitlabError) -> str:
    text = error.error_message
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return f"{' '.join(str(text).split())[:300]} (status {error.response_code})"


class MergeRequest:
    """The merge request that the environment names."""

    def __init__(self, number: int | None = None):
        if number is None:
            given = variable("CI_MERGE_REQUEST_IID")
            if not given.isdigit():
                raise ReviewError(f"CI_MERGE_REQUEST_IID is {given!r}, no number")
            number = int(given)
        self.client = gitlab.Gitlab(
            server("CI_SERVER_URL", "https://gitlab.com"),
            private_token=variable("GITLAB_TOKEN"),
            timeout=TIMEOUT,
            per_page=100,
        )
        self.project = self.client.projects.get(variable("CI_PROJECT_ID", "CI_PROJECT_PATH"), lazy=True)
        with reading():
            self.request = self.project.mergerequests.get(number, retry_transient_errors=True)
        self.refs: dict = self.request.diff_refs or {}
        self.head = self.refs.get("head_sha")
        if not self.head:
            raise ReviewError(f"merge request {number} has no diff yet")

    def changes(self, root: str) -> Changes:
        """The diff as GitLab has it."""
        files = []
        with reading():
            path = f"{self.request.manager.path}/{self.request.iid}/diffs"
            for file in self.client.http_list(path, iterator=True, retry_transient_errors=True):
                old = None if file["new_file"] else file["old_path"]
                hidden = not file["diff"] and bool(file.get("too_large") or file.get("collapsed"))
                files.append(FileChange(file["new_path"], old, parse_hunks(file["diff"]), file["deleted_file"], hidden))
        return Changes(root, files, self.head, self.refs["base_sha"], self.refs["start_sha"])

    def _discussions(self) -> list:
        with reading():
            return self.request.discussions.list(get_all=True, retry_transient_errors=True)

    def posted(self) -> set[str]:
        found: set[str] = set()
        for discussion in self._discussions():
            for note in discussion.attributes["notes"]:
                found |= marked(note["body"])
        return found

    def post(self, payload: dict) -> None:
        for discussion in payload["discussions"]:
            position = {**discussion["position"], **{k: self.refs[k] for k in ("base_sha", "start_sha", "head_sha")}}
            self._post(self.request.discussions, {"body": discussion["body"], "position": position})
        if payload["note"]:
            self._post(self.request.notes, {"body": payload["note"]})

    def _post(self, manager, data: dict) -> None:
        wanted = marked(data["body"])

        def send():
            with writing():
                manager.create(data)

        insist(send, lambda: wanted <= self.posted())

    def tidy(self, current: set[str]) -> int:
        """Resolve own threads, without replies, on what is no longer found.  The number of them."""
        with reading():
            self.client.auth()
        me, done = self.client.user.id, 0
        for discussion in self._discussions():
            notes = discussion.attributes["notes"]
            first = notes[0]
            marks = marked(first["body"])
            open_thread = first.get("resolvable") and not first.get("resolved") and len(notes) == 1
            if open_thread and first["author"]["id"] == me and marks and not marks & current:
                with contextlib.suppress(NotPosted, Unclear), writing():
                    discussion.resolved = True
                    discussion.save()
                    done += 1
        return done
