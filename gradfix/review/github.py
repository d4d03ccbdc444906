"""Posting to GitHub, by PyGithub: one review."""

from __future__ import annotations

import contextlib
import os
import re

from gradfix.review import ReviewError
from gradfix.review.changes import Changes, FileChange, parse_hunks
from gradfix.review.payload import marked
from gradfix.review.posting import TIMEOUT, NotPosted, Refused, Unclear, event, insist, server, variable, wait_of

try:
    import github
    import requests
except ImportError:
    raise ReviewError("--post github needs PyGithub: pip install 'gradfix[review]'") from None


@contextlib.contextmanager
def reading():
    """PyGithub tries again by itself where that is safe."""
    try:
        yield
    except github.GithubException as error:
        raise NotPosted(f"GitHub: {describe(error)}") from None
    except requests.RequestException as error:
        raise NotPosted(f"GitHub can't be reached: {type(error).__name__}") from None


@contextlib.contextmanager
def writing():
    try:
        yield
    except github.GithubException as error:
        wait = wait_of(error.headers or {})
        limited = isinstance(error, github.RateLimitExceededException) or error.status == 429
        if limited or error.status == 403 and wait is not None:
            raise Refused(f"GitHub: {describe(error)}", 60.0 if wait is None else wait) from None
        if error.status >= 500:
            raise Unclear(f"GitHub: {describe(error)}") from None
        raise NotPosted(f"GitHub: {describe(error)}") from None
    except requests.RequestException as error:
        raise Unclear(f"GitHub can't be reached: {type(error).__name__}") from None


def describe(error: github.GithubException) -> str:
    data = error.data if isinstance(error.data, dict) else {}
    details = [e if isinstance(e, str) else e.get("message") or e.get("code", "") for e in data.get("errors") or []]
    text = ": ".join([data.get("message") or "no message", *filter(None, map(str, details))])
    return f"{' '.join(text.split())[:300]} (status {error.status})"


class Pull:
    """The pull request that the environment names."""

    def __init__(self, number: int | None = None):
        self.client = github.Github(
            auth=github.Auth.Token(variable("GITHUB_TOKEN", "GH_TOKEN")),
            base_url=server("GITHUB_API_URL", "https://api.github.com"),
            # Only what reads is sent again blindly: a review that got an error may stand all the same.
            retry=github.GithubRetry(total=4, backoff_factor=0.5, max_rate_limit_wait=120, allowed_methods={"GET"}),
            timeout=TIMEOUT,
            per_page=100,
            seconds_between_requests=None,  # a handful in all
        )
        self.repository = self.client.get_repo(variable("GITHUB_REPOSITORY"), lazy=True)
        with reading():
            self.pull = self._find(number)
            self.head: str = self.pull.head.sha

    def _find(self, number: int | None):
        happened = event()
        if number is None:
            number = (happened.get("pull_request") or happened.get("issue") or {}).get("number")
        if number is None and (found := re.fullmatch(r"refs/pull/(\d+)/\w+", os.environ.get("GITHUB_REF", ""))):
            number = int(found[1])
        if isinstance(number, int):
            return self.repository.get_pull(number)
        run = happened.get("workflow_run")
        if not run:
            raise ReviewError("the environment names no pull request; give its number by --pull-request")
        # Of a fork, the event names no pull request, but its branch.
        if not run.get("head_repository"):
            raise ReviewError("the repository that the change comes from is gone")
        branch = f"{run['head_repository']['owner']['login']}:{run['head_branch']}"
        for pull in self.repository.get_pulls(state="open", head=branch):
            if pull.head.sha == run["head_sha"]:
                return self.repository.get_pull(pull.number)
        raise ReviewError(f"no open pull request has commit {run['head_sha']} at its head")

    def changes(self, root: str) -> Changes:
        """The diff as GitHub has it."""
        files = []
        with reading():
            for file in self.pull.get_files():
                old = None if file.status == "added" else file.previous_filename or file.filename
                hidden = not file.patch and bool(file.changes)  # too large to send
                files.append(FileChange(file.filename, old, parse_hunks(file.patch), file.status == "removed", hidden))
        return Changes(root, files, self.head)

    def posted(self) -> set[str]:
        """The fingerprints in its comments and reviews."""
        found: set[str] = set()
        with reading():
            for comment in self.pull.get_review_comments():
                found |= marked(comment.body)
            for review in self.pull.get_reviews():
                found |= marked(review.body)
        return found

    def post(self, payload: dict) -> None:
        wanted = marked(payload["body"]).union(*(marked(c["body"]) for c in payload["comments"]))
        commit = self.client.create_from_raw_data(github.Commit.Commit, {"sha": self.head})

        def send():
            with writing():
                self.pull.create_review(commit, payload["body"], payload["event"], payload["comments"])

        insist(send, lambda: wanted <= self.posted())

    def tidy(self, current: set[str]) -> int:
        """Delete own comments, without replies, on what is no longer found.  The number of them."""
        with reading():
            me = self._me()
            # As they came: PyGithub would fetch each comment once more, for a field that only replies have.
            comments = {comment: comment._rawData for comment in self.pull.get_review_comments()}
        answered = {raw.get("in_reply_to_id") for raw in comments.values()}
        gone = 0
        for comment, raw in comments.items():
            author = raw.get("user") or {}
            mine = author.get("login") == me if me else author.get("type") == "Bot"
            marks = marked(raw["body"])
            if mine and marks and not marks & current and raw["id"] not in answered:
                with contextlib.suppress(NotPosted, Refused, Unclear), writing():
                    comment.delete()
                    gone += 1
        return gone

    def _me(self) -> str | None:
        try:
            return self.client.get_user().login
        except github.GithubException:  # the token of a workflow may not ask; it writes as a bot
            return None
