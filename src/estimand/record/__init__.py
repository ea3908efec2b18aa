"""What is kept of an estimation: the record, storage, merging, provenance, export."""

from estimand.record.branches import Branch, without_draws
from estimand.record.draws import KeptDraws, resample, values_at
from estimand.record.export import rows_of, to_dataframe, to_datatree, to_dict
from estimand.record.merge import MergeError, merge
from estimand.record.parts import CONSTANT_NAMES, PartSummary, with_parts
from estimand.record.provenance import (
    Provenance,
    as_key,
    fingerprint,
    fresh_key,
    generator_of,
    provenance_of,
)
from estimand.record.record import Contents, Record, confidence_interval, quantile
from estimand.record.refine import Question, judged, lack_of, question_of
from estimand.record.settling import Settling
from estimand.record.storage import (
    RecordError,
    is_record,
    load,
    plain_numbers,
    save,
    write_atomically,
)

__all__ = [
    "CONSTANT_NAMES",
    "Branch",
    "Contents",
    "KeptDraws",
    "MergeError",
    "PartSummary",
    "Provenance",
    "Question",
    "Record",
    "RecordError",
    "Settling",
    "as_key",
    "confidence_interval",
    "fingerprint",
    "fresh_key",
    "generator_of",
    "is_record",
    "judged",
    "lack_of",
    "load",
    "merge",
    "plain_numbers",
    "provenance_of",
    "quantile",
    "question_of",
    "resample",
    "rows_of",
    "save",
    "to_dataframe",
    "to_datatree",
    "to_dict",
    "values_at",
    "with_parts",
    "without_draws",
    "write_atomically",
]
