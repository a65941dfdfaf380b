"""The levels of a result as CSV (RFC 4180): a line of names, then a row for each level. Pure."""

import csv
from io import StringIO

from loadtest.exports.flat import rows
from loadtest.result import Result


def text(result: Result) -> str:
    """The whole file. What was not measured is empty; true and false are written so."""
    out = StringIO()
    found = rows(result)
    writer = csv.writer(out)
    writer.writerow(found[0] if found else ())
    for row in found:
        writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in row.values()])
    return out.getvalue()
