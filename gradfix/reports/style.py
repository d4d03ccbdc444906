"""Colours, and none where they are not wanted."""

CODES = {"red": "31", "yellow": "33", "cyan": "36", "blue": "34", "green": "32", "bold": "1", "dim": "2"}
SEVERITY = {"error": "red", "warning": "yellow", "info": "cyan"}


def styler(color: bool):
    def style(text: str, *names: str) -> str:
        if not color or not text or not names:
            return text
        return f"\x1b[{';'.join(CODES[n] for n in names)}m{text}\x1b[0m"

    return style
