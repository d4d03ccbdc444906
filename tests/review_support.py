"""Local servers that behave as GitHub's and GitLab's do: they check each request, refuse what those refuse, and keep
what they accept.  And what a click on a suggestion does.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jsonschema
from markdown_it import MarkdownIt

API = json.loads((Path(__file__).parent / "github_api" / "openapi.json").read_text())
LINE_RULE = "Pull request review thread line must be part of the diff"
START_RULE = "Pull request review thread start line must be part of the same hunk as the line."


def git(folder, *arguments, **more) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, **more).stdout.decode("utf-8", "replace")


@dataclass
class Fault:
    """An answer to the next request of `method` instead of the right one; with `works`, after it did its work."""

    method: str
    status: int = 0  # 0: the connection is cut
    message: str = "Server Error"
    headers: dict = field(default_factory=dict)
    works: bool = False


class Answer(Exception):
    def __init__(self, status: int, body=None, headers: dict | None = None):
        self.status, self.body, self.headers = status, body, headers or {}


class Server:
    """One pull request: from `base` to `head` of the git repository `folder`."""

    def __init__(self, folder: Path, base: str, head: str):
        self.folder = folder
        self.base, self.head = git(folder, "rev-parse", base).strip(), git(folder, "rev-parse", head).strip()
        self.token, self.may_write, self.is_bot = "secret", True, True
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.known_files: dict[tuple[str, str], list[dict]] = {}
        self.page = 2  # the most entries that a page holds, so that several are needed
        self.too_large: set[str] = set()  # files of whose diff it sends no lines
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                length = int(self.headers.get("Content-Length") or 0)
                server.serve(self, self.rfile.read(length))

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_any

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def serve(self, handler, body: bytes):
        parts = urllib.parse.urlsplit(handler.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        method = handler.command
        self.requests.append((method, parts.path))
        fault = next((f for f in self.faults if f.method == method), None)
        if fault:
            self.faults.remove(fault)
        answer = None
        if fault is None or fault.works:
            try:
                answer = self.answer(method, parts.path, query, handler.headers, body)
            except Answer as refused:
                answer = refused
        if fault and not fault.status:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault:
            answer = Answer(fault.status, {"message": fault.message}, fault.headers)
        data = b"" if answer.body is None else json.dumps(answer.body).encode()
        handler.send_response(answer.status)
        handler.send_header("Content-Type", "application/json; charset=utf-8")
        handler.send_header("Content-Length", str(len(data)))
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    def paged(self, entries: list, query: dict, path: str) -> Answer:
        size = min(int(query.get("per_page", 30)), self.page)
        page = int(query.get("page", 1))
        headers = {"X-Page": str(page), "X-Per-Page": str(size)}
        if page * size < len(entries):
            following = urllib.parse.urlencode({**query, "page": page + 1})
            headers |= {"Link": f'<{self.url}{path}?{following}>; rel="next"', "X-Next-Page": str(page + 1)}
        return Answer(200, entries[(page - 1) * size : page * size], headers)

    def files(self) -> list[dict]:
        commits = self.base, self.head
        if commits not in self.known_files:
            self.known_files[commits] = self.files_between(*commits)
        return self.known_files[commits]

    def files_between(self, base: str, head: str) -> list[dict]:
        merge_base = git(self.folder, "merge-base", base, head).strip()
        names = git(self.folder, "diff", "--name-status", "-M", merge_base, head).splitlines()
        out = []
        for line in names:
            status, *paths = line.split("\t")
            patch = git(self.folder, "diff", "-M", merge_base, head, "--", *paths)
            start = re.search("^@@ ", patch, re.M)
            kind = {"A": "added", "D": "removed", "M": "modified", "R": "renamed"}[status[0]]
            out.append({"status": kind, "old": paths[0], "path": paths[-1], "patch": patch[start.start() :] if start else ""})
        return out

    def hunks(self, path: str) -> list[dict[int, int | None]]:
        """The rows of the new file in each hunk, with those of the old file where they are unchanged."""
        found = []
        for file in self.files():
            if file["path"] != path:
                continue
            for line in file["patch"].split("\n"):
                if at := re.match(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@", line):
                    old, new = int(at[1]), int(at[2])
                    found.append({})
                elif line.startswith("+"):
                    found[-1][new] = None
                    new += 1
                elif line.startswith("-"):
                    old += 1
                elif line.startswith(" "):
                    found[-1][new] = old
                    old, new = old + 1, new + 1
        return found


def changed_rows(patch: str) -> int:
    return len(re.findall(r"^[-+]", patch, re.M))


def resolved(schema):
    if isinstance(schema, dict):
        if "$ref" in schema:
            node = API
            for part in schema["$ref"].removeprefix("#/").split("/"):
                node = node[part]
            return resolved(node)
        return {k: resolved(v) for k, v in schema.items()}
    return [resolved(v) for v in schema] if isinstance(schema, list) else schema


def operation(method: str, path: str) -> tuple[dict, dict]:
    """The operation of GitHub's description that a request is, and its path parameters."""
    for template, operations in API["paths"].items():
        found = re.fullmatch(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(template)), path)
        if found and method.lower() in operations:
            return resolved(operations[method.lower()]), found.groupdict()
    raise AssertionError(f"GitHub has no {method} {path}")


