"""From finished runs to a folder with all that can be shown of them: tables, figures, the page, and an index."""

from endocil.publishing.writing import publish

__all__ = ["publish"]
