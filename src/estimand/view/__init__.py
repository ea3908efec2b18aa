"""What people read of a record: diagnosis, tables, report."""

from estimand.view.diagnosis import Diagnosis, PartDiagnosis, PlainSampling, diagnose
from estimand.view.reliability import DesignPoint, Reliability, reliability_of
from estimand.view.tables import Summary, Table, estimate_text, summarise

# The module `report` is imported when a report is asked for, and the plots with it.
__all__ = [
    "DesignPoint",
    "Diagnosis",
    "PartDiagnosis",
    "PlainSampling",
    "Reliability",
    "Summary",
    "Table",
    "diagnose",
    "estimate_text",
    "reliability_of",
    "report",
    "summarise",
]
