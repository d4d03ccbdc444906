"""`gradfix review`: the findings that a change introduces, as review comments with suggestions."""


class ReviewError(Exception):
    """Why there can be no review: one line for the user."""