class GitHub(Server):
    def __init__(self, folder, base, head):
        super().__init__(folder, base, head)
        self.reviews: list[dict] = []
        self.comments: list[dict] = []
        self.author = {"login": "github-actions[bot]", "id": 1, "type": "Bot"}

    @property
    def posted(self) -> list[dict]:
        return [c for c in self.comments if c["user"] == self.author]

    def validated(self, method: str, path: str, query: dict, body: bytes):
        """The names in the path and the body, both as GitHub's own description of its interface wants them."""
        described, names = operation(method, path)
        for parameter in described["parameters"]:
            value = (names if parameter["in"] == "path" else query).get(parameter["name"])
            assert value is not None or not parameter.get("required"), parameter
            if value is not None:
                integer = parameter["schema"].get("type") == "integer"
                jsonschema.validate(int(value) if integer else value, parameter["schema"])
        known = {p["name"] for p in described["parameters"]}
        assert set(query) <= known, f"unknown query parameters: {set(query) - known}"
        if "requestBody" not in described:
            assert not body
            return names, None
        data = json.loads(body)
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.validate(data, schema)
        assert set(data) <= set(schema["properties"])
        for comment in data.get("comments", ()):
            assert set(comment) <= set(schema["properties"]["comments"]["items"]["properties"])
        return names, data

    def answer(self, method, path, query, headers, body) -> Answer:
        if headers.get("Authorization") not in (f"token {self.token}", f"Bearer {self.token}"):
            return Answer(401, {"message": "Bad credentials"})
        try:
            names, data = self.validated(method, path, query, body)
        except (AssertionError, jsonschema.ValidationError, ValueError) as error:
            return Answer(422, {"message": "Invalid request.", "errors": [str(error)[:500]]})
        if path == "/user":
            if self.is_bot:
                return Answer(403, {"message": "Resource not accessible by integration"})
            return Answer(200, self.author)
        if (names["owner"], names["repo"]) != ("o", "r") or names.get("pull_number", "7") != "7":
            return Answer(404, {"message": "Not Found"})
        if method in ("POST", "DELETE") and not self.may_write:
            return Answer(403, {"message": "Resource not accessible by integration"})
        end = path.rsplit("/", 1)[1]
        if end == "7":
            return Answer(200, self.pull())
        if end == "pulls":
            return self.paged([self.pull()] if query.get("head") == "fork:change" else [], query, path)
        if end == "files":
            files = [
                {"filename": f["path"], "status": f["status"], "sha": "0" * 40, "changes": changed_rows(f["patch"])}
                | ({"patch": f["patch"].removesuffix("\n")} if f["patch"] and f["path"] not in self.too_large else {})
                | ({"previous_filename": f["old"]} if f["status"] == "renamed" else {})
                for f in self.files()
            ]
            return self.paged(files, query, path)
        if end == "comments":
            return self.paged(self.comments, query, path)
        if method == "DELETE":
            self.comments = [c for c in self.comments if c["id"] != int(names["comment_id"])]
            return Answer(204)
        if method == "GET":
            return self.paged(self.reviews, query, path)
        return self.review(data)

    def pull(self) -> dict:
        return {
            "number": 7, "state": "open", "url": f"{self.url}/repos/o/r/pulls/7",
            "head": {"sha": self.head, "ref": "change"}, "base": {"sha": self.base, "ref": "main"},
        }  # fmt: skip

    def review(self, data: dict) -> Answer:
        wrong = []
        if data.get("event") in ("COMMENT", "REQUEST_CHANGES") and not data.get("body"):
            wrong.append("Body can't be blank")
        if data.get("commit_id", self.head) != self.head:
            wrong.append("commit_id is not part of the pull request")
        for text in [data.get("body", ""), *(c["body"] for c in data["comments"])]:
            if len(text) > 65536:
                wrong.append("Body is too long (maximum is 65536 characters)")
        for comment in data["comments"]:
            if not comment["body"].strip():
                wrong.append("Body can't be blank")
            hunk = next((h for h in self.hunks(comment["path"]) if comment.get("line") in h), None)
            if hunk is None or comment.get("side", "RIGHT") != "RIGHT":
                wrong.append(LINE_RULE)
            elif "start_line" in comment and comment["start_line"] not in hunk:
                wrong.append(START_RULE)
            if "start_line" in comment and comment["start_line"] >= comment.get("line", 0):
                wrong.append("Pull request review thread start line must precede the end line.")
        if wrong:
            return Answer(422, {"message": "Unprocessable Entity", "errors": wrong})
        number = len(self.reviews) + 1
        self.reviews.append({"id": number, "body": data["body"], "user": self.author, "state": "COMMENTED"})
        for comment in data["comments"]:
            self.add(**comment, pull_request_review_id=number)
        return Answer(200, self.reviews[-1])

    def add(self, body: str, user: dict | None = None, **more) -> dict:
        self.comments.append({"id": len(self.comments) + 100, "body": body, "user": user or self.author, **more})
        self.comments[-1]["url"] = f"{self.url}/repos/o/r/pulls/comments/{self.comments[-1]['id']}"
        return self.comments[-1]


