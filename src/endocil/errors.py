"""Errors that a user can fix: one line, no traceback. Callers distinguish the kinds by class."""


class EndocilError(ValueError):
    """Something given to endocil cannot be used. The message names it, what was expected, and the way out."""


class SettingsError(EndocilError):
    """A setting, an option or an argument is wrong."""


class DataError(EndocilError):
    """Images, labels, lists, splits or archives of a data set are wrong."""


class FileFormatError(EndocilError):
    """A file that endocil writes (run folder, checkpoint, model, predictions, ledger) is damaged or foreign."""


class RefusedError(EndocilError):
    """The rules of a gate refuse a model."""


class ResourceError(EndocilError):
    """Something is missing on this machine: a device, a package, disk space, memory, or a lock."""
