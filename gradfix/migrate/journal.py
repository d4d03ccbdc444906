"""What is done, kept in sqlite, so that a run which is killed goes on where it was.

One process at a time has a journal; the lock ends with the process.  A record is in the journal only when all that it
says has happened, and doing a repository again gives the same result: so nothing is lost, whenever the run ends.
"""

from __future__ import annotations

import os
import sqlite3
from datetime import datetime, timezone

from gradfix.config import ConfigError
from gradfix.migrate.records import Record, dumps, loads

APPLICATION = 0x67726466  # "grdf"
VERSION = 1
SCHEMA = """
create table runs (id integer primary key, fingerprint text not null, date text not null, started text not null, finished text);
create table repositories (run integer not null references runs(id) on delete cascade, position integer not null,
    identity text not null, name text not null, state text, finished text, record text, primary key (run, position));
create index by_identity on repositories (identity, run);
"""


def default_path() -> str:
    """In the folder where this system keeps a user's state."""
    import platformdirs

    return os.path.join(platformdirs.user_state_dir("gradfix", appauthor=False), "migrate.sqlite")


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class Journal:
    def __init__(self, path: str):
        self.path = path
        try:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self.db = sqlite3.connect(path, timeout=0, isolation_level=None)
            # Not a write-ahead log: with it, a journal on a network share would not be safe.
            self.db.execute("pragma locking_mode = exclusive")
            self.db.execute("pragma synchronous = full")
            self.db.execute("pragma foreign_keys = on")
            self.db.execute("begin exclusive")
            self._prepare()
            self.db.execute("commit")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise ConfigError(f"{path}: another `gradfix migrate` is using this journal") from None
            raise ConfigError(f"{path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{path}: is no journal of gradfix ({error})") from None
        except OSError as error:
            raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from None

    def _prepare(self) -> None:
        (application,) = self.db.execute("pragma application_id").fetchone()
        (version,) = self.db.execute("pragma user_version").fetchone()
        (tables,) = self.db.execute("select count(*) from sqlite_master").fetchone()
        if application == APPLICATION:
            if version != VERSION:
                raise ConfigError(f"{self.path}: was written by another version of gradfix; name another --journal")
        elif tables:
            raise ConfigError(f"{self.path}: is the database of something else, no journal of gradfix")
        else:
            for statement in SCHEMA.split(";\n"):
                self.db.execute(statement)
            self.db.execute(f"pragma application_id = {APPLICATION}")
            self.db.execute(f"pragma user_version = {VERSION}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.db.close()

    def begin(self, fingerprint: str, jobs: list[tuple[str, str]], restart: bool) -> Run:
        """The unfinished run of the same work, or a new one.  `jobs`: (identity, name) in order."""
        row = self.db.execute(
            "select id, date, started from runs where fingerprint = ? and finished is null order by id desc", [fingerprint]
        ).fetchone()
        if row is not None and not restart:
            return Run(self, *row, resumed=True)
        started = now()
        self.db.execute("begin")
        self.db.execute("delete from runs where fingerprint = ? and finished is null", [fingerprint])
        today = datetime.now().date().isoformat()
        cursor = self.db.execute("insert into runs (fingerprint, date, started) values (?, ?, ?)", [fingerprint, today, started])
        run = cursor.lastrowid
        self.db.executemany(
            "insert into repositories (run, position, identity, name) values (?, ?, ?, ?)",
            [(run, position, identity, dumps(name)) for position, (identity, name) in enumerate(jobs)],
        )
        self.db.execute("commit")
        return Run(self, run, today, started, resumed=False)

    def latest(self, identity: str) -> Record | None:
        """The newest successful record of the same job, from whatever run."""
        row = self.db.execute(
            "select record from repositories where identity = ? and state = 'done' order by run desc limit 1", [identity]
        ).fetchone()
        return loads(row[0], Record) if row else None


class Run:
    def __init__(self, journal: Journal, id: int, date: str, started: str, resumed: bool):
        self.journal, self.db, self.id, self.date, self.started, self.resumed = journal, journal.db, id, date, started, resumed

    def records(self) -> dict[int, Record]:
        rows = self.db.execute("select position, record from repositories where run = ? and record is not null", [self.id])
        return {position: loads(text, Record) for position, text in rows}

    def keep(self, position: int, record: Record) -> None:
        """Durable when this returns."""
        self.db.execute(
            "update repositories set state = ?, finished = ?, record = ? where run = ? and position = ?",
            [record.state, now(), dumps(record), self.id, position],
        )

    def finish(self) -> None:
        """Records of earlier runs that this one repeats are no longer needed."""
        self.db.execute("begin")
        self.db.execute("update runs set finished = ? where id = ?", [now(), self.id])
        self.db.execute(
            "update repositories set record = null, state = null where run < ? and identity in "
            "(select identity from repositories where run = ? and state = 'done') "
            "and run in (select id from runs where finished is not null)",
            [self.id, self.id],
        )
        self.db.execute(
            "delete from runs where finished is not null and id < ? and not exists "
            "(select 1 from repositories where run = runs.id and state = 'done')",
            [self.id],
        )
        self.db.execute("commit")