class GitLab(Server):
    """Merge request 7 of project 5, as GitLab's documentation describes its threads."""

    def __init__(self, folder, base, head):
        super().__init__(folder, base, head)
        self.discussions: list[dict] = []
        self.me = {"id": 3, "username": "project_bot"}
        merge_base = git(folder, "merge-base", base, head).strip()
        self.refs = {"base_sha": merge_base, "start_sha": self.base, "head_sha": self.head}

    @property
    def posted(self) -> list[dict]:
        return [d["notes"][0] for d in self.discussions]

    def answer(self, method, path, query, headers, body) -> Answer:
        if headers.get("Private-Token") != self.token:
            return Answer(401, {"message": "401 Unauthorized"})
        if path == "/api/v4/user":
            return Answer(200, self.me)
        top = "/api/v4/projects/5/merge_requests/7"
        if not path.startswith(top):
            return Answer(404, {"message": "404 Not found"})
        if method != "GET" and not self.may_write:
            return Answer(403, {"message": "403 Forbidden"})
        data = json.loads(body) if body else {}
        rest = path.removeprefix(top)
        if (method, rest) == ("GET", ""):
            return Answer(200, {"id": 70, "iid": 7, "project_id": 5, "sha": self.head, "diff_refs": self.refs})
        if (method, rest) == ("GET", "/diffs"):
            kinds = {"added": "new_file", "removed": "deleted_file", "renamed": "renamed_file"}
            files = [
                {"old_path": f["old"], "new_path": f["path"], "diff": "" if f["path"] in self.too_large else f["patch"]}
                | {"collapsed": False, "too_large": f["path"] in self.too_large}
                | {flag: f["status"] == status for status, flag in kinds.items()}
                for f in self.files()
            ]
            return self.paged(files, query, path)
        if (method, rest) == ("GET", "/discussions"):
            return self.paged(self.discussions, query, path)
        if (method, rest) == ("POST", "/discussions"):
            if wrong := self.wrong_position(data):
                return Answer(400, {"message": wrong})
            return Answer(201, self.add(data["body"], position=data["position"]))
        if (method, rest) == ("POST", "/notes"):
            if not data.get("body"):
                return Answer(400, {"error": "body is missing"})
            return Answer(201, self.add(data["body"])["notes"][0])
        if method == "PUT" and (found := re.fullmatch(r"/discussions/(\w+)", rest)):
            discussion = next(d for d in self.discussions if d["id"] == found[1])
            assert data == {"resolved": True}
            discussion["notes"][0]["resolved"] = True
            return Answer(200, discussion)
        raise AssertionError(f"{method} {path}")

    def add(self, body: str, author: dict | None = None, **more) -> dict:
        number = f"d{len(self.discussions)}"
        note = {"id": len(self.discussions), "body": body, "author": author or self.me, "resolvable": "position" in more, **more}
        self.discussions.append({"id": number, "individual_note": "position" not in more, "notes": [note]})
        return self.discussions[-1]

    def wrong_position(self, data: dict) -> str | None:
        position = data.get("position") or {}
        if not data.get("body"):
            return "body is missing"
        if len(data["body"]) > 1_000_000:
            return "body is too long"
        if position.get("position_type") != "text":
            return "position[position_type] does not have a valid value"
        if any(position.get(name) != sha for name, sha in self.refs.items()):
            return "position is of another version"
        file = next((f for f in self.files() if f["path"] == position.get("new_path")), None)
        row = position.get("new_line")
        hunk = None if file is None else next((h for h in self.hunks(file["path"]) if row in h), None)
        # An unchanged line has both of its numbers, an added one has no other.
        if hunk is None or position.get("old_path") != file["old"] or position.get("old_line") != hunk[row]:
            return 'Note {:line_code=>["can\'t be blank", "must be a valid line code"]}'
        return None


