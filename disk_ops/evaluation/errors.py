"""What goes wrong in an evaluation by what it is given."""

from __future__ import annotations


class EvaluationError(Exception):
    """A method, a file or an option that can't be used as asked. The message names it and says why."""
