"""JUnit XML, the form in which pipelines take test results. Pure.

There is no one standard; what is written here is what Jenkins, GitLab and the report actions of GitHub have in common:
GitLab shows the text within a failure and tells cases apart by their names alone, others show its ``message``.
"""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from loadtest.reports.cases import Case, Outcome
from loadtest.reports.figures import plain

_ELEMENTS: dict[Outcome, str] = {
    "FAIL": "failure",
    "INCONCLUSIVE": "failure",
    "INVALID": "error",
    "ERROR": "error",
    "SKIPPED": "skipped",
}


def junit(name: str, cases: Sequence[Case], started_at: str | None = None) -> str:
    """One suite of ``cases`` as an XML document, ending in a newline. Their titles must differ.

    ``name`` is of the suite, such as the scenario's; ``started_at`` is RFC 3339, in UTC.
    """
    root = Element("testsuites", name="loadtest")
    suite = SubElement(root, "testsuite", name=plain(name))
    for case in cases:
        test = SubElement(suite, "testcase", classname=plain(name), name=plain(case.title), time=f"{case.seconds:.3f}")
        said = plain("; ".join(filter(None, [case.reason, case.figures])))
        if element := _ELEMENTS.get(case.outcome):
            told = SubElement(test, element, type=case.outcome, message=plain(f"{case.outcome}: {case.reason}"))
            told.text = said
        elif said:
            SubElement(test, "system-out").text = said
    played = sum({case.level: case.seconds for case in cases}.values())
    for of in (root, suite):
        of.set("tests", str(len(cases)))
        for attribute, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            of.set(attribute, str(sum(_ELEMENTS.get(case.outcome) == element for case in cases)))
        of.set("time", f"{played:.3f}")
    if started_at:
        suite.set("timestamp", started_at.removesuffix("Z"))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"