# ------------------------------------------------------------- what a click does


def blocks(body: str) -> list[tuple[str, str]]:
    """The fenced blocks of a Markdown text: info string and content."""
    return [(t.info.strip(), t.content) for t in MarkdownIt("commonmark").parse(body) if t.type == "fence"]


def clicked(contents: dict[str, bytes], comments: list[tuple[str, int, int, str]]) -> dict[str, bytes]:
    """All suggestions of (path, first row, last row, body), applied; each must change something, no two the same row."""
    out = dict(contents)
    taken: set[tuple[str, int]] = set()
    for path, start, end, body in sorted(comments, key=lambda c: (c[0], -c[1])):
        for kind, new in blocks(body):
            if (shift := re.fullmatch(r"suggestion:-(\d+)\+(\d+)", kind)) is not None:
                start, end = end - int(shift[1]), end + int(shift[2])
                assert int(shift[1]) <= 100 and int(shift[2]) <= 100 and start >= 1
            elif kind != "suggestion":
                continue
            rows = {(path, row) for row in range(start, end + 1)}
            assert not rows & taken, "two suggestions for one line"
            taken |= rows
            lines = out[path].split(b"\n")
            old = lines[start - 1 : end]
            carriage = b"\r" if (old[0] if start < len(lines) else lines[0]).endswith(b"\r") else b""
            fresh = [line + carriage for line in new.encode().split(b"\n")[:-1]]
            if end == len(lines) and fresh:  # the file's last line, which has no end
                fresh[-1] = fresh[-1].removesuffix(b"\r")
            assert fresh != old, "a suggestion that changes nothing"
            lines[start - 1 : end] = fresh
            out[path] = b"\n".join(lines)
    return out
