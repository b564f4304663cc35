"""What truebatch raises: the rule, the values by name, then one way out."""


class TruebatchError(Exception):
    """Base of every error that truebatch raises on purpose.

    The message states the rule and the values; `hint`, when there is one, states a way out.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\nHint: {hint}")
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, tuple[object, ...], dict[str, object]]:
        return (_rebuild, (type(self), self.message, self.hint), {})


def _rebuild(kind: type[TruebatchError], message: str, hint: str | None) -> TruebatchError:
    return kind(message, hint=hint)


class InvalidSpec(TruebatchError):
    """A sampler's parameters break one of its rules."""


class InvalidArgument(TruebatchError):
    """A number or name given to a function is outside its range."""


class CalibrationFailed(TruebatchError):
    """No noise within reach gives the privacy that was asked for."""


class UnknownAnalysis(TruebatchError):
    """No bound is known for this sampler under this adjacency; none is made up."""


class InvalidKey(TruebatchError):
    """A key has the wrong length, or its file is not kept as a secret."""


class MissingExtra(TruebatchError):
    """An optional package is needed for this and is not installed."""


class InvalidData(TruebatchError):
    """Rows cannot be read as what they are said to be: the message names the file, and the line of a text."""


class SourceChanged(TruebatchError):
    """A source is not the one that earlier work was done with."""


class DamagedBatches(TruebatchError):
    """Written batches are not what their manifest says."""


class IncompletePart(TruebatchError):
    """Not every row of a part of the batches has arrived, or one arrived that has no place in it."""


class OutputRefused(TruebatchError):
    """A directory holds other batches than those asked for, is in use, or cannot be written."""


class NoSpace(TruebatchError):
    """There is not enough room on the disk."""


class EngineFailed(TruebatchError):
    """A cluster gave up on the work of an engine; what it said of that is the cause of this error."""


class PrivacyMismatch(TruebatchError):
    """The noise was calibrated for another sampler than the one that drew the batches."""


class InvalidLoss(TruebatchError):
    """A loss is not a scalar function of float32 parameters and one example."""


class RoadsDisagree(TruebatchError):
    """Two ways to clip the same gradients do not give the same sum, so neither is trusted."""


class NotFinite(TruebatchError):
    """Parameters or a loss on public data are no longer finite, so training stopped."""


class DamagedRun(TruebatchError):
    """A run's directory is not what its record says, or has no record."""


class DamagedCheckpoint(TruebatchError):
    """No checkpoint of a run can be read back as it was written."""


class CheckpointMismatch(TruebatchError):
    """A checkpoint is of another run: another spec, key, model or optimizer."""
