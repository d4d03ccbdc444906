"""The `gradfix` command.  `--version` is answered before anything slow is imported."""

import sys


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        from gradfix import __version__

        print(f"gradfix {__version__}")
        return
    from gradfix.cli import run

    sys.exit(run())


def forget_working_folder() -> None:
    """`python -m gradfix` looks for modules there first; but what lies there is to be read, and may be a stranger's."""
    import os

    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        here = os.getcwd()
    except OSError:  # it is gone
        return
    if not getattr(sys.flags, "safe_path", False) and sys.path[0] in ("", here) and here != home:
        del sys.path[0]


if __name__ == "__main__":
    forget_working_folder()
    main()
