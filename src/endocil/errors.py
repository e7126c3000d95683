"""What goes wrong because of what was given: one line for the user, no traceback."""


class EndocilError(ValueError):
    """Names the thing, what was expected, what came, and the way out; the commands print it as one line."""
