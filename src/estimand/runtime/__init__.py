"""What a run is carried by: tasks, executors, checkpoint, progress, interruption, and so on."""

from estimand.runtime import journal
from estimand.runtime.blas import one_blas_thread
from estimand.runtime.cache import cache_on_disk
from estimand.runtime.compilation import CompilationClock
from estimand.runtime.compiler import warn_of_wrong_code
from estimand.runtime.devices import has_accelerator, memory_of_device
from estimand.runtime.executors import ExecutorRuntime, WorkersLostError
from estimand.runtime.interruption import Interruption
from estimand.runtime.journal import CheckpointError, Journal
from estimand.runtime.kept import NUM_KEPT_MODELS, compiled_per_model, compiler_options
from estimand.runtime.parcels import SendingError, SentOnce
from estimand.runtime.precision import (
    PRECISIONS,
    in_precision,
    require_precision,
    this_precision,
)
from estimand.runtime.progress import Listener, Progress, Teller, bar, ignore
from estimand.runtime.runtime import LocalRuntime, OutOfTimeError, Runtime, Task, run_task, spread

__all__ = [
    "NUM_KEPT_MODELS",
    "PRECISIONS",
    "CheckpointError",
    "CompilationClock",
    "ExecutorRuntime",
    "Interruption",
    "Journal",
    "Listener",
    "LocalRuntime",
    "OutOfTimeError",
    "Progress",
    "Runtime",
    "SendingError",
    "SentOnce",
    "Task",
    "Teller",
    "WorkersLostError",
    "bar",
    "cache_on_disk",
    "compiled_per_model",
    "compiler_options",
    "has_accelerator",
    "ignore",
    "in_precision",
    "journal",
    "memory_of_device",
    "one_blas_thread",
    "require_precision",
    "run_task",
    "spread",
    "this_precision",
    "warn_of_wrong_code",
]
