import re

from loadtest.trace import ids, of_probes, traceparent


def test_a_request_has_one_id_which_the_header_says() -> None:
    trace, span = ids("a" * 32, 3, 17)
    assert traceparent("a" * 32, 3, 17) == f"00-{trace}-{span}-01"
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", traceparent("a" * 32, 3, 17))


def test_no_two_requests_share_one() -> None:
    runs = ("a" * 32, "b" * 32, of_probes("a" * 32))
    found = {ids(run, level, request) for run in runs for level in range(12) for request in range(100)}
    assert len(found) == 3600
    assert len({trace for trace, _ in found}) == 3600
