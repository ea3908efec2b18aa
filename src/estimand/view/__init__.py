"""What people read of a record: diagnosis, tables, report."""

from estimand.view.diagnosis import Diagnosis, PartDiagnosis, PlainSampling, diagnose
from estimand.view.reliability import DesignPoint, Reliability, reliability_of
from estimand.view.remedies import message
from estimand.view.tables import Summarised, Summary, Table, summarise
from estimand.view.text import estimate_text, names_text, printed

# The modules `report` and `answer_page` are imported when a report is asked for, and the plots with
# them.
__all__ = [
    "DesignPoint",
    "Diagnosis",
    "PartDiagnosis",
    "PlainSampling",
    "Reliability",
    "Summarised",
    "Summary",
    "Table",
    "answer_page",
    "diagnose",
    "estimate_text",
    "message",
    "names_text",
    "printed",
    "reliability_of",
    "report",
    "summarise",
]
