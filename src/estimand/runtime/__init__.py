"""What a run is carried by: tasks, checkpoint, progress, interruption, clock and precision."""

from estimand.runtime import journal
from estimand.runtime.blas import one_blas_thread
from estimand.runtime.cache import cache_on_disk
from estimand.runtime.compilation import CompilationClock
from estimand.runtime.compiler import warn_of_wrong_code
from estimand.runtime.interruption import Interruption
from estimand.runtime.journal import CheckpointError, Journal
from estimand.runtime.kept import NUM_KEPT_MODELS, compiled_per_model, compiler_options
from estimand.runtime.precision import (
    PRECISIONS,
    in_precision,
    require_precision,
    this_precision,
)
from estimand.runtime.progress import Listener, Progress, Teller, bar
from estimand.runtime.runtime import LocalRuntime, OutOfTimeError, Runtime, Task, run_task

__all__ = [
    "NUM_KEPT_MODELS",
    "PRECISIONS",
    "CheckpointError",
    "CompilationClock",
    "Interruption",
    "Journal",
    "Listener",
    "LocalRuntime",
    "OutOfTimeError",
    "Progress",
    "Runtime",
    "Task",
    "Teller",
    "bar",
    "cache_on_disk",
    "compiled_per_model",
    "compiler_options",
    "in_precision",
    "journal",
    "one_blas_thread",
    "require_precision",
    "run_task",
    "this_precision",
    "warn_of_wrong_code",
]
