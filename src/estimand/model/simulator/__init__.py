"""Models with a part that JAX cannot trace: a function of NumPy, compiled code, an executable."""

from estimand.model.simulator.calls import Called, Simulator, SimulatorError
from estimand.model.simulator.command import Command
from estimand.model.simulator.model import SimulatorModel
from estimand.model.simulator.program import SimulatorExpectation, SimulatorProgram, from_simulator

__all__ = [
    "Called",
    "Command",
    "Simulator",
    "SimulatorError",
    "SimulatorExpectation",
    "SimulatorModel",
    "SimulatorProgram",
    "from_simulator",
]
