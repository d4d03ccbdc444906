"""`gradfix server`: its options, checked before the editor is answered."""

from __future__ import annotations

import os

from gradfix import codemod
from gradfix.config import Config, ConfigError, split
from gradfix.engine import settings_from
from gradfix.server.folder import Options
from gradfix.server.lsp import serve


def run(select, ignore, extend_select, config, isolated, target_torch) -> None:
    if isolated and config:
        raise ConfigError("--isolated and --config exclude each other")
    options = Options(
        select=None if select is None else split(select),
        extend_select=split(extend_select),
        ignore=split(ignore),
        target_torch=target_torch,
        config=os.path.abspath(config) if config else None,
        isolated=isolated,
    )
    settings_from(
        Config(), os.getcwd(), codemod.load(),
        select=options.select, extend_select=options.extend_select, ignore=options.ignore, target_torch=target_torch,
    )  # fmt: skip
    serve(options)
