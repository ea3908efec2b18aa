"""What a run is carried by: tasks, checkpoint, progress, interruption and clock."""

from estimand.runtime import journal
from estimand.runtime.compilation import CompilationClock
from estimand.runtime.interruption import Interruption
from estimand.runtime.journal import CheckpointError, Journal
from estimand.runtime.progress import Listener, Progress, bar
from estimand.runtime.runtime import LocalRuntime, OutOfTimeError, Runtime, Task, run_task

__all__ = [
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
    "bar",
    "journal",
    "run_task",
]
