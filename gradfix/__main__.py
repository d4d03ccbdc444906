"""The `gradfix` command.  `--version` is answered before anything slow is imported."""

import sys


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        from gradfix import __version__

        print(f"gradfix {__version__}")
        return
    from gradfix.cli import run

    sys.exit(run())


if __name__ == "__main__":
    main()
